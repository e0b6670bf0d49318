"""Device memory in tests: CuPy's arrays on GPUs, NumPy's on simulated devices."""

import ctypes
import os

import mscclpp
import numpy
import pytest

ON_GPU = os.environ.get("MSCCLPP_PLATFORM", "").lower() == "cuda"

#: For tests that look at simulated devices in ways that GPUs do not have, and for those of GPUs.
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
    """Tells a kernel that waits for this `RawGpuBuffer` to go on. What is behind it on its stream could not."""
    stop.write(b"\1\0\0\0")


def read(address, size):
    """Bytes of device memory."""
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
    """Where an array begins."""
    return array.data.ptr if ON_GPU else array.ctypes.data


class Exported:
    """A buffer that is given to another library, as elements of the type and in the shape that `to_dlpack` is told."""

    def __init__(self, raw, *args):
        self.capsule, self.device = raw.to_dlpack(*args), raw.__dlpack_device__()

    def __dlpack__(self, **_):
        return self.capsule

    def __dlpack_device__(self):
        return self.device
