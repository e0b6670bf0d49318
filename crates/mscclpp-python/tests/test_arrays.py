"""Device memory as arrays, and arrays of all libraries as memory."""

import array
import ctypes
import pickle
import threading
import types

import mscclpp
import numpy
import pytest
from mscclpp import GpuBuffer, RawGpuBuffer
from mscclpp._arrays import is_of_cuda, locate
from mscclpp._mscclpp import _of_dlpack
from mscclpp.utils import is_torch_tensor

import ranks
from device import ON_GPU, Dlpack, Exported, Interface, address, arrays, fill, gpu_only, let_go, sim_only


@sim_only
def test_a_gpu_buffer_is_an_array_over_device_memory():
    buffer = GpuBuffer((3, 5), dtype=numpy.float32)
    assert isinstance(buffer, GpuBuffer) and isinstance(buffer, numpy.ndarray)
    assert not isinstance(numpy.zeros(3), GpuBuffer)
    assert (buffer.shape, buffer.dtype, buffer.nbytes) == ((3, 5), numpy.float32, 60)
    assert buffer.sum() == 0 and mscclpp._mscclpp._device_of(buffer.data.ptr) == 0
    assert buffer.data.ptr == buffer.data.mem.ptr == buffer.ctypes.data and buffer.data.mem.size >= 60
    buffer[1, 2] = 7
    assert buffer[1:].data.ptr == buffer.data.ptr + 20 and buffer[1:].data.mem.ptr == buffer.data.mem.ptr
    for result in (buffer + 1, buffer.copy(), buffer.astype(int), buffer[[0, 1]], -buffer, buffer[0] * buffer[1]):
        assert not isinstance(result, GpuBuffer) and not hasattr(result.data, "mem"), "it is no device memory"
    assert type(buffer + 1) is numpy.ndarray and type(buffer.sum()) is numpy.float32
    here, same = buffer.data.ptr, buffer
    same += 1
    numpy.subtract(same, 1, out=same)
    assert same is buffer and buffer.data.ptr == here and isinstance(buffer[1:], GpuBuffer)
    assert pickle.loads(pickle.dumps(buffer)).tolist() == buffer.tolist()
    buffer.set(numpy.repeat(numpy.arange(3, dtype=numpy.float32), 5).reshape(3, 5))
    for wrong, error in (([[1]], TypeError), (numpy.zeros((3, 5)), TypeError), (numpy.zeros((5, 3), "f"), ValueError)):
        with pytest.raises(error, match="expected an array of"):
            buffer.set(wrong)
        with pytest.raises(error, match="expected an array of"):
            buffer.get(out=wrong)
    got = buffer.get()
    buffer[:] = 0
    assert type(got) is numpy.ndarray and got[2].tolist() == [2] * 5


@gpu_only
def test_a_gpu_buffer_is_an_array_of_cupy():
    buffer = GpuBuffer((3, 5), dtype=numpy.float32)
    assert isinstance(buffer, GpuBuffer) and isinstance(buffer, arrays.ndarray)
    assert not isinstance(arrays.zeros(3), GpuBuffer)
    assert (buffer.shape, buffer.dtype, buffer.nbytes) == ((3, 5), numpy.float32, 60)
    assert buffer.sum() == 0 and mscclpp._mscclpp._device_of(buffer.data.ptr) == 0
    assert buffer.data.ptr == buffer.data.mem.ptr and buffer.data.mem.size >= 60
    buffer[1, 2] = 7
    assert buffer[1:].data.ptr == buffer.data.ptr + 20 and buffer[1:].data.mem.ptr == buffer.data.mem.ptr
    assert (buffer + 1).tolist()[1][2] == 8 and is_of_cuda(buffer) and locate(buffer) == (buffer.data.ptr, 60)
    for gap in (buffer[:, 1:], Dlpack(buffer[:, ::2])):
        with pytest.raises(ValueError, match="'tensor'.*one piece"):
            locate(gap)
    assert locate(Dlpack(buffer)) == locate(buffer.T) == locate(buffer)


