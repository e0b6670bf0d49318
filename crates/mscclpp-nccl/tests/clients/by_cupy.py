"""Uses CuPy's `cupy.cuda.nccl`: one thread for each communicator, and one thread for those of all GPUs. Then all GPUs use memory
of `ncclMemAlloc`.

    by_cupy.py RANKS

The environment decides which NCCL is used: LD_PRELOAD=.../libnccl.so puts this project's library in front.
"""

import ctypes
import sys
import threading

import cupy
from cupy.cuda import nccl


def check(comm, rank, ranks):
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        total = ranks * (ranks + 1) // 2
        for dtype, code in [("f", nccl.NCCL_FLOAT32), ("d", nccl.NCCL_FLOAT64), ("l", nccl.NCCL_INT64), ("e", nccl.NCCL_FLOAT16)]:
            send, recv = cupy.full(1000, rank + 1, dtype), cupy.zeros(1000, dtype)
            comm.allReduce(send.data.ptr, recv.data.ptr, 1000, code, nccl.NCCL_SUM, stream.ptr)
            assert (recv == total).all(), recv
        send, recv = cupy.full(1000, rank + 1, "f"), cupy.zeros(1000, "f")
        comm.reduce(send.data.ptr, recv.data.ptr, 1000, nccl.NCCL_FLOAT32, nccl.NCCL_MAX, 0, stream.ptr)
        assert rank != 0 or (recv == ranks).all()
        gathered = cupy.zeros(1000 * ranks, "f")
        comm.allGather(send.data.ptr, gathered.data.ptr, 1000, nccl.NCCL_FLOAT32, stream.ptr)
        assert all((gathered[1000 * r : 1000 * (r + 1)] == r + 1).all() for r in range(ranks))
        comm.reduceScatter(gathered.data.ptr, recv.data.ptr, 1000, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, stream.ptr)
        assert (recv == ranks * (rank + 1)).all()
        comm.broadcast(send.data.ptr, recv.data.ptr, 1000, nccl.NCCL_FLOAT32, ranks - 1, stream.ptr)
        assert (recv == ranks).all()
        comm.bcast(send.data.ptr, 1000, nccl.NCCL_FLOAT32, 0, stream.ptr)
        assert (send == 1).all()
        nccl.groupStart()
        comm.send(send.data.ptr, 1000, nccl.NCCL_FLOAT32, (rank + 1) % ranks, stream.ptr)
        comm.recv(recv.data.ptr, 1000, nccl.NCCL_FLOAT32, (rank - 1) % ranks, stream.ptr)
        nccl.groupEnd()
        assert (recv == 1).all()
        stream.synchronize()
    comm.check_async_error()
    assert (comm.rank_id(), comm.size(), comm.device_id()) == (rank, ranks, rank)


def of_threads(ranks):
    unique_id, failed = nccl.get_unique_id(), []

    def run(rank):
        try:
            cupy.cuda.Device(rank).use()
            comm = nccl.NcclCommunicator(ranks, unique_id, rank)
            check(comm, rank, ranks)
            comm.destroy()
        except BaseException as error:
            failed.append((rank, error))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed


def of_one_thread(ranks):
    comms = nccl.NcclCommunicator.initAll(ranks)
    arrays, streams = [], []
    for rank in range(ranks):
        with cupy.cuda.Device(rank):
            streams.append(cupy.cuda.Stream(non_blocking=True))
            arrays.append(cupy.full(1000, rank + 1, "f"))
            cupy.cuda.Device(rank).synchronize()
    nccl.groupStart()
    for comm, array, stream in zip(comms, arrays, streams):
        comm.allReduce(array.data.ptr, array.data.ptr, 1000, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, stream.ptr)
    nccl.groupEnd()
    for rank, (array, stream) in enumerate(zip(arrays, streams)):
        stream.synchronize()
        with cupy.cuda.Device(rank):
            assert (array == ranks * (ranks + 1) // 2).all()
    for comm in comms:
        comm.destroy()


def reached_by_all_devices(ranks):
    """Every device writes and reads memory that ncclMemAlloc has allocated on each."""
    library = ctypes.CDLL("libnccl.so.2")
    for owner in range(ranks):
        memory = ctypes.c_void_p()
        with cupy.cuda.Device(owner):
            assert library.ncclMemAlloc(ctypes.byref(memory), ctypes.c_size_t(4000)) == 0
        for device in range(ranks):
            with cupy.cuda.Device(device):
                reached = cupy.cuda.UnownedMemory(memory.value, 4000, None, device)
                array = cupy.ndarray(1000, "f", cupy.cuda.MemoryPointer(reached, 0))
                array[...] = device + 1
                assert (array == device + 1).all()
        assert library.ncclMemFree(memory) == 0


def main():
    ranks = int(sys.argv[1])
    print(f"NCCL {nccl.get_version()}")
    of_threads(ranks)
    of_one_thread(ranks)
    reached_by_all_devices(ranks)
    print(f"{ranks} ranks: all as expected")


if __name__ == "__main__":
    main()
