"""Tests the path of GPUs through the backend of torch.distributed: points in streams, and the thread that checks calls.

The tensors are in memory of simulated devices, which the backend takes for GPUs. They have one stream, 0.
"""

import contextlib
import logging.handlers
import os
import queue
import time
from datetime import timedelta
from types import SimpleNamespace

import mscclpp
import numpy as np
import pytest
from test_torch_backend import IMPORTS

import ranks
from device import sim_only

torch = pytest.importorskip("torch")

# On GPUs, crates/mscclpp-nccl/tests/clients/by_torch.py --backend mscclpp takes their place.
pytestmark = sim_only


def join(rank, n, address):
    """Makes a group whose communicators take the device for a GPU. Returns the module `torch.distributed`."""
    import torch.distributed as dist

    os.environ["MSCCLPP_TORCH_SIMULATED"] = "1"
    import mscclpp.torch  # noqa: F401
    from mscclpp import _torch_group, _torch_lane, _torch_work

    class Stream:
        cuda_stream = 0

    def collectives(*args, **named):
        made = mscclpp.Collectives(*args, **named)
        made.is_simulated = False
        return made

    _torch_group.Collectives = collectives
    _torch_lane.current_stream = _torch_work.current_stream = lambda _device: 0
    torch.cuda.Stream = lambda *_, **__: Stream()
    torch.cuda.stream = lambda _stream: contextlib.nullcontext()
    dist.init_process_group("mscclpp", init_method=f"tcp://{address}", rank=rank, world_size=n)
    return dist


def own(rank, count=100):
    """Returns a tensor in memory of the device."""
    x = torch.from_dlpack(mscclpp.GpuBuffer(count, dtype=np.float32))
    x[:] = rank + 1
    return x


@ranks.each_of(2, timeout=IMPORTS)
def test_calls(rank, n, address):
    dist = join(rank, n, address)
    lane_of = dist.group.WORLD._lanes.get
    total = n * (n + 1) // 2
    dist.all_reduce(x := own(rank))
    lane = lane_of("all")
    assert lane.stream is not None and lane._is_watched
    mscclpp.synchronize()
    assert (x == total).all()
    work = dist.all_reduce(x := own(rank), async_op=True)
    assert work.wait() and work.wait(timedelta(seconds=IMPORTS)) and work.is_completed()
    assert (x == total).all() and work.result() == [x]
    with dist._coalescing_manager(async_ops=True) as coalesced:
        many = [own(rank) for _ in range(3)]
        for x in many:
            dist.all_reduce(x)
    coalesced.wait()
    dist.barrier()
    assert all((x == total).all() for x in many)
    # Torch waits for these messages at once, so they are not put off.
    dist.group.WORLD._messages.put_off = None
    x = own(rank)
    dist.send(x, 1) if rank == 0 else dist.recv(x, 0)
    dist.barrier()
    assert (x == 1).all()
    # A list in one piece, whose place among the ranks is that of each.
    gathered = own(0, 100 * n)
    dist.all_gather(list(gathered.chunk(n)), own(rank))
    dist.barrier()
    assert all((part == r + 1).all() for r, part in enumerate(gathered.chunk(n)))
    # What one rank refuses fails on all.
    with pytest.raises(ValueError, match="must be contiguous"):
        dist.all_reduce(own(rank, 4).view(2, 2).t())
    dist.all_reduce(x := own(rank))
    dist.barrier()
    assert (x == total).all()
    dist.destroy_process_group()


class Tensor:
    """The part of a CUDA tensor that a message looks at."""

    def get_device(self):
        return 0


def test_messages_of_one_stream_share_a_point(monkeypatch):
    from mscclpp import _torch_messages as messages

    monkeypatch.setattr(messages, "current_stream", lambda _device: 0)
    first, second = (messages.PutOff(SimpleNamespace(tensors=[Tensor()]), 1) for _ in range(2))
    first.put_behind(None)
    second.put_behind(first)
    assert second.behind is first.behind and not second.is_captured
    # Other streams have points of their own.
    first.stream = 1
    second.put_behind(first)
    assert second.behind is not first.behind
    mscclpp.synchronize()
    assert first.behind.is_complete() and second.behind.is_complete()


class Pool:
    """The part of a `torch.cuda.MemPool` that the backend looks at."""

    id = (0, 7)

    def __init__(self, *tensors):
        self.tensors = tensors

    def snapshot(self):
        return [{"address": x.data_ptr(), "total_size": x.nbytes} for x in self.tensors]


@ranks.each_of(3, timeout=IMPORTS)
def test_ranks_register_pools_of_memory_each_for_itself(rank, n, address):
    dist = join(rank, n, address)
    count = 10_000
    gathered, later = own(0, count * n), own(0, count * n)
    pool = Pool(gathered, later)
    group = dist.group.WORLD
    # Rank 0 has registered it before there is a communicator, and the others later or not at all.
    if rank == 0:
        group.register_mem_pool(pool)
    dist.all_gather_into_tensor(later, own(rank, count))
    if rank == 1:
        group.register_mem_pool(pool, symm=True)
    if rank < 2:
        published = group._lanes["all"]._published[pool.id]
        until = time.monotonic() + IMPORTS
        while not all(it.is_ready for it in published):
            assert time.monotonic() < until
            time.sleep(0.01)
    for x in (gathered, later):
        x[:] = 0
        dist.barrier()
        dist.all_gather_into_tensor(x, own(rank, count))
        mscclpp.synchronize()
        assert all((part == r + 1).all() for r, part in enumerate(x.chunk(n)))
    if rank < 2:
        group.deregister_mem_pool(pool)
    with pytest.raises(ValueError, match="memory pool"):
        group.deregister_mem_pool(pool)
    dist.all_gather_into_tensor(gathered, own(rank, count))
    dist.barrier()
    dist.destroy_process_group()


@ranks.each_of(2, timeout=IMPORTS)
def test_a_call_that_takes_too_long_is_given_up(rank, n, address):
    dist = join(rank, n, address)
    dist.all_reduce(own(rank))
    dist.barrier()
    group, store = dist.group.WORLD, dist.distributed_c10d._get_default_store()
    if rank == 1:
        # It makes no further call.
        return store.wait(["given up"], timedelta(seconds=IMPORTS))
    lines, logger = queue.SimpleQueue(), logging.getLogger("mscclpp.torch")
    logger.addHandler(logging.handlers.QueueHandler(lines))
    group.set_timeout(timedelta(seconds=1))
    dist.all_reduce(own(rank))
    assert not group._lanes["all"]._made.last_call().is_complete()
    # Only the thread waits for the call.
    line = lines.get(timeout=IMPORTS).getMessage()
    assert "all_reduce took longer than 1 s" in line, line
    with pytest.raises(Exception, match="took longer than 1 s"):
        dist.all_reduce(own(rank))
    store.set("given up", "")
