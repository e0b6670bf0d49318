"""The low-latency mode of `deep_ep`: each expert has room for all tokens of all ranks, and nothing waits for the host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch

from ._deep_ep_normal import experts_of_rank
from ._deep_ep_setup import Ranks, SetUp, Shape
from .ep import Routed

#: The second half of a call.
Hook = Callable[[], None]

#: The numbers that have one scale.
_GROUP = 128


class Handle(tuple[Any, ...]):
    """The routing of a dispatch, for the combine: a tuple of five elements. L is the number of this rank's experts, and N
    of the rows of each.

    They are the token's number on its rank, for each row (int32 [L, N]); where the rows of each rank begin, times 2^32,
    plus their number (int64 [L, R]); the most tokens of a rank, the numbers of a token, and the experts. The first two
    are for tests. They are made when they are read, in the current stream, and are those of rows that have come.
    """

    set_up: SetUp
    routed: Routed
    micro_batch: int
    #: The source rank and the token of each row, [L, N, 2], and the number of rows of each expert.
    sources: torch.Tensor
    counts: torch.Tensor
    n_ranks: int
    #: The rows for a combine without a copy, if the program has asked for them.
    to_combine: torch.Tensor | None = None

    def __getitem__(self, index: Any) -> Any:
        return tuple(self)[index]

    def __iter__(self) -> Iterator[Any]:
        yield self.sources[..., 1]
        yield self._ranges()
        yield from tuple.__iter__(self)

    def __len__(self) -> int:
        return 2 + tuple.__len__(self)

    def _ranges(self) -> torch.Tensor:
        rows = torch.arange(self.sources.shape[1], device=self.sources.device)
        has_come = (rows < self.counts[:, None])[..., None]
        of_rank = self.sources[..., :1] == torch.arange(self.n_ranks, device=self.sources.device)
        counts = (of_rank & has_come).sum(1)
        return (counts.cumsum(1) - counts) << 32 | counts


def dispatch(
    ranks: Ranks,
    x: torch.Tensor,
    topk_idx: torch.Tensor,
    most: int,
    num_experts: int,
    stats: torch.Tensor | None,
    waits: torch.Tensor | None,
    use_fp8: bool,
    round_scale: bool,
    use_ue8m0: bool,
    with_hook: bool,
) -> tuple[Any, torch.Tensor, Handle, Hook]:
    """Sends tokens. Returns what comes: the rows of the local experts, their numbers, and the hook that receives them."""
    # More tokens than num_max_dispatch_tokens_per_rank are refused by the experts, which tell the other ranks.
    if x.dim() != 2 or topk_idx.dim() != 2:
        raise ValueError(
            f"arguments 'x' and 'topk_idx': expected matrices, got {tuple(x.shape)} and {tuple(topk_idx.shape)}"
        )
    if use_ue8m0 and not (use_fp8 and round_scale):
        raise ValueError("argument 'use_ue8m0': it takes use_fp8=True and round_scale=True, too")
    local, n, hidden = experts_of_rank(ranks, num_experts), ranks.size * most, x.shape[1]
    dtype = str(x.dtype).removeprefix("torch.")
    set_up = ranks.set_up(Shape(num_experts, topk_idx.shape[1], hidden, dtype, most), most)
    experts, is_by_column = set_up.experts, use_fp8
    rows = x.new_empty((local, n, hidden), dtype=torch.float8_e4m3fn if use_fp8 else None)
    out, scales, powers = [rows], None, None
    if use_fp8:
        groups = -(-hidden // _GROUP)
        experts = set_up.of_rows(quantise="e4m3_ue8m0" if round_scale else "e4m3")
        words, word = (-(-groups // 4), torch.int32) if use_ue8m0 else (groups, torch.float32)
        by_column = x.new_empty((local, words, n), dtype=word)
        scales = by_column.transpose(1, 2)
        if round_scale and not use_ue8m0:
            # They come as exponents, and become floats after that.
            powers, is_by_column = x.new_empty((local, n, -(-groups // 4) * 4), dtype=torch.uint8), False
        out.append(by_column if powers is None else powers)
    counts = x.new_zeros(local, dtype=torch.int32)
    sources = x.new_empty((local, n, 2), dtype=torch.int32)
    micro_batch = set_up.next_micro_batch()
    routed = experts.dispatch(
        x.contiguous(),
        topk_idx.contiguous(),
        layout="expert",
        out=tuple(out),
        micro_batch=micro_batch,
        column_major=is_by_column,
        sources_into=sources,
        counts_into=counts,
        waits_into=waits,
        hook=with_hook,
    )

    def take() -> None:
        ranks.settle(experts)
        if stats is not None:
            stats.add_(counts)
        if powers is not None and scales is not None:
            scales.copy_((powers[..., : scales.shape[2]].int() << 23).view(torch.float32))

    handle = Handle((most, hidden, num_experts))
    hook = _nothing
    if with_hook:
        routed, hook = _received(
            set_up, micro_batch, routed, take, (x, topk_idx, rows, scales, powers, counts, sources)
        )
    else:
        take()
    handle.set_up, handle.routed, handle.micro_batch = set_up, routed, micro_batch
    handle.sources, handle.counts, handle.n_ranks = sources, counts, ranks.size
    return rows if scales is None else (rows, scales), counts, handle, hook


def combine(
    ranks: Ranks,
    x: torch.Tensor,
    topk_idx: torch.Tensor,
    topk_weights: torch.Tensor,
    handle: Handle,
    zero_copy: bool,
    out: torch.Tensor | None,
    waits: torch.Tensor | None,
    with_hook: bool,
) -> tuple[torch.Tensor, Hook]:
    """Returns the weighted sum of each token's rows, and the hook that receives it."""
    routed, experts = handle.routed, handle.set_up.experts
    if topk_idx.shape != (routed.tokens, experts.top_k):
        raise ValueError(
            f"argument 'topk_idx': expected that of the dispatch, of shape {(routed.tokens, experts.top_k)}, got "
            f"{tuple(topk_idx.shape)}"
        )
    if zero_copy:
        if handle.to_combine is None:
            raise ValueError(
                "argument 'zero_copy': write the rows to get_next_low_latency_combine_buffer(handle) before the combine"
            )
        x = handle.to_combine
    if out is None:
        out = x.new_empty((routed.tokens, experts.hidden))
    x, weights = x.contiguous(), topk_weights.contiguous()
    made = experts.combine(routed, x, out, weights=weights, waits_into=waits, hook=with_hook)
    if not with_hook:
        ranks.settle(experts)
        return out, _nothing
    then = partial(ranks.settle, experts)
    return out, _received(handle.set_up, handle.micro_batch, made, then, (x, weights, out))[1]


def buffer_to_combine(handle: Handle) -> torch.Tensor:
    """Returns memory for the rows of a combine. The combine reads them where they are, so any memory will do."""
    if handle.to_combine is None:
        experts = handle.set_up.experts
        shape = (*handle.sources.shape[:2], experts.hidden)
        handle.to_combine = torch.empty(shape, dtype=getattr(torch, experts.dtype), device=handle.sources.device)
    return handle.to_combine


def _received(
    set_up: SetUp, micro_batch: int, made: Any, then: Hook, kept: Iterable[torch.Tensor | None]
) -> tuple[Any, Hook]:
    """Returns what a call that only sends has returned, and the hook of its second half, which keeps the tensors and may
    be called in another stream.
    """
    result, receive = made
    set_up.is_pending[micro_batch] = True

    def hook() -> None:
        receive()
        set_up.is_pending[micro_batch] = False
        then()
        for tensor in kept:
            if tensor is not None and tensor.is_cuda:
                tensor.record_stream(torch.cuda.current_stream())

    return result, hook


def _nothing() -> None:
    """The hook of a call that is complete."""
