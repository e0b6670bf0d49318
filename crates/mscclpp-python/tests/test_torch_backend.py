"""The backend `mscclpp` of torch.distributed, with CPU tensors on simulated devices. CI does not install torch."""

import _thread
import itertools
import os
import signal
import threading
import time
from datetime import timedelta

import mscclpp
import pytest

import ranks
from device import sim_only

torch = pytest.importorskip("torch")

N = 3
#: The time-out of a program, in seconds: importing torch takes minutes if the machine is busy.
IMPORTS = 900
# On GPUs, crates/mscclpp-nccl/tests/clients/by_torch.py --backend mscclpp takes their place.
pytestmark = sim_only


def join(backend, rank, n, address):
    import torch.distributed as dist

    os.environ["MSCCLPP_TORCH_SIMULATED"] = "1"
    import mscclpp.torch  # noqa: F401

    dist.init_process_group(backend, init_method=f"tcp://{address}", rank=rank, world_size=n)
    return dist


def test_a_line_says_what_goes_through_gloo():
    program = f"""
import torch.distributed as dist
import mscclpp.torch
dist.init_process_group("mscclpp", init_method="tcp://{ranks.free_address()}", rank=0, world_size=1)
"""
    run = ranks.python("-c", program, timeout=IMPORTS, MSCCLPP_LOG_LEVEL="INFO", MSCCLPP_TORCH_SIMULATED="0")
    assert run.returncode == 0 and "CPU tensors through gloo" in run.stderr, run.stderr


def other_types(rank, n, address):
    os.environ["MSCCLPP_CHECK_CALLS"] = "1"
    dist = join("mscclpp", rank, n, address)
    try:
        dist.all_reduce(torch.ones(100, dtype=[torch.float32, torch.int32][rank]))
        dist.barrier()
    except mscclpp.Error as error:
        return str(error)


def test_one_variable_finds_calls_that_differ():
    names = ["all_reduce (Sum) of 100 F32", "all_reduce (Sum) of 100 I32"]
    for rank, said in enumerate(ranks.run(2, other_types, timeout=IMPORTS)):
        assert f"rank {rank} called {names[rank]}, while rank {1 - rank} called {names[1 - rank]}" in said


def own(rank, count=100, dtype=torch.float32):
    return torch.full((count,), rank + 1, dtype=dtype)


@ranks.each_of(N, timeout=IMPORTS)
def test_every_collective(rank, n, address):
    dist = join("mscclpp", rank, n, address)
    total = n * (n + 1) // 2
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int64):
        x = own(rank, dtype=dtype)
        dist.all_reduce(x)
        assert (x == total).all(), x
    for op, expected in [(dist.ReduceOp.MAX, n), (dist.ReduceOp.MIN, 1), (dist.ReduceOp.AVG, total / n)]:
        x = own(rank)
        dist.all_reduce(x, op)
        assert (x == expected).all(), (op, x)
    x = own(rank)
    dist.broadcast(x, n - 1)
    assert (x == n).all()
    x = own(rank)
    dist.reduce(x, 1)
    assert rank != 1 or (x == total).all()

    parts = [torch.empty(100) for _ in range(n)]
    dist.all_gather(parts, own(rank))
    assert all((part == r + 1).all() for r, part in enumerate(parts))
    parts = [torch.empty(10 + r) for r in range(n)]
    dist.all_gather(parts, own(rank, 10 + rank))
    assert all((part == r + 1).all() for r, part in enumerate(parts))
    gathered = torch.empty(100 * n)
    dist.all_gather_into_tensor(gathered, own(rank))
    assert all((part == r + 1).all() for r, part in enumerate(gathered.chunk(n)))
    part = torch.empty(100)
    dist.reduce_scatter_tensor(part, gathered)
    assert (part == n * (rank + 1)).all()
    dist.reduce_scatter(part, [own(rank) for _ in range(n)])
    assert (part == total).all()

    dist.all_to_all_single(gathered, own(rank, 100 * n))
    assert all((part == r + 1).all() for r, part in enumerate(gathered.chunk(n)))
    given, taken = [10 + r for r in range(n)], torch.empty((10 + rank) * n)
    dist.all_to_all_single(taken, own(rank, sum(given)), [10 + rank] * n, given)
    assert all((part == r + 1).all() for r, part in enumerate(taken.chunk(n)))
    parts = [torch.empty(10 + rank) for _ in range(n)]
    dist.all_to_all(parts, [own(rank, 10 + r) for r in range(n)])
    assert all((part == r + 1).all() for r, part in enumerate(parts))

    parts = [torch.empty(100) for _ in range(n)] if rank == 0 else None
    dist.gather(own(rank), parts)
    assert all((part == r + 1).all() for r, part in enumerate(parts or []))
    dist.scatter(part := torch.empty(100), [torch.full((100,), r + 5.0) for r in range(n)] if rank == 0 else None)
    assert (part == rank + 5).all()
    dist.barrier()

    after, before, theirs = (rank + 1) % n, (rank - 1) % n, torch.empty(100)
    mine = own(rank)
    requests = [dist.P2POp(dist.irecv, theirs, before), dist.P2POp(dist.isend, mine, after)]
    for request in dist.batch_isend_irecv(requests):
        request.wait()
    assert (theirs == before + 1).all()
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as coalesced:
        many = [own(rank) for _ in range(3)]
        for x in many:
            dist.all_reduce(x)
    coalesced.wait()
    assert all((x == total).all() for x in many)
    work = dist.all_reduce(mine, async_op=True)
    work.wait()
    assert (mine == total).all()
    objects = [None] * n
    dist.all_gather_object(objects, {"rank": rank})
    assert [each["rank"] for each in objects] == list(range(n))
    part = dist.new_group([0, 1])
    if rank < 2:
        x = own(rank)
        dist.all_reduce(x, group=part)
        assert (x == 3).all()
    with pytest.raises(ValueError, match="contiguous"):
        dist.all_reduce(torch.zeros(4, 4)[:, :2])
    dist.barrier()
    dist.destroy_process_group()


