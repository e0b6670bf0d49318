"""Microseconds of groups of reductions in a CUDA graph of the GPUs with PyTorch: single, as a group, as a group of NCCL.

    python benchmarks/groups.py [RANKS]

It starts itself as the ranks, two of them if nothing is said. A figure is the median of seven times of 20 replays.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from timing import as_ranks, graph_of, joined, timed

#: Kind, calls of a group, and how many bf16 each gives.
ROWS = [("all_reduce", 16, count) for count in (64, 512, 2048, 8192)] + [
    (kind, calls, kib << 9)
    for kind in ("reduce_scatter", "all_reduce")
    for calls in (2, 3, 8)
    for kib in (16, 64, 256, 1024, 4096, 65536)
]


def rank() -> None:
    device, _, comm = joined()
    ranks = dist.get_world_size()
    for kind, calls, count in ROWS:
        pairs = []
        for _ in range(calls):
            recv = torch.ones(count, dtype=torch.bfloat16, device=device)
            send = recv if kind == "all_reduce" else recv.repeat(ranks)
            pairs.append((send, recv))
        # As many calls as a graph of ten groups of 16.
        groups = max(1, min(10, (256 << 20) // (calls * 2 * count)))

        def each(kind: str = kind, pairs: list[Any] = pairs) -> None:
            for send, recv in pairs:
                getattr(comm, kind)(send, out=recv)

        def grouped(each: Callable[[], None] = each) -> None:
            with comm.group():
                each()

        def of_nccl(kind: str = kind, pairs: list[Any] = pairs) -> None:
            with dist._coalescing_manager(device=device, async_ops=False):
                for send, recv in pairs:
                    if kind == "all_reduce":
                        dist.all_reduce(recv)
                    else:
                        dist.reduce_scatter_tensor(recv, send)

        figures = [timed(graph_of(each_of, groups), 20, groups) for each_of in (each, grouped, of_nccl)]
        if device.index == 0:
            one_by_one, group, nccl = (f"{figure:.2f}" for figure in figures)
            row = f"{calls} x {kind} of {count} bf16"
            print(f"{row}: one by one {one_by_one}, a group {group}, a group of NCCL's {nccl}", flush=True)
    comm.close()
    dist.destroy_process_group()


as_ranks(__file__, rank, int(sys.argv[1]) if len(sys.argv) > 1 else 2)
