"""Kernels: compiling, packing arguments, launching, waiting."""

import ctypes
import os
import time
import types

import mscclpp
import numpy
import pytest
from mscclpp.utils import Kernel, KernelBuilder, get_device_arch, pack, torch_dtype_to_mscclpp_dtype

import ranks
from device import ON_GPU, let_go, sim_only


@pytest.fixture
def out():
    return mscclpp.GpuBuffer(8, dtype=numpy.uint64)


def test_arguments_of_every_kind_arrive(out):
    fifo = mscclpp.Fifo()
    handle = fifo.device_handle()
    params = pack(3, -4, handle.raw, out, ctypes.c_char(b"A"))
    params += bytes(7) + pack(ctypes.c_double(2.5), ctypes.c_float(1.25), True)
    ranks.kernel("plain.cu", "show", EXTRA=11).launch_kernel(params, 1, 1, 0, None)
    mscclpp.synchronize(60)
    assert out.tolist() == [3, 2**64 - 4, handle.head, 65, 10, 5, 1, 1011]


def test_raw_handles_are_concatenated_without_padding(out):
    handle = mscclpp.Fifo(16).device_handle()
    assert handle.size == 16
    ranks.kernel("plain.cu", "packed", EXTRA=0).launch_kernel(pack(1, 2, handle.raw, out), 1, 1, 0, None)
    mscclpp.synchronize(60)
    assert out.tolist()[:3] == [1, 2, handle.head]


def test_arguments_of_the_wrong_size_are_refused(out):
    kernel = ranks.kernel("plain.cu", "packed", EXTRA=0)
    with pytest.raises(mscclpp.Error, match=r"packed: its parameters have \[4, 4, \d+, 8\] bytes"):
        kernel.launch_kernel(bytes(pack(1, out)), 1, 1, 0, None)
    with pytest.raises(mscclpp.Error, match="1024"):
        kernel.launch_kernel(pack(1, 2, mscclpp.Fifo().device_handle().raw, out), 1, 4096, 0, None)


LAYOUT = """
extern "C" __global__ void end_in_int(unsigned long long* out, int n) { *out = n; }
extern "C" __global__ void two_bools(bool first, bool second, unsigned long long* out) { *out = 2 * first + second; }
struct Pair { int first, second; };
extern "C" __global__ void gap(int n, unsigned long long* out, Pair pair) { *out = n + pair.first + pair.second; }
"""


def test_pack_knows_how_many_parameters_the_kernel_has(tmp_path, out):
    (tmp_path / "layout.cu").write_text(LAYOUT)

    def launch(name, *args):
        KernelBuilder("layout.cu", name, str(tmp_path)).get_compiled_kernel().launch_kernel(pack(*args), 1, 1, 0, None)
        mscclpp.synchronize(60)
        return int(out[0])

    # A struct of the parameters has 16 bytes, and the last 4 of them would be lost.
    words = (
        r"end_in_int: it has 2 parameters, of \[8, 4\] bytes .*given 3 arguments, of \[8, 4, 4\] bytes \(16 in all\)"
    )
    with pytest.raises(mscclpp.Error, match=words):
        launch("end_in_int", out, 1, 2)
    with pytest.raises(mscclpp.Error, match=r"given 1 argument, of \[8\] bytes"):
        launch("end_in_int", out)
    assert launch("end_in_int", out, 7) == 7
    with pytest.raises(mscclpp.Error, match="it has 3 parameters.*given 3 arguments"):
        launch("two_bools", True, False, out)
    # A gap may be filled, and a struct may be given in parts, or as bytes.
    assert launch("gap", 1, 0, out, 20, 300) == launch("gap", 1, b"fill", out, pack(20, 300)) == 321
    with pytest.raises(mscclpp.Error, match="it has 3 parameters.*given 2 arguments"):
        launch("gap", out, ctypes.create_string_buffer(16))
    assert pack(1) + pack(2) == pack(1, 2) and pack(1, 2) == b"\1\0\0\0\2\0\0\0"


