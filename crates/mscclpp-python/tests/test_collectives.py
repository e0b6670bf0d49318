"""`Collectives`, on arrays of NumPy on simulated devices and of CuPy on GPUs."""

import contextlib
import gc
import os
import threading
import time
import weakref
from types import SimpleNamespace

import mscclpp
import numpy
import pytest
from mscclpp import Collectives, CommGroup
from mscclpp._collectives import _OfThread

import ranks
from device import Dlpack, Interface, arrays

N = 3


def joined(rank, n, address, **options):
    return Collectives(CommGroup(interfaceIpPortTrio=address, rank=rank, size=n), max_blocks=4, **options)


def numbers(library, rank, count, dtype="float32"):
    return library.arange(count, dtype=dtype) + library.asarray(rank, dtype=dtype)


@ranks.each_of(N)
def test_every_kind_with_every_type(rank, n, address):
    library, comm = arrays, joined(rank, n, address)
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


@ranks.each_of(N)
def test_averages_of_integers_wrap_and_cut_towards_zero(rank, n, address):
    library, comm = arrays, joined(rank, n, address)
    for dtype, given, average in (("int8", -100, -14), ("uint8", 200, 29), ("int32", -(2**31), -(2**31 // 3))):
        found = comm.all_reduce(library.full(7, given, dtype), "avg")
        comm.synchronize()
        assert found.tolist() == [average] * 7, dtype


@ranks.each_of(N)
def test_counts_that_differ_by_rank(rank, n, address):
    library, comm = arrays, joined(rank, n, address)
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


def only_hosts_have(comm):
    """Arrays whose memory cannot be written, or that have no memory which stays in place."""
    fixed = numpy.ones(3)
    fixed.flags.writeable = False
    for call in (comm.all_reduce, lambda x: comm.broadcast(x, 0), lambda x: comm.all_reduce(numpy.ones(3), out=x)):
        with pytest.raises(ValueError, match="read-only"):
            call(fixed)
    with pytest.raises(TypeError, match=r"expected an array, got a number, np.float32\(1.0\)"):
        comm.all_reduce(numpy.float32(1))
    comm.all_reduce(fixed, out=numpy.empty(3))
    comm.synchronize()


@ranks.each_of(2)
def test_wrong_arguments_are_named(rank, n, address):
    library, comm = arrays, joined(rank, n, address)
    x = library.zeros((4, 6), "float32")
    for call, text in [
        (lambda: comm.all_reduce(x.T), "argument 'x': the array is not contiguous"),
        (lambda: comm.all_reduce(x, out=x[:, :3]), "argument 'out': the array is not contiguous"),
        (lambda: comm.all_reduce(x, out=library.zeros(5, "float32")), "'out': expected 24 numbers, got 5"),
        (lambda: comm.broadcast(x, 2), "'root': there are ranks 0 to 1, not 2"),
        (lambda: comm.reduce_scatter(library.zeros(5, "float32")), "5, does not divide into 2 parts"),
        (lambda: comm.scatter(library.zeros(7, "float32"), rank, x[0, :3]), "7, does not divide into 2 parts"),
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
    for half in (0.5, numpy.float32(0.5)):
        with pytest.raises(ValueError, match="'op': numbers of type int32 cannot be multiplied by 0.5"):
            comm.all_reduce(library.ones(3, "int32"), ("premul_sum", half))
    with pytest.raises(ValueError, match="'op': numbers of type uint8 cannot be multiplied by 0.5"):
        comm.enqueue([("reduce", 0, 0, 0, "uint8", ("premul_sum", 0.5), 0)])
    for options, error, text in [
        ({"timeout": -1}, ValueError, "'timeout': expected seconds from 0 to"),
        ({"timeout": "x"}, TypeError, "'timeout': expected seconds, got 'x'"),
        ({"max_blocks": -1}, ValueError, "'max_blocks': expected a number from 0 to"),
        ({"scratch": 0.5}, TypeError, "'scratch': expected a whole number, got 0.5"),
        ({"device": -1}, ValueError, "'device': expected a number from 0 to"),
    ]:
        with pytest.raises(error, match=text):
            Collectives(comm._group, **options)
    with pytest.raises(ValueError, match="'color': expected a number from 0 to"):
        comm.split(-1)
    with pytest.raises(mscclpp.Error, match="no operation 3"):
        comm.all_reduce(x, 3)
    with pytest.raises(TypeError, match="'root': expected the number of a rank, got 'first'"):
        comm.broadcast(x, "first")
    with pytest.raises(TypeError, match="got 6.0; seconds are given to"):
        comm.synchronize(6.0)
    if library is numpy:
        only_hosts_have(comm)
    with pytest.raises(mscclpp.Error, match="has begun a group"), comm.group(), comm.group():
        pass
    # The calls that failed have changed nothing.
    comm.all_reduce(x)
    comm.synchronize()


@pytest.mark.skipif(os.environ["MSCCLPP_PLATFORM"] != "sim", reason="of NumPy")
@ranks.each_of(2)
def test_move_types(rank, n, address):
    """Elements that are only moved may be of any type."""
    comm = joined(rank, n, address)
    for dtype in (bool, "complex64", "complex128", "float16", ">f4", "datetime64[s]", "S5"):
        each = [(numpy.arange(6) + r).astype("int64").astype(dtype) for r in range(n)]
        mine = each[rank].copy()
        gathered, parts = comm.all_gather(mine), comm.all_to_all(mine)
        sent = each[rank].copy()
        comm.broadcast(sent, 1)
        out = numpy.empty(6 // n, mine.dtype)
        comm.scatter(each[0] if rank == 0 else None, 0, out)
        comm.synchronize()
        assert gathered.dtype == mine.dtype and (gathered == numpy.stack(each)).all(), dtype
        part = slice(6 // n * rank, 6 // n * (rank + 1))
        assert (parts == numpy.concatenate([e[part] for e in each])).all(), dtype
        assert (sent == each[1]).all() and (out == each[0][part]).all(), dtype
        if dtype != "float16":
            with pytest.raises(mscclpp.Error, match="there are no reductions"):
                comm.all_reduce(mine)
    for none in (numpy.array([None] * 4), numpy.array([None] * 4)[::2]):
        with pytest.raises(mscclpp.Error, match="there are no collectives of numbers of type object"):
            comm.broadcast(none, 0)
        with pytest.raises(mscclpp.Error, match=r"there are no collectives of numbers of type \|O"):
            comm.broadcast(Interface(__array_interface__=none.__array_interface__), 0)
    with pytest.raises(ValueError, match="the array is not contiguous"):
        comm.all_gather(numpy.arange(6).astype("datetime64[s]")[::2])
    sent = numpy.full(3, rank).astype("datetime64[s]")
    comm.broadcast(Interface(__array_interface__=sent.__array_interface__), 1)
    comm.synchronize()
    assert (sent.astype(int) == 1).all()


def move_tensors(rank, n, address):
    """Tensors of PyTorch's types that are only moved: their bytes arrive."""
    import torch

    comm = joined(rank, n, address)
    named = [getattr(torch, name) for name in dir(torch) if name.startswith(("bool", "complex", "float8"))]
    types = [dtype for dtype in named if isinstance(dtype, torch.dtype)]
    assert len(types) >= 8, types

    def filled(r, dtype):
        numbers = torch.arange(6 * dtype.itemsize, dtype=torch.uint8) + r
        return (numbers % 2 if dtype == torch.bool else numbers).view(dtype)

    for dtype in types:
        each = [filled(r, dtype) for r in range(n)]
        gathered, parts, sent = comm.all_gather(each[rank]), comm.all_to_all(each[rank]), each[rank].clone()
        comm.broadcast(sent, 1)
        comm.synchronize()
        of_each = [e.view(torch.uint8) for e in each]
        for got, expected in [
            (gathered, torch.stack(of_each)),
            (parts, torch.cat([e.chunk(n)[rank] for e in of_each])),
            (sent, of_each[1]),
        ]:
            assert got.dtype == dtype and torch.equal(got.view(torch.uint8), expected), (dtype, got)
    for view, words in (
        (torch.ones(6, dtype=torch.complex64).conj(), r"conjugated view; \.resolve_conj\(\)"),
        (torch._neg_view(torch.ones(6)), r"negated view; \.resolve_neg\(\)"),
    ):
        with pytest.raises(ValueError, match="argument 'x': the tensor is a " + words):
            comm.all_gather(view)


@pytest.mark.skipif(os.environ["MSCCLPP_PLATFORM"] != "sim", reason="of NumPy")
def test_move_types_of_torch():
    pytest.importorskip("torch")
    # Importing torch takes minutes if the machine is busy.
    ranks.run(2, move_tensors, timeout=900)


@ranks.each_of(2)
def test_gpubuffer_all_gather(rank, n, address):
    """Results of a GpuBuffer are new ones."""
    comm = joined(rank, n, address)
    x = mscclpp.GpuBuffer(4, "float32")
    x.fill(rank)
    for out, expected in [
        (comm.all_gather(x), numpy.repeat(numpy.arange(n), 4).reshape(n, 4)),
        (comm.reduce_scatter(x), numpy.full(2, sum(range(n)))),
        (comm.all_to_all(x), numpy.repeat(numpy.arange(n), 2)),
    ]:
        comm.synchronize()
        assert isinstance(out, mscclpp.GpuBuffer) and (out.get() == expected).all(), out
    gathered = comm.gather(x, 0)
    comm.synchronize()
    assert isinstance(gathered, mscclpp.GpuBuffer) if rank == 0 else gathered is None


@pytest.mark.skipif(os.environ["MSCCLPP_PLATFORM"] != "sim", reason="of NumPy")
@ranks.each_of(2)
def test_arrays_that_say_little_of_themselves(rank, n, address):
    comm = joined(rank, n, address)
    for wrap in (lambda of: Interface(__array_interface__=of.__array_interface__), Dlpack):
        x = numpy.ones(4, "float32")
        comm.all_reduce(wrap(x))
        comm.synchronize()
        assert (x == n).all()
        with pytest.raises(mscclpp.Error, match="argument 'x': there are no reductions of numbers of type"):
            comm.all_reduce(wrap(numpy.ones(4, bool)))
        flags = numpy.full(4, rank == 1)
        comm.broadcast(wrap(flags), 1)
        comm.synchronize()
        assert flags.all()
    # The numbers of ranks in programs are often NumPy's.
    comm.broadcast(x, numpy.int64(0))
    comm.synchronize()


@pytest.mark.skipif(os.environ["MSCCLPP_PLATFORM"] != "sim", reason="simulated devices copy arrays")
@ranks.each_of(2)
def test_memory_stays_as_long_as_calls_work_on_it(rank, n, address):
    """Which arrays are kept that a program drops while calls work on them, and how many."""
    comm = joined(rank, n, address)
    kept = mscclpp._on_device._kept
    made = []

    class Seen(numpy.ndarray):
        """An array that a weak reference can refer to."""

    def some(count, value):
        array = numpy.full(count, value, "float32").view(Seen)
        made.append(weakref.ref(array))
        return array

    def alive():
        return sum(each() is not None for each in made)

    # Without a wait, the arrays are dropped when earlier calls are complete.
    for _ in range(20):
        comm.all_reduce(some(100, 1))
        deadline = time.monotonic() + 100
        while not comm._made.enqueue([], 0):
            assert time.monotonic() < deadline
            time.sleep(0.001)
    assert alive() <= 1
    # The arrays of a group are kept until its end.
    outs = []
    with comm.group():
        for i in range(4):
            outs.append(comm.all_gather(some(1000, i), numpy.empty((n, 1000), "float32")))
        assert alive() >= 4
    comm.synchronize()
    assert all((out == i).all() for i, out in enumerate(outs)) and alive() == 0
    # Collectives that are dropped while their calls run, and calls that fail after others of them have begun.
    part = comm.split(0)
    for _ in range(4):
        part.all_reduce(some(1 << 20, 1))
    part.close()
    assert alive() == len(kept[rank])
    x = numpy.ones(1 << 20)
    request = ("all_reduce", x.ctypes.data, x.ctypes.data, x.size, "float64", "sum", 0)
    for _ in range(3):
        with pytest.raises(mscclpp.Error, match="from 99"):
            comm.enqueue([request, ("broadcast", *request[1:6], 99)])
    # A rank that has left the barrier may have ended the job, and even have left it.
    with contextlib.suppress(mscclpp.Error):
        comm._group.barrier()
    comm.abort("enough")
    with pytest.raises(mscclpp.Error):
        comm.all_reduce(x)
        comm.synchronize()
    # Calls by address work on `x` until they end, even if they were aborted.
    with contextlib.suppress(mscclpp.Error):
        comm.synchronize()


@ranks.each_of(2)
def test_a_group_belongs_to_its_thread(rank, n, address):
    library, comm = arrays, joined(rank, n, address)
    x, y, z = (library.full(8, rank + 1.0, "float32") for _ in range(3))
    if rank == 0:
        gathering, go = threading.Event(), threading.Event()

        def gives_up():
            with contextlib.suppress(KeyError), comm.group():
                comm.all_reduce(x)
                gathering.set()
                go.wait(60)
                raise KeyError

        thread = threading.Thread(target=gives_up)
        thread.start()
        gathering.wait(60)
    # Another thread is in no group of this thread, and then in one of its own.
    comm.all_reduce(y)
    with comm.group():
        comm.all_reduce(z)
    if rank == 0:
        go.set()
        thread.join()
    comm.synchronize()
    assert y.tolist() == z.tolist() == [3] * 8 and x.tolist() == [rank + 1] * 8


@ranks.each_of(2)
def test_a_registration_that_is_dropped_keeps_its_array(rank, n, address):
    library, comm = arrays, joined(rank, n, address)
    buffer = mscclpp.GpuBuffer((n, 1 << 18), dtype="float32")
    registration, seen = comm.register(buffer), weakref.ref(buffer)
    if rank == 0:
        # The other rank still writes into it.
        del registration
    gathered = buffer
    del buffer
    comm.all_gather(library.full(1 << 18, rank + 1.0, "float32"), gathered)
    comm.synchronize()
    assert (gathered == library.asarray([[1.0], [2.0]])).all()
    del gathered
    gc.collect()
    assert seen() is not None
    comm._group.barrier()
    comm.close()
    registration = comm = None
    gc.collect()
    assert seen() is None


def loses_a_rank(rank, n, address):
    library, comm = arrays, joined(rank, n, address)
    x = library.ones(10, "float32")
    comm.all_reduce(x)
    comm.synchronize()
    if rank == 1:
        os._exit(3)
    with pytest.raises(mscclpp.Error, match="rank 1"):
        comm.all_reduce(x)
        comm.synchronize()


def test_a_lost_rank_is_named():
    with ranks.Ranks(2, loses_a_rank) as job:
        job.outcome(0)


def waits_for_a_rank_that_is_late(rank, n, address):
    library, comm = arrays, joined(rank, n, address)
    x = library.ones(10, "float32")
    line = ranks.next_line_about_a_wait(lambda: comm.all_reduce(x)) if rank == 0 else None
    comm._group.barrier()
    if rank == 1:
        comm.all_reduce(x)
    comm.synchronize()
    assert (x == n).all()
    return line


def test_a_long_collective_says_for_whom_it_waits():
    line, _ = ranks.run(2, waits_for_a_rank_that_is_late)
    expected = "rank 0: waiting for rank 1, which has not made call 0, all_reduce (Sum) of 10 F32 (for 1"
    assert line.startswith(expected), line


def share_a_device(rank, n, address):
    made, group = [], ranks.group(rank, n, address)

    def make():
        made.append(Collectives(group, 0, max_blocks=4))

    return ranks.next_line_about_a_wait(make) if rank == 0 else make()


@pytest.mark.skipif(os.environ["MSCCLPP_PLATFORM"] != "sim", reason="needs more devices than ranks")
def test_ranks_that_share_a_device_while_others_are_free_have_a_line():
    line, _ = ranks.run(2, share_a_device)
    assert line.startswith("ranks [0, 1] share devices, while this node has devices without a rank"), line


def differ(rank, n, address):
    library, comm = arrays, joined(rank, n, address)
    try:
        if rank == 0:
            comm.send(library.full(100, 1.0, dtype="float32"), 1)
        else:
            comm.recv(library.zeros(10, dtype="float32"), 0)
        end = time.monotonic() + 60
        # Without a check of calls, the sender is told when the receiver has seen the message.
        while time.monotonic() < end:
            comm.synchronize()
            time.sleep(0.01)
    except mscclpp.Error as error:
        return f"{error.code.name}: {error}"


@pytest.mark.parametrize("check", ["0", "1"])
def test_messages_of_different_sizes_are_named(monkeypatch, check):
    monkeypatch.setenv("MSCCLPP_CHECK_CALLS", check)
    names = ["send of 400 bytes to rank 1", "recv of 40 bytes from rank 0"]
    for rank, said in enumerate(ranks.run(2, differ)):
        calls = f"rank {rank} called {names[rank]}, while rank {1 - rank} called {names[1 - rank]}"
        assert said.startswith("InvalidUsage: ") and calls in said, said


def waits_in_vain(rank, n, address):
    library, comm = arrays, joined(rank, n, address, timeout=0.5)
    x = library.ones(10, "float32")
    if rank == 0:
        comm.all_reduce(x)
        with pytest.raises(mscclpp.Error):
            comm.synchronize()
        comm.abort("done")


def test_a_wait_in_vain_ends():
    with ranks.Ranks(2, waits_in_vain) as job:
        job.outcome(0)


def test_calls_of_a_group_are_made_in_the_order_of_the_program_whatever_their_streams():
    made = []
    comm = object.__new__(Collectives)
    comm._of_thread, comm.is_simulated = _OfThread(), False
    comm._made = SimpleNamespace(
        capture_of=lambda stream: None,
        enqueue=lambda requests, stream, others=(): made.append((requests, stream, others)),
    )
    calls = [("send", number, 0, 1, "uint8", "sum", 0) for number in range(3)]
    with comm.group():
        for call, stream in zip(calls, (1, 2, 1), strict=True):
            comm._put(call, stream, None)
    assert made == [(calls, 1, [2])]
