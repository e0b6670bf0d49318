"""Microseconds that the backend of torch.distributed takes of the host for a call, without those of the collectives.

    MSCCLPP_PLATFORM=sim python benchmarks/backend.py

It needs no GPU: one rank takes CPU tensors for those of a GPU, and no launch is made. Beside each time is that of a backend
that does nothing, which is PyTorch's own. A figure is the median of 40 times of 200 calls, and the least of them.
"""

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ["MSCCLPP_TORCH_SIMULATED"] = "1"

import mscclpp._torch_lane as lanes
import mscclpp._torch_work as works
import mscclpp.torch as backend
import torch
import torch.distributed as dist
from timing import calls_of


class Nothing(dist.ProcessGroup):  # type: ignore[misc]
    """A backend whose calls do nothing."""

    supports_coalescing = True

    def __init__(self, store: Any, rank: int, size: int, _timeout: Any) -> None:
        super().__init__(rank, size)

    def _get_backend(self, _device: Any) -> Any:
        return self

    def nothing(self, *_: Any, **__: Any) -> None:
        pass

    allreduce = allreduce_coalesced = broadcast = all_gather_single = reduce_scatter_single = nothing
    all_to_all_single = _allgather_base = _reduce_scatter_base = alltoall_base = nothing
    send = recv = _start_coalescing = _end_coalescing = nothing


class Made:
    """Collectives that do nothing, and a point in a stream."""

    is_simulated = is_captured = False
    device = 0

    def __init__(self) -> None:
        self._made = self

    def nothing(self, *_: Any) -> None:
        pass

    enqueue = last_call = hold = check = nothing

    def enqueue_behind(self, *_: Any) -> Any:
        return self


class Stream:
    cuda_stream = 1


def timed(call: Callable[[], object]) -> str:
    times = []
    for _ in range(40):
        begin = time.perf_counter()
        for _ in range(200):
            call()
        times.append((time.perf_counter() - begin) * 1e6 / 200)
    return f"{statistics.median(times):6.2f} (least {min(times):.2f})"


def of_group(group: Any, waits: Callable[[Any], object]) -> dict[str, Callable[[], object]]:
    """Return a call of each kind."""
    x, y = torch.ones(256), torch.ones(256)

    def both() -> None:
        works = dist.isend(x, group=group, group_dst=1), dist.irecv(y, group=group, group_src=1)
        for work in works:
            waits(work)

    return calls_of(group, x, y, y, 0, waits) | {
        "send": lambda: dist.send(x, group=group, group_dst=1),
        "recv": lambda: dist.recv(y, group=group, group_src=1),
        "isend and irecv": both,
    }


def main() -> None:
    for module in (lanes, works):
        setattr(module, "current_stream", lambda _device: 0)  # noqa: B010 (the names are not those of types)
    torch.cuda.Stream = lambda *_, **__: Stream()
    torch.cuda.current_stream = lambda _device: None

    def lane(group: Any, _device: Any, _key: str, _ranks: Any) -> lanes.Lane:
        made: Any = Made()
        lane = lanes.Lane(made, 60.0, group._described, None, group._forget)
        # The number that a CPU tensor says.
        lane.index = -1
        return lane

    setattr(backend.ProcessGroup, "_make_lane", lane)  # noqa: B010
    dist.Backend.register_backend("nothing", Nothing, devices=["cpu"])
    dist.init_process_group("mscclpp", store=dist.HashStore(), rank=0, world_size=1)
    nothing = of_group(dist.new_group(backend="nothing"), lambda work: None)
    for kind, call in of_group(dist.group.WORLD, lambda work: work.wait()).items():
        print(f"{kind:26} {timed(call)}, PyTorch's own {timed(nothing[kind])}", flush=True)
    # No collectives are to be closed.
    os._exit(0)


main()