@ranks.each_of(N, timeout=IMPORTS)
def test_messages_that_are_not_gathered(rank, n, address):
    dist = join("mscclpp", rank, n, address)
    after, before = (rank + 1) % n, (rank - 1) % n
    # Each rank receives first: before there are collectives of all ranks, and after.
    for round in range(4):
        mine, theirs = own(rank) + round, torch.empty(100)
        works = [dist.irecv(theirs, before), dist.isend(mine, after)]
        works[round % 2].wait()
        works[1 - round % 2].wait()
        assert (theirs == before + 1 + round).all() and works[0].is_completed()
        if round == 1:
            dist.all_reduce(own(rank))
    # Two messages in one direction arrive in their order.
    parts = [torch.empty(10), torch.empty(10)]
    works = [dist.irecv(part, before) for part in parts] + [
        dist.isend(own(rank, 10) * (i + 1), after) for i in range(2)
    ]
    for work in works:
        work.wait()
    assert all((part == (before + 1) * (i + 1)).all() for i, part in enumerate(parts))
    # Messages that the program does not wait for are made when they are dropped, at the next call, and after a
    # moment.
    if rank == 0:
        dist.isend(own(0), 1)
        kept = dist.isend(own(0) + 1, 1)
        dist.all_reduce(own(rank))
        late = dist.isend(own(0) + 2, 1)
        store = dist.distributed_c10d._get_default_store()
        store.wait(["received"])
        assert kept.is_completed() and late.is_completed()
    elif rank == 1:
        for i in range(2):
            dist.recv(theirs, 0)
            assert (theirs == 1 + i).all()
        dist.all_reduce(own(rank))
        dist.recv(theirs, 0)
        assert (theirs == 3).all()
        dist.distributed_c10d._get_default_store().set("received", "yes")
    else:
        dist.all_reduce(own(rank))
    work = dist.irecv(theirs, before)
    dist.isend(own(rank), after).wait()
    assert (work.get_future().wait()[0] == before + 1).all()
    dist.destroy_process_group()


