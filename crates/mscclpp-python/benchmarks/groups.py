"""Microseconds of 16 all_reduces in a CUDA graph, by two GPUs with PyTorch: one by one, as a group, as a group of NCCL's.

    python benchmarks/groups.py

It starts itself as the two ranks. A graph has ten groups, and a figure is the median of seven times of 20 replays.
"""

import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any


def graph_of(torch: Any, calls: Callable[[], None]) -> Any:
    calls()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(10):
            calls()
    return graph


def timed(torch: Any, dist: Any, graph: Any) -> float:
    times: list[float] = []
    for _ in range(7):
        dist.barrier()
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(20):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / 200)
    return statistics.median(times)


def rank() -> None:
    import mscclpp
    import torch
    import torch.distributed as dist

    device = torch.device("cuda", int(os.environ["RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    comm = mscclpp.Collectives(dist.group.WORLD, device.index)
    for count in (64, 512, 2048, 8192):
        tensors = [torch.ones(count, dtype=torch.bfloat16, device=device) for _ in range(16)]

        def each(tensors: list[Any] = tensors) -> None:
            for tensor in tensors:
                comm.all_reduce(tensor)

        def grouped(each: Callable[[], None] = each) -> None:
            with comm.group():
                each()

        def of_nccl(tensors: list[Any] = tensors) -> None:
            with dist._coalescing_manager(device=device, async_ops=False):
                for tensor in tensors:
                    dist.all_reduce(tensor)

        figures = [timed(torch, dist, graph_of(torch, calls)) for calls in (each, grouped, of_nccl)]
        if device.index == 0:
            one_by_one, group, nccl = (f"{figure:.2f}" for figure in figures)
            print(f"16 x {count} bf16: one by one {one_by_one}, a group {group}, a group of NCCL's {nccl}", flush=True)
    comm.close()
    dist.destroy_process_group()


if "RANK" in os.environ:
    rank()
else:
    common = dict(os.environ, WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="29543")
    started = [
        subprocess.Popen([sys.executable, __file__], env=dict(common, RANK=str(r), LOCAL_RANK=str(r))) for r in range(2)
    ]
    sys.exit(max(process.wait() for process in started))
