"""Microseconds of the collectives by which engines serve a mixture of experts, by NCCL's C interface.

    python benchmarks/gathers.py LIBRARY RANKS

LIBRARY is NCCL's libnccl.so.2 or this project's. Each rank has T tokens of 7168 bf16 with 8 weights and 8 ids. It prints
the times of one all_gather of as many bytes; of three all_gathers in a group, and one by one; of broadcasts in a group, if
the ranks have T, T/2, 0 and T tokens; of the group with tokens of 7168 e4m3 and 56 scales; and of a reduce_scatter of 7168
bf16 for each token of all ranks. A graph has 20 calls, and a figure is the median of seven times of five replays.
"""

import ctypes
import os
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.multiprocessing as processes

CALLS = 20
BYTES, BF16, SUM = 0, 9, 0


class UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_byte * 128),)


def bytes_of(count: int) -> Any:
    return torch.zeros(count, dtype=torch.uint8, device="cuda")


class Rank:
    def __init__(self, library: str, rank: int, ranks: int, unique: bytes) -> None:
        torch.cuda.set_device(rank)
        self.nccl, self.rank, self.ranks = ctypes.CDLL(library), rank, ranks
        self.comm, self.stream = ctypes.c_void_p(), torch.cuda.Stream()
        #: Calls of a graph that is gone may be those for which another rank waits.
        self.graphs: list[Any] = []
        self.call("CommInitRank", ctypes.byref(self.comm), ranks, UniqueId.from_buffer_copy(unique), rank)

    def call(self, name: str, *args: Any) -> None:
        code = getattr(self.nccl, f"nccl{name}")(*args)
        if code != 0:
            raise RuntimeError(f"nccl{name} returned {code}")

    def move(self, name: str, given: Any, taken: Any, count: int, kind: int, *more: int) -> None:
        at = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (given, taken)]
        self.call(name, *at, ctypes.c_size_t(count), kind, *more, self.comm, ctypes.c_void_p(self.stream.cuda_stream))

    def gathers(self, sizes: list[int]) -> Callable[[], None]:
        tensors = [(bytes_of(size), bytes_of(size * self.ranks), size) for size in sizes]

        def calls() -> None:
            for given, taken, size in tensors:
                self.move("AllGather", given, taken, size, BYTES)

        return calls

    def broadcasts(self, sizes: list[list[int]]) -> Callable[[], None]:
        tensors = [(bytes_of(size), size, root) for of_roots in sizes for root, size in enumerate(of_roots) if size > 0]

        def calls() -> None:
            for tensor, size, root in tensors:
                self.move("Broadcast", tensor, tensor, size, BYTES, root)

        return calls

    def reduce_scatter(self, count: int) -> Callable[[], None]:
        given, taken = bytes_of(2 * count * self.ranks), bytes_of(2 * count)
        return lambda: self.move("ReduceScatter", given, taken, count, BF16, SUM)

    def grouped(self, calls: Callable[[], None]) -> Callable[[], None]:
        def group() -> None:
            self.call("GroupStart")
            calls()
            self.call("GroupEnd")

        return group

    def timed(self, calls: Callable[[], None]) -> float:
        times: list[float] = []
        with torch.cuda.stream(self.stream):
            calls()
            self.stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
                for _ in range(CALLS):
                    calls()
            self.graphs.append(graph)
            for _ in range(7):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                graph.replay()
                begin.record()
                for _ in range(5):
                    graph.replay()
                end.record()
                self.stream.synchronize()
                times.append(begin.elapsed_time(end) * 1e3 / (5 * CALLS))
        return statistics.median(times)


def rank(number: int, library: str, ranks: int, unique: bytes) -> None:
    own = Rank(library, number, ranks, unique)
    for tokens in (1, 8, 32, 128, 512, 1024, 4096):
        shares = [[tokens, tokens // 2, 0, tokens][r % 4] for r in range(ranks)]
        sizes = [7168 * 2, 8 * 4, 8 * 4]
        three = own.gathers([tokens * size for size in sizes])
        figures = {
            "one": own.gathers([tokens * sum(sizes)]),
            "a group": own.grouped(three),
            "one by one": three,
            "broadcasts": own.grouped(own.broadcasts([[share * size for share in shares] for size in sizes])),
            "e4m3": own.grouped(own.gathers([tokens * size for size in (7168 + 224, 8 * 4, 8 * 4)])),
            "reduce_scatter": own.reduce_scatter(7168 * tokens),
        }
        row = ", ".join(f"{name} {own.timed(calls):.2f}" for name, calls in figures.items())
        if number == 0:
            print(f"{ranks} ranks, {tokens} tokens: {row}", flush=True)
    # Without destructors, which would free what other ranks' graphs may use.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    library, ranks = sys.argv[1], int(sys.argv[2])
    unique = UniqueId()
    if ctypes.CDLL(library).ncclGetUniqueId(ctypes.byref(unique)) != 0:
        sys.exit("ncclGetUniqueId failed")
    processes.spawn(rank, (library, ranks, bytes(unique)), ranks)