@gpu_only
def test_each_device_has_memory_of_its_own():
    try:
        for device in range(mscclpp.device_count()):
            mscclpp.set_device(device)
            assert arrays.cuda.runtime.getDevice() == device
            buffer, raw = GpuBuffer(8), RawGpuBuffer(64)
            assert buffer.device.id == buffer.data.mem.device_id == raw.device_id() == device
            # CuPy's own selection of a device counts here, too.
            arrays.cuda.Device(0).use()
            assert RawGpuBuffer(64).device_id() == 0
            fill(buffer, range(8))
            assert buffer.tolist() == list(range(8))
    finally:
        mscclpp.set_device(0)


def test_python_objects_are_not_put_into_device_memory():
    for dtype in (object, "O", [("one", object), ("other", int)]):
        with pytest.raises(TypeError, match="'dtype': .*Python objects"):
            GpuBuffer(4, dtype=dtype)
    with pytest.raises(TypeError, match="'shape': expected an int or several, got 'four'"):
        GpuBuffer("four")


def test_gpu_buffers_take_what_arrays_take():
    assert GpuBuffer(4).dtype == float and GpuBuffer(()).shape == ()
    assert GpuBuffer((2, 3), order="F").strides == (8, 16)
    assert GpuBuffer((2, 3), dtype="int8", strides=(8, 1)).data.mem.size >= 11
    assert GpuBuffer(0, dtype=numpy.int8).size == 0
    granularity = mscclpp.GpuBufferGranularity.AllocationMinimum
    assert GpuBuffer(4, granularity=granularity).shape == (4,)
    with pytest.raises(ValueError, match="shape"):
        GpuBuffer((2, -1))
    with pytest.raises(ValueError, match="strides"):
        GpuBuffer((2, 2), strides=(-8, 8))


def test_memory_lives_as_long_as_an_array_over_it():
    part = GpuBuffer(1000, dtype=numpy.int32)[500:]
    part[:] = 3
    GpuBuffer(1000, dtype=numpy.int32)[:] = 5
    assert set(part.tolist()) == {3}


def test_raw_buffers():
    raw = RawGpuBuffer(100)
    assert (raw.nelems(), raw.bytes(), raw.device_id()) == (100, 100, 0)
    assert locate(raw) == (raw.data(), 100)
    raw.write(b"abc", 10)
    assert raw.read(9, 5) == b"\0abc\0" and raw.read(98) == b"\0\0"
    with pytest.raises(mscclpp.Error, match="past the end of 100 bytes"):
        raw.write(b"abc", 98)
    assert hasattr(raw, "__cuda_array_interface__") == ON_GPU and hasattr(raw, "__array_interface__") != ON_GPU
    array = arrays.asarray(raw)
    array[10] = ord("x")
    assert raw.read(10, 1) == b"x"


def test_bytes_are_those_of_the_memory_whatever_the_numbers_are():
    raw = RawGpuBuffer(12)
    for numbers in (numpy.array([1, 2, 300], "int32"), numpy.array([1, 2, 3], "int32"), array.array("i", [3, 2, 1])):
        raw.write(numbers)
        assert raw.read() == numbers.tobytes()
    raw.write([1, 2, 255])
    assert raw.read(0, 3) == b"\1\2\xff"
    with pytest.raises(TypeError, match="such as bytes, or numbers from 0 to 255, got list"):
        raw.write([1, 2, 300])


def test_arrays_of_one_number_are_no_addresses():
    bootstrap = mscclpp.TcpBootstrap.create(0, 1)
    bootstrap.initialize(mscclpp.TcpBootstrap.create_unique_id())
    number = numpy.array(5)
    for wrong in (number, True):
        with pytest.raises(TypeError, match=f"it is {type(wrong).__name__}"):
            bootstrap.send(wrong, 8, 0, 1)
    bootstrap.send(numpy.uint64(number.ctypes.data), 8, 0, 1)
    assert bootstrap.recv(0, 1) == number.tobytes(), "a number of NumPy is an address"


def test_dlpack_copies_nothing_without_saying_so():
    raw = RawGpuBuffer(8)
    here = raw.__dlpack_device__()
    assert raw.__dlpack__(stream=None, max_version=(1, 0), dl_device=here, copy=False)
    for wrong in ({"copy": True}, {"dl_device": (here[0] + 1, 0)}):
        with pytest.raises(BufferError, match="and no copy"):
            raw.__dlpack__(**wrong)