@sim_only
def test_memory_of_the_host_is_no_argument_of_a_kernel(out):
    kernel, array = ranks.kernel("plain.cu", "packed", EXTRA=0), numpy.zeros(8, dtype=numpy.uint64)
    for launch in (
        lambda: kernel.launch_kernel((1, 2, mscclpp.Fifo(), array), 1, 1, 0, None),
        lambda: pack(1, 2, mscclpp.Fifo(), out + 1),
    ):
        with pytest.raises(ValueError, match="argument 3 .*of .*memory of the host .numpy.ndarray.*mscclpp.GpuBuffer"):
            launch()
    kernel.launch_kernel((1, 2, mscclpp.Fifo(), out[::2]), 1, 1, 0, None)
    mscclpp.synchronize(60)
    assert len(pack(numpy.zeros(0))) == 8, "nothing is read of it"


def test_arguments_are_given_one_by_one(out):
    """Each argument takes the size of its parameter, and they have the gaps between them that it needs."""
    kernel = ranks.kernel("plain.cu", "show", EXTRA=11)
    fifo = mscclpp.Fifo()
    kernel.launch_kernel((3, -4, fifo, out, b"A", ctypes.c_double(2.5), ctypes.c_float(1.25), True), 1, 1, 0, None)
    mscclpp.synchronize(60)
    assert out.tolist() == [3, 2**64 - 4, fifo.device_handle().head, 65, 10, 5, 1, 1011]
    kernel.launch_kernel(
        [2**31 - 1, 0, fifo.device_handle(), out, 66, numpy.float64(1), numpy.float32(0), 0], 1, 1, 0, None
    )
    mscclpp.synchronize(60)
    assert out.tolist()[3:] == [66, 4, 0, 0, 1011]


@pytest.mark.parametrize(
    ("place", "wrong", "words"),
    [
        (0, 2**32, "argument 0 .first. of packed is 4294967296, and its parameter has 4 bytes"),
        (1, 1.5, "argument 1 .second. of packed is a float"),
        (2, b"short", "argument 2 .fifo. of packed has 5 bytes .bytes., and its parameter has"),
        (3, mscclpp.MemoryChannel(), "empty"),
        (3, object(), "3 .out. of packed.*object"),
        (3, ctypes.c_int(1), "argument 3 .out. of packed has 4 bytes .c_int., and its parameter has 8"),
    ],
)
def test_a_wrong_argument_is_named(out, place, wrong, words):
    args = [1, 2, mscclpp.Fifo(), out]
    args[place] = wrong
    with pytest.raises((TypeError, OverflowError, mscclpp.Error), match=words):
        ranks.kernel("plain.cu", "packed", EXTRA=0).launch_kernel(tuple(args), 1, 1, 0, None)
    with pytest.raises(TypeError, match=r"packed takes 4 arguments \(first, second, fifo, out\), and 3 are given"):
        ranks.kernel("plain.cu", "packed", EXTRA=0).launch_kernel(tuple(args[:3]), 1, 1, 0, None)


def test_arguments_live_until_the_kernel_has_ended():
    class Argument:
        """An array that notes when it is dropped."""

        def __init__(self, array):
            name = "__cuda_array_interface__" if ON_GPU else "__array_interface__"
            self.array = array
            setattr(self, name, getattr(array, name))

        def __del__(self):
            gone.append(True)

    gone = []
    stop = mscclpp.RawGpuBuffer(4)
    kernel = ranks.kernel("plain.cu", "write_later", EXTRA=0)
    kernel.launch_kernel((stop, Argument(mscclpp.GpuBuffer(100, dtype=numpy.int32)), 100), 1, 1, 0, None)
    time.sleep(0.1)
    assert gone == []
    let_go(stop)
    mscclpp.synchronize(60)
    deadline = time.monotonic() + 30
    while gone == [] and time.monotonic() < deadline:
        # Objects that a thread without the interpreter has released are dropped at the next call.
        mscclpp.TransportFlags()
        time.sleep(0.01)
    assert gone == [True]


