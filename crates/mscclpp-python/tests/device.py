"""Device memory in tests: CuPy's arrays on GPUs, NumPy's on simulated devices."""

import ctypes
import os

import mscclpp
import numpy
import pytest

ON_GPU = os.environ.get("MSCCLPP_PLATFORM", "").lower() == "cuda"

#: Marks for tests that use properties of simulated devices only, and for tests of GPUs.
sim_only = pytest.mark.skipif(ON_GPU, reason="of simulated devices")
gpu_only = pytest.mark.skipif(not ON_GPU, reason="there is no GPU, or no CuPy")

if ON_GPU:
    import cupy as arrays
else:
    arrays = numpy


def fill(buffer, values):
    """Copies values from the host, and waits until they are there."""
    buffer.set(numpy.asarray(values, dtype=buffer.dtype))
    mscclpp.synchronize(60)


def let_go(stop):
    """Tells a kernel that waits for this `RawGpuBuffer` to go on. A later call in the same stream could not."""
    stop.write(b"\1\0\0\0")


def read(address, size):
    """Returns bytes of device memory."""
    if not ON_GPU:
        return ctypes.string_at(address, size)
    memory = arrays.cuda.UnownedMemory(address, size, None)
    return arrays.ndarray(size, numpy.uint8, arrays.cuda.MemoryPointer(memory, 0)).get().tobytes()


def memset(address, value, size):
    """Writes the same byte into all of some device memory."""
    if ON_GPU:
        arrays.cuda.runtime.memset(address, value, size)
        arrays.cuda.runtime.deviceSynchronize()
    else:
        ctypes.memset(address, value, size)


def address(array):
    """Returns the address of an array."""
    return array.data.ptr if ON_GPU else array.ctypes.data


class Exported:
    """A buffer for another library, as elements of the type and in the shape of the arguments of `to_dlpack`."""

    def __init__(self, raw, *args):
        self.capsule, self.device = raw.to_dlpack(*args), raw.__dlpack_device__()

    def __dlpack__(self, **_):
        return self.capsule

    def __dlpack_device__(self):
        return self.device


class Interface:
    """An array that has only these attributes, such as `__array_interface__`."""

    def __init__(self, **interface):
        self.__dict__.update(interface)


class Dlpack:
    """An array that has only DLPack."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **_):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()