@sim_only
def test_get_waits_for_the_device_that_has_the_buffer():
    mscclpp.set_device(1)
    try:
        out, stop = GpuBuffer(4, dtype=numpy.int32), RawGpuBuffer(4)
        ranks.kernel("plain.cu", "write_later").launch_kernel((stop, out, 4), 1, 1, 0, None)
    finally:
        mscclpp.set_device(0)
    threading.Timer(0.3, let_go, [stop]).start()
    assert out.get().tolist() == [0, 1, 2, 3]


def test_dlpack_gives_the_memory_in_any_shape():
    raw = RawGpuBuffer(96)
    array = arrays.from_dlpack(Exported(raw, "float32", [4, 6]))
    assert (array.shape, array.dtype, address(array)) == ((4, 6), numpy.float32, raw.data())
    assert arrays.from_dlpack(Exported(raw, "torch.int16", [6, 4], [1, 6])).strides == (2, 12)
    assert arrays.from_dlpack(raw).nbytes == 96 and arrays.from_dlpack(Exported(raw, "int64")).shape == (12,)
    with pytest.raises(mscclpp.Error, match="past the end of 96 bytes"):
        raw.to_dlpack("float32", [5, 5])
    with pytest.raises(mscclpp.Error, match="strides"):
        raw.to_dlpack("float32", [5, 5], [1])
    view = arrays.from_dlpack(Exported(RawGpuBuffer(8), "uint8"))
    assert view.tolist() == [0] * 8
    assert _of_dlpack(raw.to_dlpack("float8_e4m3fn", [4, 6])) == (raw.data(), 10, 8, [4, 6], [6, 1])
    raw.to_dlpack("uint8")  # a capsule that nobody takes over is freed


def test_arrays_of_all_libraries_are_found():
    array = numpy.arange(12, dtype=numpy.int16).reshape(3, 4)
    here = (array.ctypes.data, 24)
    cuda = {"shape": (2, 3), "typestr": "<f4", "data": (4096, False), "version": 3}
    assert locate(array) == locate(array.T) == locate(Dlpack(array)) == here
    assert locate(Interface(__array_interface__=array.__array_interface__)) == here
    assert locate(Interface(__cuda_array_interface__=cuda)) == (4096, 24)
    assert locate(array[1:]) == (array.ctypes.data + 8, 16)
    for gap in (array[:, 1:], Dlpack(array[:, ::2])):
        with pytest.raises(ValueError, match="'tensor'.*one piece"):
            locate(gap)
    with pytest.raises(TypeError, match="'tensor'.*list"):
        locate([1, 2])
    for dtype, size in (("datetime64[s]", 24), ("U5", 60), ("S5", 15)):
        other = numpy.zeros(3, dtype)
        assert locate(other) == (other.ctypes.data, size)
    with pytest.raises(TypeError, match="'tensor': the array has Python objects"):
        locate(numpy.array([None]))
    assert (
        is_of_cuda(Interface(__cuda_array_interface__=cuda)) and not is_of_cuda(array) and not is_of_cuda(Dlpack(array))
    )


def test_torch_tensors_are_found_without_torch():
    class Tensor:
        __module__ = "torch"
        is_cuda = False

        def __init__(self, strides=(3, 1)):
            self.shape, self.strides = (2, 3), strides

        def data_ptr(self):
            return 8192

        def numel(self):
            return 6

        def element_size(self):
            return 4

        def stride(self):
            return self.strides

    assert is_torch_tensor(Tensor()) and locate(Tensor()) == (8192, 24) and not is_of_cuda(Tensor())
    assert not is_torch_tensor(numpy.zeros(1)) and not is_torch_tensor(types.SimpleNamespace(data_ptr=1))
    assert locate(Tensor((1, 2))) == (8192, 24), "in another order"
    with pytest.raises(ValueError, match="one piece"):
        locate(Tensor((4, 1)))


def test_addresses_are_read_and_written():
    memory = (ctypes.c_uint64 * 2)()
    assert locate(numpy.ctypeslib.as_array(memory)) == (ctypes.addressof(memory), 16)