def test_a_kept_tuple_is_prepared_once_while_its_launches_run(out):
    blocks = [1, 1, 1]
    stop, kernel = mscclpp.RawGpuBuffer(4), ranks.kernel("plain.cu", "packed", EXTRA=0)
    fifo, number = mscclpp.Fifo(), ctypes.c_int(2)

    def again(params):
        return kernel._kernel.launch_again(params, blocks, blocks, 0, None)

    kept = (1, numpy.int32(2), fifo, out)
    assert not again(kept), "it was not launched yet"
    ranks.kernel("plain.cu", "spin", EXTRA=0).launch_kernel((stop,), 1, 1, 0, None)
    kernel.launch_kernel(kept, 1, 1, 0, None)
    assert again(kept) and again(kept)
    assert not again((*kept,)[:3] + (out,)), "another tuple"
    # The bytes of ctypes objects can change.
    changing = (1, number, fifo, out)
    kernel.launch_kernel(changing, 1, 1, 0, None)
    number.value = 7
    assert not again(changing)
    kernel.launch_kernel(changing, 1, 1, 0, None)
    kernel.launch_kernel(kept, 1, 1, 0, None)
    fifo.close()
    assert not again(kept)
    with pytest.raises(mscclpp.Error, match="closed"):
        kernel.launch_kernel(kept, 1, 1, 0, None)
    kernel.launch_kernel((1, number, mscclpp.Fifo(), out), 1, 1, 0, None)
    let_go(stop)
    mscclpp.synchronize(60)
    assert out[1] == 7


def test_a_tensor_that_moved_is_found(out):
    class Tensor:
        """An object with the attributes of a PyTorch tensor."""

        is_cuda = True

        def __init__(self, array):
            self.array = array

        def data_ptr(self):
            return self.array.data.ptr

        def numel(self):
            return self.array.size

        def element_size(self):
            return self.array.itemsize

    Tensor.__module__ = "torch"
    stop, other = mscclpp.RawGpuBuffer(4), mscclpp.GpuBuffer(8, dtype=numpy.uint64)
    kernel, tensor = ranks.kernel("plain.cu", "packed", EXTRA=0), Tensor(out)
    ranks.kernel("plain.cu", "spin", EXTRA=0).launch_kernel((stop,), 1, 1, 0, None)
    kept = (1, 2, mscclpp.Fifo(), tensor)
    kernel.launch_kernel(kept, 1, 1, 0, None)
    assert kernel._kernel.launch_again(kept, [1, 1, 1], [1, 1, 1], 0, None)
    tensor.array = other
    kernel.launch_kernel(kept, 1, 1, 0, None)
    let_go(stop)
    mscclpp.synchronize(60)
    assert other[1] == 2


class OfProtocol:
    def __cuda_stream__(self):
        return 0, 0


@pytest.mark.parametrize(
    "stream", [None, 0, types.SimpleNamespace(ptr=0), types.SimpleNamespace(cuda_stream=0), OfProtocol()]
)
def test_streams_of_all_libraries_are_taken(out, stream):
    ranks.kernel("plain.cu", "packed", EXTRA=0).launch_kernel((1, 2, mscclpp.Fifo(), out), 1, 1, 0, stream)
    mscclpp.synchronize(60)
    assert out[1] == 2


def test_what_is_no_stream_is_refused(out):
    with pytest.raises(TypeError, match="'stream'.*'side'"):
        ranks.kernel("plain.cu", "packed", EXTRA=0).launch_kernel((1, 2, mscclpp.Fifo(), out), 1, 1, 0, "side")


def test_blocks_threads_and_shared_memory():
    out = mscclpp.GpuBuffer(4 * 6, dtype=numpy.int32)
    kernel = ranks.kernel("plain.cu", "indices", EXTRA=0)
    kernel.launch_kernel(pack(out), (2, 2), (3, 2), 4 * 6, None)
    mscclpp.synchronize(60)
    assert out.tolist() == [100 * block + thread for block in range(4) for thread in range(6)]


