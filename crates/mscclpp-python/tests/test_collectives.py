"""`Collectives`, on arrays of NumPy on simulated devices and of CuPy on GPUs."""

import os

import mscclpp
import numpy
import pytest
from mscclpp import Collectives, CommGroup

import ranks

N = 3


def arrays():
    if os.environ["MSCCLPP_PLATFORM"] == "host":
        return numpy
    import cupy

    return cupy


def joined(rank, n, address, **options):
    return Collectives(CommGroup(interfaceIpPortTrio=address, rank=rank, size=n), max_blocks=4, **options)


def numbers(library, rank, count, dtype="float32"):
    return library.arange(count, dtype=dtype) + library.asarray(rank, dtype=dtype)


def every_kind(rank, n, address):
    library, comm = arrays(), joined(rank, n, address)
    assert (comm.rank, comm.size) == (rank, n) and f"rank {rank} of {n}" in repr(comm)
    for dtype in ("float16", "float32", "float64", "int8", "uint8", "int32", "int64"):
        mine = numbers(library, rank, 30, dtype)
        each = [numpy.arange(30).astype(dtype) + numpy.asarray(r, dtype) for r in range(n)]

        def got(array, expected):
            comm.synchronize()
            array = numpy.asarray(array.get() if hasattr(array, "get") else array)
            assert array.dtype == dtype and numpy.array_equal(array, numpy.asarray(expected, dtype)), (array, expected)

        summed = sum(each[1:], each[0])
        out = library.empty_like(mine)
        assert comm.all_reduce(mine, out=out) is out
        got(out, summed)
        got(comm.all_reduce(mine.copy(), "max"), each[-1])
        got(comm.all_reduce(mine.copy(), ("premul_sum", 2.0)), summed * 2)
        gathered = comm.all_gather(mine)
        assert gathered.shape == (n, 30)
        got(gathered, each)
        got(comm.reduce_scatter(mine), summed[rank * 10 : rank * 10 + 10])
        got(comm.all_to_all(mine), numpy.concatenate([e[rank * 10 : rank * 10 + 10] for e in each]))
        got(comm.broadcast(mine.copy(), 1), each[1])
        reduced = comm.reduce(mine.copy(), 2)
        if rank == 2:
            got(reduced, summed)
        all_of_them = comm.gather(mine, 0)
        if rank == 0:
            got(all_of_them, each)
        got(comm.scatter(mine, 1, out=library.empty(10, dtype)), each[1][rank * 10 : rank * 10 + 10])
        theirs = library.empty_like(mine)
        with comm.group():
            comm.send(mine, (rank + 1) % n)
            comm.recv(theirs, (rank - 1) % n)
        got(theirs, each[(rank - 1) % n])
        comm.barrier()
    comm.synchronize()
    part = comm.split(0 if rank != 1 else None)
    assert (part is None) == (rank == 1)
    if part is not None:
        one = library.ones(5, "float32")
        part.all_reduce(one)
        part.synchronize()
        assert (one == 2).all() and part.size == 2
    gathered = mscclpp.GpuBuffer((n, 30), dtype=dtype)
    with comm.register(gathered, symmetric=True):
        got(comm.all_gather(mine, gathered), each)
    comm.close()
    with pytest.raises(mscclpp.Error, match="closed"):
        comm.barrier()


def test_every_kind_with_every_type():
    ranks.run(N, every_kind)


def raw_requests(rank, n, address):
    library, comm = arrays(), joined(rank, n, address)
    address_of = (lambda a: a.data.ptr) if library is not numpy else (lambda a: a.ctypes.data)
    counts = [2, 0, 3]
    mine, gathered = numbers(library, 10 * rank, counts[rank], "int64"), library.empty(5, "int64")
    given = library.asarray([rank * 10 + to for to in range(n) for _ in range(to + 1)], dtype="int64")
    taken = library.empty((rank + 1) * n, "int64")
    comm.enqueue(
        [
            ("all_gather_v", address_of(mine), address_of(gathered), counts, "int64", "sum", 0),
            ("all_to_all_v", address_of(given), address_of(taken), ([1, 2, 3], [rank + 1] * n), "int64", "sum", 0),
        ],
        0,
    )
    comm.synchronize()
    assert gathered.tolist() == [0, 1, 20, 21, 22]
    assert taken.tolist() == [10 * r + rank for r in range(n) for _ in range(rank + 1)]


def test_counts_that_differ_by_rank():
    ranks.run(N, raw_requests)


def wrong_arguments(rank, n, address):
    library, comm = arrays(), joined(rank, n, address)
    x = library.zeros((4, 6), "float32")
    for call, text in [
        (lambda: comm.all_reduce(x.T), "argument 'x': the array is not contiguous"),
        (lambda: comm.all_reduce(x, out=x[:, :3]), "argument 'out': the array is not contiguous"),
        (lambda: comm.all_reduce(x, out=library.zeros(5, "float32")), "'out': expected 24 numbers, got 5"),
        (lambda: comm.broadcast(x, 2), "'root': there are ranks 0 to 1, not 2"),
        (lambda: comm.reduce_scatter(library.zeros(5, "float32")), "5, does not divide into 2 parts"),
        (lambda: comm.all_gather(library.zeros(0, "complex64")), None),
    ]:
        with pytest.raises((ValueError, mscclpp.Error), match=text):
            call()
    with pytest.raises(TypeError, match="expected numbers of type float32, got int32"):
        comm.all_reduce(x, out=library.zeros((4, 6), "int32"))
    with pytest.raises(mscclpp.Error, match='there is no operation "mean"'):
        comm.all_reduce(x, "mean")
    with pytest.raises(mscclpp.Error, match="numbers of type complex64"):
        comm.all_reduce(library.zeros(3, "complex64"))
    with pytest.raises(TypeError, match="expected an array"):
        comm.all_reduce([1, 2, 3])
    with pytest.raises(mscclpp.Error, match="inside a group"), comm.group(), comm.group():
        pass
    # All of it left no trace.
    comm.all_reduce(x)
    comm.synchronize()


def test_wrong_arguments_are_named():
    ranks.run(2, wrong_arguments)


def loses_a_rank(rank, n, address):
    library, comm = arrays(), joined(rank, n, address)
    x = library.ones(10, "float32")
    comm.all_reduce(x)
    comm.synchronize()
    if rank == 1:
        os._exit(3)
    comm.all_reduce(x)
    with pytest.raises(mscclpp.Error, match="rank 1"):
        comm.synchronize()


def test_a_lost_rank_is_named():
    with ranks.Ranks(2, loses_a_rank) as job:
        job.outcome(0)


def waits_in_vain(rank, n, address):
    library, comm = arrays(), joined(rank, n, address, timeout=0.5)
    x = library.ones(10, "float32")
    if rank == 0:
        comm.all_reduce(x)
        with pytest.raises(mscclpp.Error):
            comm.synchronize()
        comm.abort("done")


def test_a_wait_in_vain_ends():
    with ranks.Ranks(2, waits_in_vain) as job:
        job.outcome(0)
