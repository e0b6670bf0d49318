"""Microseconds of 16 all_reduces in a CUDA graph of two GPUs with PyTorch: single, as a group, as a group of NCCL.

    python benchmarks/groups.py

It starts itself as the two ranks. A graph has ten groups, and a figure is the median of seven times of 20 replays.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from timing import as_ranks, graph_of, joined, timed


def rank() -> None:
    device, _, comm = joined()
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

        figures = [timed(graph_of(calls, 10), 20, 10) for calls in (each, grouped, of_nccl)]
        if device.index == 0:
            one_by_one, group, nccl = (f"{figure:.2f}" for figure in figures)
            print(f"16 x {count} bf16: one by one {one_by_one}, a group {group}, a group of NCCL's {nccl}", flush=True)
    comm.close()
    dist.destroy_process_group()


as_ranks(__file__, rank)