def test_what_does_not_compile_says_where(tmp_path):
    (tmp_path / "broken.cu").write_text('extern "C" __global__ void broken(int* p) {\n  nonsense;\n}\n')
    with pytest.raises(mscclpp.Error, match=r"broken\.cu[:(]2.*nonsense"):
        KernelBuilder("broken.cu", "broken", str(tmp_path)).get_compiled_kernel()
    with pytest.raises(mscclpp.Error, match='no kernel named "missing".*indices'):
        KernelBuilder("plain.cu", "missing", ranks.KERNELS, {"EXTRA": 1}).get_compiled_kernel()
    with pytest.raises(FileNotFoundError, match="nowhere.cu"):
        KernelBuilder("nowhere.cu", "missing", ranks.KERNELS)
    for code in (b".version 8.4", b"\x7fELFbinary"):
        with pytest.raises(RuntimeError, match="the code of x.*neither|PTX of x|'cubin'.*sim"):
            Kernel(code, "x")
    beside_this_file = KernelBuilder(os.path.join("kernels", "plain.cu"), "packed", macro_dict={"EXTRA": 1})
    assert beside_this_file.get_compiled_kernel()
    assert KernelBuilder(
        os.path.join(ranks.KERNELS, "plain.cu"), "packed", macro_dict={"EXTRA": 1}
    ).get_compiled_kernel()


OTHER = 'extern "C" __global__ void other(unsigned long long* out) { *out = NUMBER; }\n'


def test_kernels_of_macros_and_headers_with_large_parameters(tmp_path):
    (tmp_path / "made.hpp").write_text("""
struct Many { unsigned int numbers[900]; };
#define KERNEL(NAME, FACTOR) \\
  extern "C" __global__ void NAME##_of_many(char before, Many many, unsigned long long* out) { \\
    *out = FACTOR * many.numbers[899] + before; \\
  }
""")
    (tmp_path / "made.cu").write_text('#include "made.hpp"\nKERNEL(one, 1)\nKERNEL(two, 2)\n')
    (tmp_path / "alone.cu").write_text('#include "other.hpp"\n')
    (tmp_path / "other.hpp").write_text('#include "sub/number.hpp"\n' + OTHER)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "number.hpp").write_text('#include "beside.hpp"\n')
    (tmp_path / "sub" / "beside.hpp").write_text("#define NUMBER 17\n")
    out, many = mscclpp.GpuBuffer(1, dtype=numpy.uint64), numpy.zeros(900, dtype=numpy.uint32)
    many[899] = 1000
    for name, expected in (("one_of_many", 1005), ("two_of_many", 2005)):
        kernel = KernelBuilder("made.cu", name, str(tmp_path)).get_compiled_kernel()
        kernel.launch_kernel((5, many.tobytes(), out), 1, 1, 0, None)
        mscclpp.synchronize(60)
        assert out[0] == expected
    KernelBuilder("alone.cu", "other", str(tmp_path)).get_compiled_kernel().launch_kernel((out,), 1, 1, 0, None)
    mscclpp.synchronize(60)
    assert out[0] == 17


@sim_only
@pytest.mark.parametrize("macros", [None, {"FOUR": 4}, {"FOUR": 4, "FIVE": 5}])
def test_an_error_of_the_compiler_quotes_the_line_that_it_is_about(tmp_path, macros):
    text = '#include <cstdint>\n#include "own.hpp"\n\nextern "C" __global__ void wrong() {\n  nothing = 1;\n}\n'
    (tmp_path / "wrong.cu").write_text(text)
    (tmp_path / "own.hpp").write_text("\nstruct Own {};\n")
    (tmp_path / "absent.cu").write_text("\n#include <absent.h>\n")
    for name, line, quoted in [("wrong.cu", 5, "  nothing = 1;"), ("absent.cu", 2, "#include <absent.h>")]:
        with pytest.raises(mscclpp.Error, match=f"{name} did not compile") as caught:
            KernelBuilder(name, "wrong", str(tmp_path), macros).get_compiled_kernel()
        said = str(caught.value)
        assert f"\n{name}:{line}:" in said and f"{quoted}\n" in said, said
        assert said.count("error:") == 1, said


