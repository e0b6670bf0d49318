"""An all_reduce of two ranks by NCCL's functions, on simulated devices: MSCCLPP_PLATFORM=sim python nccl_ranks.py"""

# ANCHOR: program
import ctypes
from concurrent.futures import ThreadPoolExecutor

import mscclpp.nccl  # noqa: F401 (from here on, libnccl.so.2 is that of this package)

nccl = ctypes.CDLL("libnccl.so.2")
nccl.ncclGetLastError.restype = ctypes.c_char_p
F32, SUM = 7, 0


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


def check(code: int) -> None:
    if code != 0:
        raise RuntimeError(nccl.ncclGetLastError(None).decode())


def main(rank: int) -> None:
    comm, memory = ctypes.c_void_p(), ctypes.c_void_p()
    check(nccl.mscclppSimSetDevice(rank))  # cudaSetDevice on GPUs
    check(nccl.ncclCommInitRank(ctypes.byref(comm), 2, job, rank))
    check(nccl.ncclMemAlloc(ctypes.byref(memory), ctypes.c_size_t(4 * 1024)))
    assert memory.value is not None
    numbers = (ctypes.c_float * 1024).from_address(memory.value)  # simulated device memory is memory of the process
    numbers[:] = [1.0 + rank] * 1024
    check(nccl.ncclAllReduce(memory, memory, ctypes.c_size_t(1024), F32, SUM, comm, None))
    check(nccl.mscclppSimStreamSynchronize(None))  # cudaStreamSynchronize on GPUs
    print(f"rank {rank}: every sum is {numbers[0]:g}", flush=True)
    check(nccl.ncclCommDestroy(comm))


job = UniqueId()
check(nccl.ncclGetUniqueId(ctypes.byref(job)))
with ThreadPoolExecutor(2) as threads:
    list(threads.map(main, range(2)))  # raises what a rank has raised
# ANCHOR_END: program
