"""Microseconds of a decode step of a tensor-parallel MLP, in a CUDA graph, by two GPUs with PyTorch.

    TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NCCL_NVLS_ENABLE=0 python benchmarks/decode.py [TOKENS...]

It starts itself as the two ranks. A layer multiplies by a part of two weights, adds up the ranks' results, adds the residual
and normalises (RMSNorm); what differs is what does the last three. A graph has 16 layers, which share their weights: one
layer's are larger than the cache. `without` leaves the sum out, and is what the rest of a layer takes. With small weights,
`narrow`, the calls are most of a layer.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric
from timing import as_ranks, graph_of, joined, timed

HIDDEN, LAYERS, REPLAYS = 8192, 16, 10


def normalised(sums: Any, residual: Any, weight: Any) -> Any:
    residual.add_(sums)
    return torch.nn.functional.rms_norm(residual, (HIDDEN,), weight, 1e-5)


def rank() -> None:
    device, ours, comm = joined()
    if device.index == 0:
        print(
            f"{torch.cuda.get_device_name()}, torch {torch.__version__}, NCCL {torch.cuda.nccl.version()}", flush=True
        )
    for tokens in map(int, sys.argv[1:] or ["1", "16", "64"]):
        for name, inner in (("narrow", 128), ("MLP of 28672", 14336)):
            layers = dict(ways(comm, ours, tokens, inner, device))
            for way, layer in layers.items():
                try:
                    figure = f"{timed(graph_of(layer, LAYERS), REPLAYS, LAYERS):.2f}"
                except RuntimeError as error:
                    figure = str(error).splitlines()[0]
                if device.index == 0:
                    print(f"{tokens} x {HIDDEN}, {name}, {way}: {figure}", flush=True)
    comm.close()
    dist.destroy_process_group()


def ways(comm: Any, ours: Any, tokens: int, inner: int, device: Any) -> list[tuple[str, Callable[[], object]]]:
    def random(*shape: int) -> Any:
        return torch.randn(*shape, dtype=torch.bfloat16, device=device) / HIDDEN**0.5

    x, residual, weight = random(tokens, HIDDEN), random(tokens, HIDDEN), random(HIDDEN)
    up, down = random(HIDDEN, inner), random(inner, HIDDEN)
    shared = symmetric.empty(tokens, HIDDEN, dtype=torch.bfloat16, device=device)
    symmetric.rendezvous(shared, dist.group.WORLD.group_name)

    def partial(out: Any = None) -> Any:
        return torch.matmul(torch.nn.functional.silu(torch.matmul(x, up)), down, out=out)

    def by(reduce: Callable[[Any], object]) -> Callable[[], object]:
        def layer() -> Any:
            sums = partial()
            reduce(sums)
            return normalised(sums, residual, weight)

        return layer

    def fused() -> Any:
        return comm.all_reduce_rms_norm(partial(), residual, weight, 1e-5)

    def by_symmetric() -> Any:
        partial(shared)
        sums = torch.ops.symm_mem.one_shot_all_reduce(shared, "sum", dist.group.WORLD.group_name)
        return normalised(sums, residual, weight)

    return [
        ("without", by(lambda sums: None)),
        ("NCCL", by(lambda sums: dist.all_reduce(sums))),
        ("symmetric memory of torch", by_symmetric),
        ("the backend mscclpp", by(lambda sums: dist.all_reduce(sums, group=ours))),
        ("Collectives.all_reduce", by(lambda sums: comm.all_reduce(sums))),
        ("Collectives.all_reduce_rms_norm", fused),
    ]


as_ranks(__file__, rank)
