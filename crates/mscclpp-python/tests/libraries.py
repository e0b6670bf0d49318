"""Libraries of arrays with a common interface for tests: PyTorch and CuPy on GPUs, PyTorch and NumPy on simulated
devices.
"""

import importlib.util

import mscclpp
import numpy
import pytest
from mscclpp import CommGroup

from device import ON_GPU, Exported


def usable():
    """Returns the names of the libraries that are installed, for `pytest.mark.parametrize`."""
    return [
        pytest.param(
            name, marks=pytest.mark.skipif(not _is_usable(name), reason=f"there is no {name} for these devices")
        )
        for name in ("torch", "cupy", "numpy")
    ]


def _is_usable(name):
    if importlib.util.find_spec(name) is None or name == ("numpy" if ON_GPU else "cupy"):
        return False
    if name != "torch" or not ON_GPU:
        return True
    import torch

    return torch.cuda.is_available()


def of(name):
    """Returns the library with that name, in a rank's process."""
    return {"torch": Torch, "cupy": CuPy, "numpy": NumPy}[name]()


class NumPy:
    """Simulated devices, which capture nothing: the calls are repeated instead of replayed."""

    def group(self, rank, n, address, other_address):
        return CommGroup(interfaceIpPortTrio=address, rank=rank, size=n)

    def of_raw(self, raw):
        """Returns the memory of a `RawGpuBuffer` as an array."""
        return numpy.from_dlpack(Exported(raw, "float16"))

    def empty(self, count, dtype):
        return numpy.empty(count, dtype)

    def fill(self, x, value):
        x[...] = value

    def address(self, x):
        return x.ctypes.data

    def stream(self):
        return 0

    def synchronize(self):
        mscclpp.synchronize(60)

    def captured(self, work):
        return work

    def host(self, x):
        """Returns a copy of an array when all work is done."""
        self.synchronize()
        return numpy.array(x)


class CuPy(NumPy):
    def __init__(self):
        import cupy

        self.cupy, self.side = cupy, cupy.cuda.Stream(non_blocking=True)

    def of_raw(self, raw):
        return self.cupy.from_dlpack(Exported(raw, "float16"))

    def empty(self, count, dtype):
        return self.cupy.empty(count, dtype)

    def fill(self, x, value):
        x[...] = self.cupy.asarray(value, dtype=x.dtype)

    def address(self, x):
        return x.data.ptr

    def stream(self):
        return self.cupy.cuda.get_current_stream().ptr

    def synchronize(self):
        self.cupy.cuda.runtime.deviceSynchronize()

    def captured(self, work):
        self.synchronize()
        with self.side:
            self.side.begin_capture()
            work()
            graph = self.side.end_capture()
        return lambda: graph.launch(self.side)

    def host(self, x):
        self.synchronize()
        return x.get()


class Torch(NumPy):
    def __init__(self):
        import torch

        self.torch, self.device = torch, f"cuda:{torch.cuda.current_device()}" if ON_GPU else "cpu"

    def group(self, rank, n, address, other_address):
        import torch.distributed as dist

        dist.init_process_group("gloo", init_method=f"tcp://{other_address}", rank=rank, world_size=n)
        return CommGroup(torch_group=dist.group.WORLD)

    def of_raw(self, raw):
        return self.torch.utils.dlpack.from_dlpack(raw.to_dlpack(data_type="torch.float16"))

    def empty(self, count, dtype):
        return self.torch.empty(count, dtype=getattr(self.torch, dtype), device=self.device)

    def fill(self, x, value):
        numbers = numpy.broadcast_to(numpy.asarray(value, str(x.dtype).removeprefix("torch.")), tuple(x.shape))
        x.copy_(self.torch.from_numpy(numbers.copy()))

    def address(self, x):
        return x.data_ptr()

    def stream(self):
        return self.torch.cuda.current_stream().cuda_stream if ON_GPU else 0

    def synchronize(self):
        if ON_GPU:
            self.torch.cuda.synchronize()
        else:
            mscclpp.synchronize(60)

    def captured(self, work):
        if not ON_GPU:
            return work
        self.synchronize()
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            work()
        return graph.replay

    def host(self, x):
        self.synchronize()
        return x.cpu().numpy()
