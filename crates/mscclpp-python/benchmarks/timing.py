"""Ranks, graphs and times for the benchmarks with PyTorch."""

import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist


def as_ranks(file: str, rank: Callable[[], None], ranks: int = 2) -> None:
    """Run `rank` in as many processes, which start `file` with the variables that torch.distributed reads."""
    if "RANK" in os.environ:
        rank()
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    common = dict(os.environ, WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    command = [sys.executable, file, *sys.argv[1:]]
    started = [subprocess.Popen(command, env=dict(common, RANK=str(r), LOCAL_RANK=str(r))) for r in range(ranks)]
    sys.exit(max(abs(process.wait()) for process in started))


def joined() -> tuple[torch.device, Any, Any]:
    """Make this rank's device current, and return it, a group of the backend `mscclpp` beside NCCL's, and
    collectives.
    """
    import mscclpp
    import mscclpp.torch

    device = torch.device("cuda", int(os.environ["RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    ours = dist.new_group(backend="mscclpp")
    return device, ours, mscclpp.Collectives(dist.group.WORLD, device.index)


def graph_of(calls: Callable[[], object], times: int) -> Any:
    """Capture `calls` in a graph, that many times one after the other. They run once before."""
    calls()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            calls()
    return graph


def timed(graph: Any, replays: int, calls: int) -> float:
    """Return the microseconds for one of the `calls` of a graph: the median of seven times of so many replays."""
    times: list[float] = []
    for _ in range(7):
        dist.barrier()
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / (replays * calls))
    return statistics.median(times)


def of_host(call: Callable[[], object], calls: int, rounds: int) -> list[tuple[float, float]]:
    """Return the microseconds of a call, and how many of them it takes of the host, in each round of so many calls. The host
    waits for the last one of a round.
    """
    times = []
    for _ in range(rounds):
        dist.barrier()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        made = time.perf_counter()
        torch.cuda.synchronize()
        times.append(((time.perf_counter() - begin) * 1e6 / calls, (made - begin) * 1e6 / calls))
    return times


def calls_of(
    group: Any, x: Any, parts: Any, taken: Any, peer: int, wait: Callable[[Any], object]
) -> dict[str, Callable[[], object]]:
    """Return a call of each kind that all ranks make alike. `parts` has room for `x` of all ranks."""

    def coalesced() -> None:
        with dist._coalescing_manager(group):
            for _ in range(16):
                dist.all_reduce(x, group=group)

    def batch() -> None:
        ops = [dist.P2POp(dist.isend, x, peer, group), dist.P2POp(dist.irecv, taken, peer, group)]
        for work in dist.batch_isend_irecv(ops):
            wait(work)

    return {
        "all_reduce": lambda: dist.all_reduce(x, group=group),
        "all_reduce, with async_op": lambda: wait(dist.all_reduce(x, group=group, async_op=True)),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(parts, x, group=group),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(x, parts, group=group),
        "all_to_all_single": lambda: dist.all_to_all_single(taken, x, group=group),
        "broadcast": lambda: dist.broadcast(x, 0, group=group),
        "batch_isend_irecv of 2": batch,
        "16 all_reduces, coalesced": coalesced,
    }