def test_a_wait_for_a_kernel_has_a_bound():
    stop = mscclpp.RawGpuBuffer(4)
    ranks.kernel("plain.cu", "spin", EXTRA=0).launch_kernel(pack(stop), 1, 1, 0, None)
    with pytest.raises(mscclpp.Error, match="did not finish within 200ms") as caught:
        mscclpp.synchronize(0.2)
    assert caught.value.code == mscclpp.ErrorCode.Timeout
    let_go(stop)
    mscclpp.synchronize(60)


def device_memory():
    """Returns the addresses of this process's device memory."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return {line.split()[0] for line in maps if "memfd:mscclpp-sim-" in line}


@sim_only
def test_memory_outlives_the_kernels_that_work_on_it():
    kernel = ranks.kernel("plain.cu", "write_later", EXTRA=0)
    mscclpp.synchronize(60)
    stop = mscclpp.RawGpuBuffer(4)
    before = device_memory()
    for n in (100_000, 200_000):
        # Dropped before the launch.
        kernel.launch_kernel(pack(stop, mscclpp.GpuBuffer(n, dtype=numpy.int32), n), 1, 1, 0, None)
    dropped_later = mscclpp.GpuBuffer(300_000, dtype=numpy.int32)
    kernel.launch_kernel(pack(stop, dropped_later, 300_000), 1, 1, 0, None)
    del dropped_later
    array = numpy.from_dlpack(mscclpp.RawGpuBuffer(4096))
    del array
    assert len(device_memory() - before) >= 3
    let_go(stop)
    mscclpp.synchronize(60)
    assert device_memory() <= before


@sim_only
def test_memory_that_was_dropped_is_freed_when_more_is_asked_for():
    mscclpp.synchronize(60)
    before = device_memory()
    for _ in range(50):
        mscclpp.RawGpuBuffer(1 << 20)
    assert len(device_memory() - before) <= 1


def test_pack_says_what_it_cannot_pack():
    assert pack(1, True, -1) == b"\1\0\0\0\1\0\0\0\xff\xff\xff\xff"
    assert pack(2**32 - 1) == b"\xff" * 4 and pack(ctypes.c_size_t(2**32)) == (2**32).to_bytes(8, "little")
    assert pack(numpy.float32(1), numpy.int64(-1), b"raw") == numpy.float32(1).tobytes() + b"\xff" * 8 + b"raw"
    array, raw = mscclpp.GpuBuffer(3), mscclpp.RawGpuBuffer(16)
    assert pack(array, raw) == array.data.ptr.to_bytes(8, "little") + raw.data().to_bytes(8, "little")
    assert pack(mscclpp.Fifo(16)) != pack(mscclpp.Fifo(16)) and len(pack(mscclpp.Fifo())) % 8 == 0
    assert pack(array[::2]) == pack(array), "an address, wherever the other elements are"
    with pytest.raises(OverflowError, match="c_size_t"):
        pack(2**32)
    with pytest.raises(TypeError, match="c_float"):
        pack(1.5)
    with pytest.raises(TypeError, match=r"argument 1 of pack\(\): expected an array"):
        pack(1, object())


def test_what_the_device_is_called():
    assert get_device_arch().startswith("sm_" if ON_GPU else "sim")

    class Dtype:
        def __repr__(self):
            return "torch.bfloat16"

    assert torch_dtype_to_mscclpp_dtype(Dtype()) == mscclpp.DataType.bfloat16
    with pytest.raises(ValueError, match="complex"):
        torch_dtype_to_mscclpp_dtype("torch.complex64")
