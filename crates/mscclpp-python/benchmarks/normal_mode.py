"""Microseconds of the normal calls of `deep_ep`: dispatch, combine and `get_dispatch_layout`, by this library and by DeepEP.

    NCCL_NVLS_ENABLE=0 python benchmarks/normal_mode.py RANKS [TOKENS...]

It starts itself as the ranks, one on each GPU. Tokens of 7168 numbers have 8 of 256 experts. *Cached* is a dispatch by the
handle of an earlier one, *whole* one with choices, weights and `num_worst_tokens`, *round* the layout, a whole dispatch of
bf16 and its combine: all of them in CUDA graphs. *Waits* is a dispatch for which the host waits for the counts. If a package
`deep_ep` is installed, its calls are measured beside ours, and what arrives is compared. For DeepEP there are its time with
its configuration for so many ranks, and the best of several configurations.
"""

import importlib
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from timing import as_ranks, graph_of, joined, of_host, timed

H, E, K = 7168, 256, 8
#: Multiprocessors and tokens of a chunk that DeepEP's calls are measured with, besides its configuration.
CONFIGURATIONS = [(blocks, chunk) for blocks in (24, 64, 128) for chunk in (8, 16, 32)]


class Calls:
    """The calls of one package with the same tokens."""

    def __init__(self, package: Any, buffer: Any, tokens: int, configuration: tuple[int, int] | None) -> None:
        self.buffer, ranks, device = buffer, dist.get_world_size(), torch.cuda.current_device()
        torch.manual_seed(device)
        self.x = torch.randn(tokens, H, device="cuda", dtype=torch.bfloat16)
        self.quantised = (self.x.to(torch.float8_e4m3fn), torch.rand(tokens, H // 128, device="cuda"))
        scores = torch.rand(tokens, E, device="cuda")
        self.weights, self.ids = (each.contiguous() for each in scores.topk(K, 1))
        self.worst = ranks * tokens
        if configuration is None:
            self.sends, self.sums = package.Buffer.get_dispatch_config(ranks), package.Buffer.get_combine_config(ranks)
        else:
            self.sends = self.sums = package.Config(*configuration, 256)
        self.layout = buffer.get_dispatch_layout(self.ids, E)
        self.rows, _, _, _, self.handle, _ = self.waits()

    def whole(self, x: Any, **more: Any) -> Any:
        of_ranks, _, of_experts, of_tokens, _ = self.layout
        return self.buffer.dispatch(
            x,
            num_tokens_per_rank=of_ranks,
            is_token_in_rank=of_tokens,
            num_tokens_per_expert=of_experts,
            topk_idx=self.ids,
            topk_weights=self.weights,
            config=self.sends,
            **more,
        )

    def waits(self) -> Any:
        return self.whole(self.x)

    def in_place(self, x: Any) -> Any:
        return self.whole(x, num_worst_tokens=self.worst)

    def cached(self, x: Any) -> Any:
        return self.buffer.dispatch(x, handle=self.handle, config=self.sends)

    def combine(self) -> Any:
        return self.buffer.combine(self.rows, self.handle, config=self.sums)

    def round(self) -> None:
        self.layout = self.buffer.get_dispatch_layout(self.ids, E)
        rows, _, _, _, handle, _ = self.in_place(self.x)
        self.buffer.combine(rows, handle, config=self.sums)

    def in_graphs(self) -> dict[str, Callable[[], object]]:
        return {
            "cached, bf16": lambda: self.cached(self.x),
            "cached, fp8": lambda: self.cached(self.quantised),
            "whole, bf16": lambda: self.in_place(self.x),
            "whole, fp8": lambda: self.in_place(self.quantised),
            "combine": self.combine,
            "round": self.round,
            "get_dispatch_layout": lambda: self.buffer.get_dispatch_layout(self.ids, E),
        }

    def times(self) -> dict[str, float]:
        found = {name: timed(graph_of(call, 10), 5, 10) for name, call in self.in_graphs().items()}
        self.waits()
        found["waits, bf16"] = statistics.median(whole for whole, _ in of_host(self.waits, 10, 7))
        return found


def compare(ours: Calls, theirs: Calls) -> None:
    assert torch.equal(ours.rows, theirs.rows), "rows differ"
    for one, other in zip(ours.cached(ours.quantised)[0], theirs.cached(theirs.quantised)[0], strict=True):
        assert torch.equal(one.view(torch.uint8), other.view(torch.uint8)), "quantised rows or scales differ"
    for one, other in zip(ours.in_place(ours.x)[1:3], theirs.in_place(theirs.x)[1:3], strict=True):
        assert torch.equal(one[: len(ours.rows)], other[: len(ours.rows)]), "choices or weights differ"
    assert torch.allclose(ours.combine()[0], theirs.combine()[0]), "sums differ"


def rank() -> None:
    device, _, comm = joined()
    group = dist.new_group(backend="gloo")
    package = importlib.import_module("mscclpp._deep_ep")
    buffer = package.Buffer(group, 1 << 30)
    try:
        other = importlib.import_module("deep_ep")
        others = other.Buffer(group, 2 << 30)
    except ModuleNotFoundError:
        other = None
    for tokens in [int(each) for each in sys.argv[2:]] or [1, 128, 512, 1024, 4096]:
        ours = Calls(package, buffer, tokens, None)
        columns = {"ours": ours.times()}
        if other is not None:
            theirs = Calls(other, others, tokens, None)
            compare(ours, theirs)
            columns["DeepEP"] = theirs.times()
            tuned = [Calls(other, others, tokens, each).times() for each in CONFIGURATIONS]
            columns["its best"] = {
                name: min(figure, *(each[name] for each in tuned)) for name, figure in columns["DeepEP"].items()
            }
            columns["ours again"] = ours.times()
        for name in columns["ours"]:
            figures = ", ".join(f"{column} {of[name]:.1f}" for column, of in columns.items())
            if device.index == 0:
                print(f"{tokens} tokens, {name}: {figures}", flush=True)
    buffer.destroy()
    comm.close()
    dist.destroy_process_group()


as_ranks(__file__, rank, int(sys.argv[1]))
