"""Microseconds of a layer of experts, played as serving engines play it, with PyTorch.

    NCCL_NVLS_ENABLE=0 python benchmarks/moe_layer.py RANKS [MULTIPROCESSORS]

It starts itself as the ranks, one on each GPU. Tokens of 7168 bf16 have 8 of 256 experts of two multiplications. `decode`
has 16 tokens of a rank in a CUDA graph, in rows of fixed places; `prefill` has 4096 of a rank, eager, in two micro-
batches. Either goes by `deep_ep` in the order of the calls of engines, by `mscclpp.ep`, whose bits are compared with
those of `deep_ep`, and by all_gathers and a reduce_scatter: by NCCL, and by the backend `mscclpp`. `multiplications`
leaves out what is between the ranks.
"""

import importlib
import statistics
import sys
from collections.abc import Callable
from typing import Any

import mscclpp.ep
import torch
import torch.distributed as dist
from timing import as_ranks, graph_of, joined, of_host, timed

H, E, K, INNER = 7168, 256, 8, 512
DECODE, PREFILL = 16, 4096

mscclpp.ep.install_deep_ep()


class Layer:
    """The experts of this rank."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.ranks, self.n, self.first = ranks, E // ranks, rank * E // ranks
        self.up = torch.randn(self.n, H, INNER, device="cuda", dtype=torch.bfloat16) / H**0.5
        self.down = torch.randn(self.n, INNER, H, device="cuda", dtype=torch.bfloat16) / INNER**0.5

    def of_places(self, rows: torch.Tensor) -> torch.Tensor:
        """Return what experts make of [experts, places, numbers]."""
        return torch.bmm(torch.nn.functional.silu(torch.bmm(rows, self.up)), self.down)

    def of_rows(self, rows: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return the weighted sums of what experts make of [rows, numbers]; a choice -1 is none of this rank."""
        keys = torch.where(ids < 0, self.n, ids).flatten()
        ends = torch.bincount(keys, minlength=self.n + 1)[: self.n].cumsum(0)
        order = torch.argsort(keys, stable=True)[: int(ends[-1])]
        offsets = ends.to(torch.int32)
        hidden = torch.nn.functional.silu(torch._grouped_mm(rows[order // K], self.up, offs=offsets))
        made = torch._grouped_mm(hidden, self.down, offs=offsets) * weights.flatten()[order, None].to(torch.bfloat16)
        terms = torch.zeros(len(keys), H, device="cuda", dtype=torch.bfloat16).index_copy_(0, order, made)
        return terms.view(-1, K, H).sum(1)


class Tokens:
    def __init__(self, count: int) -> None:
        self.x = torch.randn(count, H, device="cuda", dtype=torch.bfloat16)
        scores = torch.randn(count, E, device="cuda")
        self.weights, self.ids = (each.contiguous() for each in scores.softmax(1).topk(K, 1))


def decode_by_deep_ep(buffer: Any, layer: Layer, tokens: Tokens) -> torch.Tensor:
    x, _, handle, _, hook = buffer.low_latency_dispatch(
        tokens.x, tokens.ids, DECODE, E, use_fp8=False, async_finish=False, return_recv_hook=True
    )
    hook()
    made = layer.of_places(x)
    out, _, hook = buffer.low_latency_combine(
        made, tokens.ids, tokens.weights, handle, async_finish=False, return_recv_hook=True
    )
    hook()
    return out


def decode_by_ep(experts: Any, layer: Layer, tokens: Tokens) -> torch.Tensor:
    routed = experts.dispatch(tokens.x, tokens.ids, layout="expert")
    made = layer.of_places(routed.out[0].view(layer.n, layer.ranks * DECODE, H))
    return experts.combine(routed, made, weights=tokens.weights)


def decode_by_collectives(group: Any, layer: Layer, tokens: Tokens) -> torch.Tensor:
    x, ids, weights = gathered(group, layer, tokens)
    keys = ids.flatten() - layer.first
    chosen = (keys[:, None] == torch.arange(layer.n, device="cuda")[None]).int()
    # The place of each choice among those of its expert; those of other ranks' experts go to a row behind the last.
    number = ((chosen.cumsum(0) - 1) * chosen).sum(1)
    most = layer.ranks * DECODE
    place = torch.where((keys >= 0) & (keys < layer.n), keys * most + number, layer.n * most)
    rows = torch.zeros(layer.n * most + 1, H, device="cuda", dtype=torch.bfloat16)
    rows.index_copy_(0, place, x.repeat_interleave(K, 0))
    made = layer.of_places(rows[:-1].view(layer.n, most, H)).view(-1, H)
    made = torch.cat([made, torch.zeros(1, H, device="cuda", dtype=torch.bfloat16)])
    terms = made[place].view(-1, K, H) * weights[:, :, None].to(torch.bfloat16)
    return scattered(group, terms.sum(1), layer)


def prefill_by_deep_ep(buffer: Any, layer: Layer, batches: list[Tokens]) -> list[torch.Tensor]:
    config, under_way = buffer.get_dispatch_config(layer.ranks), []
    for tokens in batches:
        of_ranks, _, of_experts, of_tokens, _ = buffer.get_dispatch_layout(tokens.ids, E)
        under_way.append(
            buffer.dispatch(
                tokens.x,
                num_tokens_per_rank=of_ranks,
                is_token_in_rank=of_tokens,
                num_tokens_per_expert=of_experts,
                topk_idx=tokens.ids,
                topk_weights=tokens.weights,
                config=config,
                previous_event=buffer.capture(),
                async_finish=True,
                allocate_on_comm_stream=True,
            )
        )
    combined = []
    for x, ids, weights, _, handle, event in under_way:
        event.current_stream_wait()
        made = layer.of_rows(x, ids, weights)
        combined.append(buffer.combine(made, handle, previous_event=buffer.capture(), async_finish=True))
    for _, _, event in combined:
        event.current_stream_wait()
    return [out for out, _, _ in combined]


def prefill_by_ep(experts: Any, layer: Layer, batches: list[Tokens]) -> list[torch.Tensor]:
    results, rows = [], layer.ranks * PREFILL // 2
    for micro_batch, tokens in enumerate(batches):
        ids = torch.full((rows, K), -1, device="cuda")
        weights = torch.zeros(rows, K, device="cuda")
        routed = experts.dispatch(
            tokens.x,
            tokens.ids,
            tokens.weights,
            layout="token",
            ids_into=ids,
            weights_into=weights,
            micro_batch=micro_batch,
        )
        results.append(experts.combine(routed, layer.of_rows(routed.out[0], ids, weights)))
    return results


def prefill_by_collectives(group: Any, layer: Layer, batches: list[Tokens]) -> list[torch.Tensor]:
    results = []
    for tokens in batches:
        x, ids, weights = gathered(group, layer, tokens)
        local = ids - layer.first
        mine = (local >= 0) & (local < layer.n)
        results.append(scattered(group, layer.of_rows(x, torch.where(mine, local, -1), weights), layer))
    return results


def gathered(group: Any, layer: Layer, tokens: Tokens) -> list[torch.Tensor]:
    own = (tokens.x, tokens.ids, tokens.weights)
    everybody = [torch.empty(layer.ranks * len(each), *each.shape[1:], device="cuda", dtype=each.dtype) for each in own]
    with dist._coalescing_manager(group, device=tokens.x.device):
        for each, out in zip(own, everybody, strict=True):
            dist.all_gather_into_tensor(out, each, group=group)
    return everybody


def scattered(group: Any, terms: torch.Tensor, layer: Layer) -> torch.Tensor:
    out = torch.empty(len(terms) // layer.ranks, H, device="cuda", dtype=terms.dtype)
    dist.reduce_scatter_tensor(out, terms, group=group)
    return out


def rank() -> None:
    device, ours, comm = joined()
    deep_ep = importlib.import_module("deep_ep")

    if len(sys.argv) > 2:
        deep_ep.Buffer.set_num_sms(int(sys.argv[2]))
    ranks = dist.get_world_size()
    torch.manual_seed(device.index)
    layer, nccl = Layer(device.index, ranks), dist.group.WORLD
    small, batches = Tokens(DECODE), [Tokens(PREFILL // 2) for _ in range(2)]
    bytes_of_rows = deep_ep.Buffer.get_low_latency_rdma_size_hint(DECODE, H, ranks, E)
    buffer = deep_ep.Buffer(nccl, 1 << 30, bytes_of_rows, True)
    few, many = (
        mscclpp.ep.Experts(nccl, experts=E, top_k=K, hidden=H, capacity=capacity, micro_batches=2)
        for capacity in (DECODE, PREFILL // 2)
    )
    places = torch.randn(layer.n, ranks * DECODE, H, device="cuda", dtype=torch.bfloat16)
    some = torch.randint(0, layer.n, (ranks * PREFILL // 2, K), device="cuda")
    some = torch.where(torch.rand(some.shape, device="cuda") < 1 / ranks, some, -1)
    decoded: dict[str, Callable[[], Any]] = {
        "multiplications": lambda: layer.of_places(places),
        "deep_ep": lambda: decode_by_deep_ep(buffer, layer, small),
        "mscclpp.ep": lambda: decode_by_ep(few, layer, small),
        "collectives of NCCL": lambda: decode_by_collectives(nccl, layer, small),
        "collectives of the backend": lambda: decode_by_collectives(ours, layer, small),
    }
    rows = torch.randn(ranks * PREFILL // 2, H, device="cuda", dtype=torch.bfloat16)
    weights = torch.rand(some.shape, device="cuda")
    prefilled: dict[str, Callable[[], object]] = {
        "multiplications": lambda: [layer.of_rows(rows, some, weights) for _ in batches],
        "deep_ep": lambda: prefill_by_deep_ep(buffer, layer, batches),
        "mscclpp.ep": lambda: prefill_by_ep(many, layer, batches),
        "collectives of NCCL": lambda: prefill_by_collectives(nccl, layer, batches),
        "collectives of the backend": lambda: prefill_by_collectives(ours, layer, batches),
    }
    assert torch.equal(decoded["deep_ep"](), decoded["mscclpp.ep"]()), "decode: bits differ"
    for one, other in zip(prefill_by_deep_ep(buffer, layer, batches), prefill_by_ep(many, layer, batches), strict=True):
        assert torch.equal(one, other), "prefill: bits differ"
    for name, step in decoded.items():
        figure = timed(graph_of(step, 10), 10, 10)
        if device.index == 0:
            print(f"decode, {DECODE} tokens, {name}: {figure:.1f}", flush=True)
    for name, steps in prefilled.items():
        steps()
        figure = statistics.median(whole for whole, _ in of_host(steps, 10, 7))
        if device.index == 0:
            print(f"prefill, {PREFILL} tokens, {name}: {figure:.0f}", flush=True)
    buffer.destroy()
    comm.close()
    dist.destroy_process_group()


as_ranks(__file__, rank, int(sys.argv[1]))