@ranks.each_of(N, timeout=IMPORTS)
def test_ways_to_call_a_group(rank, n, address):
    """Other methods of a group that torch and programs call, and calls that fail."""
    dist = join("mscclpp", rank, n, address)
    group, total = dist.group.WORLD, n * (n + 1) // 2
    # Options as separate arguments.
    for give in [
        lambda x: group.allreduce(x, dist.ReduceOp.MAX),
        lambda x: group.allreduce([x], op=dist.ReduceOp.MAX, timeout=timedelta(seconds=IMPORTS)),
        lambda x: group.broadcast(x, root=n - 1),
        lambda x: group.broadcast(x, n - 1, timedelta(seconds=IMPORTS)),
    ]:
        x = own(rank)
        give(x).wait()
        assert (x == n).all()
    group.reduce(x := own(rank), 1, dist.ReduceOp.MIN).wait()
    assert rank != 1 or (x == 1).all()
    group.barrier(timeout=timedelta(seconds=IMPORTS)).wait()
    with pytest.raises(TypeError, match="expected BroadcastOptions or root, timeout"):
        group.broadcast(x, origin=1)

    # Parts of different sizes, and numbers of types without collectives.
    part = torch.empty(10 + rank)
    dist.reduce_scatter(part, [own(rank, 10 + r) for r in range(n)])
    assert (part == total).all()
    parts = [torch.zeros(2, requires_grad=True) for _ in range(n)]
    dist.all_to_all(parts, [own(rank, 2) for _ in range(n)])
    assert all((part == r + 1).all() for r, part in enumerate(parts))

    # Wrong arguments raise an error on all ranks, and have no effect on later calls.
    square = torch.arange(6.0).reshape(2, 3)
    premul = dist._make_nccl_premul_sum(0.5)
    for call, text in [
        (lambda: dist.all_to_all([torch.empty(3, 2) for _ in range(n)], [square.t()] * n), "must be contiguous"),
        (lambda: dist.all_reduce(torch.ones(2, dtype=torch.int64), premul), "cannot be multiplied by 0.5"),
        (lambda: dist.all_reduce(torch.ones(2, dtype=torch.bool), premul), "no PREMUL_SUM of bool"),
        (lambda: dist.all_to_all_single(torch.tensor(0.0), torch.tensor(0.0)), "first dimension, 1, does not"),
        (lambda: group.allreduce_coalesced([x, torch.empty(1, device="meta")]), "tensors of cpu, meta"),
    ]:
        with pytest.raises(ValueError, match=text):
            call()
    with pytest.raises(ValueError, match="contiguous"), dist._coalescing_manager(device=torch.device("cpu")):
        dist.all_reduce(torch.zeros(4, 4)[:, :2])
    dist.all_reduce(x := own(rank))
    assert (x == total).all()

    # Images whose channels come last: a copy is sent, and the results have the layout of the outputs.
    images = torch.arange(2.0 * 3 * 4 * 5).view(2, 3, 4, 5).contiguous(memory_format=torch.channels_last) + rank
    gathered = [torch.empty_like(images) for _ in range(n)]
    dist.all_gather(gathered, images)
    assert all((image == images - rank + r).all() for r, image in enumerate(gathered))

    # Groups that are split, by torch itself or by the program, and that are dropped.
    assert group.get_group_store() is not None and group.options is None
    group.eager_connect_single_device(torch.device("cuda:0"))
    if hasattr(dist, "split_group"):
        half = dist.split_group(split_ranks=[[0, 1], list(range(2, n))])
        dist.all_reduce(x := own(0), group=half)
        assert (x == (2 if rank < 2 else n - 2)).all()
    ended = dist.new_group(list(range(n)))
    dist.all_reduce(own(rank), group=ended)
    ended.abort()
    with pytest.raises(RuntimeError, match="the program aborted the group"):
        dist.all_reduce(own(rank), group=ended)
    dist.barrier()
    dist.destroy_process_group()


@ranks.each_of(2, timeout=IMPORTS)
def test_an_abort_ends_a_wait_of_gloo(rank, n, address):
    dist = join("mscclpp", rank, n, address)
    group = dist.new_group(list(range(n)))
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        threading.Timer(0.5, group.abort).start()
        begun = time.monotonic()
        with pytest.raises(RuntimeError):
            dist.all_gather_object([None] * n, "nobody else comes", group=group)
        assert time.monotonic() - begun < 60
        with pytest.raises(RuntimeError, match="the program aborted the group"):
            dist.barrier(group=group)
        store.set("aborted", "yes")
    else:
        store.wait(["aborted"])
    dist.barrier()
    dist.destroy_process_group()


