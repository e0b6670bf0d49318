"""Microseconds of eager calls of 1 KiB from Python, by two GPUs with PyTorch.

    NCCL_NVLS_ENABLE=0 python benchmarks/eager.py

It starts itself as the two ranks. To compare with the same calls from Rust: `mscclpp-bench all-reduce -b 1K -e 1K --eager`.
A figure is the least of 60 times of 500 calls, of which the host waits for the last. `on the host` is what the calls
themselves take of it. What the first row takes less than the second is what Python does with the arguments.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from timing import as_ranks, calls_of, joined, of_host

CALLS = 500
ROUNDS = 3


def timed(call: Callable[[], object]) -> tuple[float, float]:
    whole, of_calls = zip(*of_host(call, CALLS, 20), strict=True)
    return min(whole), min(of_calls)


def of_group(numbers: torch.Tensor, group: Any) -> dict[str, Callable[[], object]]:
    """Return a call of each kind."""
    peer, parts, taken = 1 - dist.get_rank(), numbers.repeat(2), numbers.clone()
    return calls_of(group, numbers, parts, taken, peer, lambda work: work.wait()) | {
        "send, recv": lambda: (dist.send if peer else dist.recv)(numbers, peer, group=group)
    }


def rank() -> None:
    device, ours, comm = joined()
    numbers = torch.zeros(512, dtype=torch.float16, device=device)
    stream = torch.cuda.current_stream().cuda_stream
    request = ("all_reduce", numbers.data_ptr(), numbers.data_ptr(), numbers.numel(), "float16", "sum", 0)
    calls = {
        "the library alone, with all arguments ready": lambda: comm._made.enqueue([request], stream),
        "Collectives.all_reduce": lambda: comm.all_reduce(numbers),
        "the same, with the stream": lambda: comm.all_reduce(numbers, stream=stream),
    }
    by_nccl = of_group(numbers, dist.group.WORLD)
    for kind, call in of_group(numbers, ours).items():
        calls |= {f"{kind}, by the backend mscclpp": call, f"{kind}, by NCCL": by_nccl[kind]}
    # Each kind of call is measured in turn, and the best time counts, because other programs disturb some of them.
    rounds = [{name: timed(call) for name, call in calls.items()} for _ in range(ROUNDS)]
    # Beside the default stream, which the program's other streams wait for.
    with torch.cuda.stream(torch.cuda.Stream(device)):
        aside = timed(lambda: comm.all_reduce(numbers))
    if device.index == 0:
        for name in calls:
            whole, of_host = (min(figures) for figures in zip(*(each[name] for each in rounds), strict=True))
            print(f"{name}: {whole:.2f}, on the host {of_host:.2f}", flush=True)
        print(f"Collectives.all_reduce in another stream: {aside[0]:.2f}, on the host {aside[1]:.2f}", flush=True)
    comm.close()
    dist.destroy_process_group()


as_ranks(__file__, rank)