@ranks.each_of(2, timeout=IMPORTS)
def test_an_interrupted_wait_can_be_repeated(rank, n, address):
    # It is ignored in a job that a shell has started in the background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    dist = join("mscclpp", rank, n, address)
    dist.all_reduce(own(rank))
    store, x = dist.distributed_c10d._get_default_store(), own(rank)
    if rank == 0:
        work = dist.all_reduce(x, async_op=True)
        threading.Timer(0.5, _thread.interrupt_main).start()
        with pytest.raises(KeyboardInterrupt):
            work.wait()
        store.set("interrupted", "yes")
        work.wait()
    else:
        store.wait(["interrupted"])
        dist.all_reduce(x)
    assert (x == n * (n + 1) // 2).all()
    dist.destroy_process_group()


@ranks.each_of(2, timeout=IMPORTS)
def test_an_error_in_a_coalescing_ends_it(rank, n, address):
    """The next call works after an error in a block, on whichever rank, and whether or not torch gathers the calls."""
    from torch.distributed.distributed_c10d import _coalescing_manager

    dist = join("mscclpp", rank, n, address)
    for device in (torch.device("cpu"), None):
        for fails in (
            lambda: dist.all_gather([torch.empty(4)] * (n + 1), torch.ones(4)),
            lambda: {}["no such key"],
        ):
            with pytest.raises((ValueError, KeyError)), _coalescing_manager(device=device):
                dist.all_reduce(torch.ones(4))
                fails()
            dist.all_reduce(x := torch.ones(4))
            dist.broadcast(y := own(rank), 1)
            assert (x == n).all() and (y == 2).all()
    # A block of one thread does not gather calls of another thread.
    with _coalescing_manager(device=torch.device("cpu")):
        dist.broadcast(x := own(rank), 0)
        thread = threading.Thread(target=dist.broadcast, args=(y := own(rank), 1))
        thread.start()
        thread.join()
        assert (y == 2).all() and (x == rank + 1).all()
    assert (x == 1).all()
    dist.destroy_process_group()


def refusals(rank, n, address):
    """A call that one rank refuses fails on all ranks, and the next call works."""
    dist = join("mscclpp", rank, n, address)
    alone = n - 1
    me, x, many = rank == alone, own(rank, 6), torch.empty(6 * n)
    turned = own(rank, 6).reshape(2, 3).t()
    wrong, parts = torch.empty(5), [torch.empty(6) for _ in range(n)]
    short = [torch.empty(6) for _ in range(n - 1)]
    sums = dist.ReduceOp.SUM
    for call, text in [
        (lambda: dist.all_reduce(turned if me else x), "Tensors must be contiguous"),
        (lambda: dist.broadcast(turned if me else x, 0), "Tensors must be contiguous"),
        (lambda: dist.broadcast(turned if me else x, alone), "Tensors must be contiguous"),
        (lambda: dist.reduce(turned if me else x, 0), "Tensors must be contiguous"),
        (lambda: dist.all_gather_into_tensor(wrong if me else many, x), f"needs the shape .{6 * n},"),
        (lambda: dist.all_gather_into_tensor(many, wrong if me else x), f"needs the shape .{5 * n},"),
        (lambda: dist.reduce_scatter_tensor(wrong if me else x, many), "needs the shape .6,"),
        (lambda: dist.reduce_scatter(turned if me else x, [x] * n), "Tensors must be contiguous"),
        (lambda: dist.all_gather(short if me else parts, x), f"the list is of {n - 1} tensors"),
        (lambda: dist.gather(x, short if me else None, alone), f"the list is of {n - 1} tensors"),
        (lambda: dist.gather(turned if me else x, parts if rank == 0 else None, 0), "Tensors must be contiguous"),
        (lambda: dist.scatter(x, short if me else None, alone), f"the list is of {n - 1} tensors"),
        (lambda: dist.scatter(turned if me else x, parts if rank == 0 else None, 0), "Tensors must be contiguous"),
        (lambda: dist.all_to_all(parts, short if me else parts), f"{n - 1} tensors in the input list"),
        (lambda: dist.all_to_all_single(many, many.clone(), None, [1] * n if me else None), "parts"),
        (lambda: dist.all_gather_into_tensor(many.int() if me else many, x), "the output is of torch.int32"),
        (lambda: dist.all_reduce(x, dist.ReduceOp.BAND if me else sums), "has no reduction"),
    ]:
        begun = time.monotonic()
        with pytest.raises((ValueError, TypeError), match=text) as raised:
            call()
        assert me or f"rank {alone} refuses the call" in str(raised.value)
        assert time.monotonic() - begun < 60
        dist.all_reduce(y := own(rank))
        assert (y == n * (n + 1) // 2).all()
    dist.destroy_process_group()


def test_what_one_rank_refuses_fails_on_all():
    ranks.run(2, refusals, timeout=IMPORTS)
    ranks.run(N, refusals, timeout=IMPORTS)


@ranks.each_of(N, timeout=IMPORTS)
def test_a_refusal_that_all_share_keeps_the_communicator(rank, n, address):
    """Only a refusal that not all ranks share ends the communicator, and each rank raises one error for it."""
    dist = join("mscclpp", rank, n, address)
    from mscclpp import _torch_refusals

    group, turned = dist.group.WORLD, own(rank, 6).reshape(2, 3).t()
    others = dist.new_group(backend="mscclpp")

    def works(communicator=None):
        dist.all_reduce(y := own(rank))
        assert (y == n * (n + 1) // 2).all()
        assert communicator is None or (group._lanes["all"] is communicator)
        return group._lanes["all"]

    # The first call of the group.
    _torch_refusals._PATIENCE = IMPORTS
    with pytest.raises(ValueError, match="contiguous"):
        dist.all_reduce(turned)
    first = works(group._lanes["all"])
    # A refusal that comes when the patience of the others has ended.
    _torch_refusals._PATIENCE = 0.1
    if rank == 1:
        group._store.wait(["others"])
    with pytest.raises(ValueError, match="contiguous"):
        dist.all_reduce(turned)
    group._store.set("others", "")
    second = works()
    assert second is not first
    # Two ranks refuse a call each, and the others have made calls that come after it.
    dist.all_reduce(z := own(rank), group=others)
    made, error = [], None
    while error is None:
        try:
            made.append(dist.all_reduce(turned if rank == len(made) else own(rank), async_op=True))
            if rank == n - 1:
                made[-1].wait()
        except ValueError as raised:
            error = raised
    assert "contiguous" in str(error) and "captured again" in error.__notes__[0]
    for work in made:
        with pytest.raises((RuntimeError, ValueError), match="refuses the call"):
            work.wait()
    assert works() is not second
    # Messages between two ranks raise here alone.
    third = group._lanes["all"]
    if rank == 0:
        with pytest.raises(ValueError, match="sparse"):
            dist.send(torch.eye(3).to_sparse(), 1)
    works(third)
    # Another group goes on.
    dist.all_reduce(z, group=others)
    assert (z == n * n * (n + 1) // 2).all()
    dist.destroy_process_group()


@ranks.each_of(2, timeout=IMPORTS)
def test_layouts_of_tensors_and_lists(rank, n, address):
    dist = join("mscclpp", rank, n, address)
    # Messages and lists may have any layout, and negative or conjugated views keep their signs.
    y = torch.arange(6.0).reshape(2, 3).t() + 10 * rank
    dist.send(y, 1) if rank == 0 else dist.recv(y, 0)
    assert (y == torch.arange(6.0).reshape(2, 3).t()).all()
    out = torch.zeros(3, 4)
    dist.all_gather(list(out.chunk(2, dim=1)), torch.full((3, 2), rank + 1.0))
    assert out.tolist() == [[1, 1, 2, 2]] * 3
    dist.reduce_scatter(part := torch.empty(3, 2), [y, y])
    assert (part == 2 * y).all()
    negative = torch._neg_view(own(rank))
    gathered = [torch.empty(100) for _ in range(n)]
    dist.all_gather(gathered, negative)
    assert all((it == -r - 1).all() for r, it in enumerate(gathered))
    dist.all_reduce(negative)
    assert (negative == -3).all()
    conjugated = torch.full((4,), complex(rank, rank + 1)).conj()
    dist.group.WORLD.broadcast(conjugated, 1).wait()
    assert (conjugated == complex(1, -2)).all()
    # The order of dimensions in memory may differ.
    images = torch.arange(24.0).view(1, 2, 3, 4)
    turned = images.contiguous(memory_format=torch.channels_last) if rank else images.clone()
    dist.all_reduce(turned)
    assert (turned == 2 * images).all()
    # It is one call, whether or not the numbers of rows are given.
    x, taken = torch.arange(4.0) + 10 * rank, torch.empty(4)
    dist.all_to_all_single(taken, x, *([[2, 2], [2, 2]] if rank else []))
    assert taken.tolist() == [2 * rank, 2 * rank + 1, 10 + 2 * rank, 11 + 2 * rank]
    coalesced(rank, n, dist.group.WORLD)
    dist.destroy_process_group()


def coalesced(rank, n, group):
    """Calls that are made together, of tensors that are alike and of others."""
    assert group.allreduce_coalesced([]).wait()
    alike = [own(rank), torch.empty(0), own(rank, 6).view(1, 2, 3)]
    group.allreduce_coalesced(alike).wait()
    assert all((x == 3).all() for x in alike)
    others = [own(rank), torch._neg_view(own(rank)), own(rank, dtype=torch.int32), own(rank, 6).view(2, 3).t()[:, :0]]
    with pytest.raises(ValueError, match="contiguous"):
        group.allreduce_coalesced([*others, own(rank, 6).view(2, 3).t()])
    group.allreduce_coalesced(others).wait()
    assert [x.unique().tolist() for x in others] == [[3], [-3], [3], []]
    inputs, outputs = [own(rank), own(rank, 6)], [torch.empty(100 * n), torch.empty(n, 6)]
    group.allgather_into_tensor_coalesced(outputs, inputs).wait()
    assert all((part == r + 1).all() for x in outputs for r, part in enumerate(x.chunk(n)))
    group.reduce_scatter_tensor_coalesced(inputs, outputs).wait()
    assert all((x == n * (rank + 1)).all() for x in inputs)
    with pytest.raises(ValueError, match="does not fit an input"):
        group.reduce_scatter_tensor_coalesced(inputs, [outputs[0], torch.empty(6)])
    if hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        from mscclpp import _torch_calls as calls

        assert len(calls.several("all_reduce", alike, alike, 1, torch.distributed.ReduceOp.SUM)) == 1


@ranks.each_of(2, timeout=IMPORTS)
def test_wait_with_time(rank, n, address):
    dist = join("mscclpp", rank, n, address)
    dist.all_reduce(own(rank))
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        work = dist.all_reduce(own(rank), async_op=True)
        ended, pauses = threading.Event(), itertools.count()

        def count():
            while not ended.wait(0.01):
                next(pauses)

        counting = threading.Thread(target=count)
        counting.start()
        with pytest.raises(RuntimeError, match="all_reduce took longer than 0.5 s"):
            work.wait(timedelta(seconds=0.5))
        ended.set()
        counting.join()
        # Pauses of 10 ms are counted, as they become longer where the machine is busy.
        assert next(pauses) < 200
        store.set("waited", "yes")
    else:
        store.wait(["waited"])


def waits_for_a_rank_that_is_late(rank, n, address):
    dist = join("mscclpp", rank, n, address)
    store, line = dist.distributed_c10d._get_default_store(), None
    dist.all_reduce(own(rank))
    if rank == 0:
        works = []
        line = ranks.next_line_about_a_wait(lambda: works.append(dist.all_reduce(own(rank), async_op=True)))
        store.set("said", "yes")
        works[0].wait()
    else:
        store.wait(["said"], timedelta(seconds=IMPORTS))
        dist.all_reduce(own(rank))
    return line


def test_a_long_collective_says_for_whom_it_waits():
    line, _ = ranks.run(2, waits_for_a_rank_that_is_late, timeout=IMPORTS)
    assert line.startswith("rank 0: waiting for rank 1, which has not made call "), line
    assert ", all_reduce (Sum) of 100 F32 (for 1" in line, line


@ranks.each_of(2, timeout=IMPORTS)
def test_gradients_of_ranks_with_more_inputs(rank, n, address):
    """The same steps as PyTorch's test_ddp_grad_div_uneven_inputs."""
    dist = join("mscclpp", rank, n, address)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(5, 5, bias=False))
    (weights,) = net.parameters()
    for by_first_size in (False, True):
        with net.join(divide_by_initial_world_size=by_first_size):
            for i in range(3 if rank == 0 else 5):
                net(torch.full((1, 5), 50.0)).sum().backward()
                active = n if i < 3 or not by_first_size else n - 1
                assert (weights.grad == 50 * active / n).all(), (i, weights.grad)
                net.zero_grad()
    dist.destroy_process_group()


def losses(rank, n, address, backend):
    dist = join(backend, rank, n, address)
    torch.manual_seed(7)
    layers = [torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 16)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    torch.manual_seed(100 + rank)
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.1), []
    for batch in torch.randn(10, 8, 16):
        optimizer.zero_grad()
        loss = (model(batch) - batch).square().mean()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    dist.destroy_process_group()
    return found


def test_training_in_parallel_gives_the_losses_that_it_gives_with_gloo():
    ours, theirs = (ranks.run(2, losses, backend, timeout=IMPORTS) for backend in ("mscclpp", "gloo"))
    for rank in range(2):
        assert ours[rank][-1] < ours[rank][0] and ours[rank] == pytest.approx(theirs[rank], rel=1e-4)
    assert mscclpp.version
