"""The normal mode of `deep_ep`: each token comes once to a rank, in the order of source rank and token."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, TypeAlias

import torch

from ._deep_ep_setup import Ranks, SetUp, Shape
from .ep import Experts, Routed

#: Rows, or rows of one byte a number with their scales.
Rows: TypeAlias = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


class Handle(Sequence[Any]):
    """The routing of a dispatch, for `combine` and for a `dispatch` of other rows.

    It has two elements: an int32 tensor [R, R], made when it is asked for, whose element [i, j] is the number of the
    tokens that go from the ranks up to i to rank j, or None after a dispatch with `num_worst_tokens`; and
    `is_token_in_rank`.
    """

    def __init__(
        self, set_up: SetUp, routed: Routed, rows: int, to_each: list[list[int]], is_token_in_rank: torch.Tensor
    ) -> None:
        self.set_up, self.routed = set_up, routed
        #: The number of rows that came, or that there is room for.
        self.rows = rows
        self._to_each, self._is_token_in_rank = to_each, is_token_in_rank

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: Any) -> Any:
        return (self._sums, self._is_token_in_rank)[index]

    @cached_property
    def _sums(self) -> torch.Tensor | None:
        if not self._to_each:
            return None
        sums = torch.tensor(self._to_each, dtype=torch.int32).cumsum(0, dtype=torch.int32)
        return sums.to(self._is_token_in_rank.device)


def layout(ranks: Ranks, topk_idx: torch.Tensor, num_experts: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns how many tokens go to each rank, how many to each expert, and which token to which rank. The numbers are
    parts of one tensor, behind the number of tokens.
    """
    experts_of_rank(ranks, num_experts)
    counts = topk_idx.new_empty(1 + ranks.size + num_experts, dtype=torch.int32)
    of_rank = topk_idx.new_empty((topk_idx.shape[0], ranks.size), dtype=torch.bool)
    ranks.count_choices(topk_idx.contiguous(), num_experts, counts, of_rank)
    return counts[1 : 1 + ranks.size], counts[1 + ranks.size :], of_rank


def dispatch(
    ranks: Ranks,
    x: Rows,
    is_token_in_rank: torch.Tensor | None,
    num_tokens_per_rank: torch.Tensor | None,
    num_tokens_per_expert: torch.Tensor | None,
    topk_idx: torch.Tensor | None,
    topk_weights: torch.Tensor | None,
    expert_alignment: int,
    num_worst_tokens: int,
) -> tuple[Rows, torch.Tensor | None, torch.Tensor | None, list[int], Handle]:
    """Sends tokens. Returns what came: rows, local ids, weights, and the numbers of rows of the local experts."""
    rows, *scales = parts = _parts(x)
    if is_token_in_rank is None or num_tokens_per_rank is None or num_tokens_per_expert is None:
        raise ValueError(
            "dispatch() without a handle takes is_token_in_rank, num_tokens_per_rank and num_tokens_per_expert, which "
            "get_dispatch_layout() returns"
        )
    ranks.expect_all("dispatch() takes all ranks")
    tokens, experts = rows.shape[0], num_tokens_per_expert.numel()
    experts_of_rank(ranks, experts)
    _expect_shape("is_token_in_rank", is_token_in_rank, (tokens, ranks.size))
    _expect_shape("num_tokens_per_rank", num_tokens_per_rank, (ranks.size,))
    counts: list[int] = []
    to_each: list[list[int]] = []
    if num_worst_tokens:
        n, most = num_worst_tokens, -(-num_worst_tokens // ranks.size)
        if tokens * ranks.size > n:
            raise ValueError(
                f"argument 'num_worst_tokens': expected at least {ranks.size} ranks x {tokens} tokens, got {n}; all "
                "ranks give the same number, for the rank with the most tokens"
            )
    else:
        whole = _counts(tokens, num_tokens_per_rank, num_tokens_per_expert)
        most, to_each, counts = ranks.exchange(whole, experts)
        n = sum(from_one[ranks.rank] for from_one in to_each)
        if expert_alignment != 1:
            counts = [-(-each // expert_alignment) * expert_alignment for each in counts]
    ids = None if topk_idx is None else topk_idx.contiguous()
    if ids is None:
        # Without choices of experts, a rank is an expert, and a token chooses ranks.
        of_rank = torch.arange(ranks.size, dtype=torch.int32, device=rows.device)
        ids, experts = torch.where(is_token_in_rank, of_rank, -1), ranks.size
    dtype = "bfloat16" if scales else str(rows.dtype).removeprefix("torch.")
    set_up = ranks.set_up(Shape(experts, ids.shape[1], rows.shape[1], dtype), most)
    out = _of_length(parts, n)
    came_idx = came_weights = None
    if topk_idx is not None:
        came_idx = topk_idx.new_empty((n, ids.shape[1]))
    if topk_weights is not None:
        came_weights = topk_weights.new_empty((n, ids.shape[1]))
    experts_of_rows = _of_rows(set_up, parts)
    routed = experts_of_rows.dispatch(
        rows,
        ids,
        None if topk_weights is None else topk_weights.contiguous(),
        also=scales,
        layout="token",
        out=out,
        ids_into=came_idx,
        weights_into=came_weights,
        mask_along=True,
    )
    ranks.settle(experts_of_rows)
    return _rows(out), came_idx, came_weights, counts, Handle(set_up, routed, n, to_each, is_token_in_rank)


def dispatch_again(ranks: Ranks, x: Rows, handle: Handle) -> Rows:
    """Sends other rows the way of an earlier dispatch."""
    rows, *scales = parts = _parts(x)
    experts, out = _of_rows(handle.set_up, parts), _of_length(parts, handle.rows)
    experts.dispatch_again(handle.routed, rows, also=scales, out=out)
    ranks.settle(experts)
    return _rows(out)


def combine(
    ranks: Ranks,
    x: torch.Tensor,
    handle: Handle,
    topk_weights: torch.Tensor | None,
    bias: torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Returns the sum of each token's rows, and of its weights."""
    experts, tokens = handle.set_up.experts, handle.routed.tokens
    out, sums = x.new_empty((tokens, x.shape[1])), None
    if topk_weights is not None:
        if topk_weights.shape != (handle.rows, experts.top_k):
            raise ValueError(
                f"argument 'topk_weights': expected weights of shape {(handle.rows, experts.top_k)}, for the rows and "
                f"choices of the handle's dispatch, got {tuple(topk_weights.shape)}"
            )
        topk_weights, sums = topk_weights.contiguous(), topk_weights.new_empty((tokens, experts.top_k))
    experts.combine(handle.routed, x.contiguous(), out, bias=bias, row_weights=topk_weights, weights_into=sums)
    ranks.settle(experts)
    return out, sums


def experts_of_rank(ranks: Ranks, num_experts: int) -> int:
    """Returns the number of experts of each rank."""
    if num_experts == 0 or num_experts % ranks.size:
        raise ValueError(f"{num_experts} experts do not divide into {ranks.size} equal parts, one for each rank")
    return num_experts // ranks.size


def _expect_shape(name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
    if tensor.shape != shape:
        raise ValueError(f"argument '{name}': expected an array of shape {shape}, got {tuple(tensor.shape)}")


def _counts(tokens: int, of_ranks: torch.Tensor, of_experts: torch.Tensor) -> torch.Tensor:
    """Returns one tensor of the three: that of `layout`, if the two are parts of it."""
    whole = of_ranks._base
    if whole is not None and whole is of_experts._base and whole.numel() == 1 + of_ranks.numel() + of_experts.numel():
        return whole
    return torch.cat([of_ranks.new_full((1,), tokens).int(), of_ranks.int(), of_experts.int()])


def _parts(x: Rows) -> Sequence[torch.Tensor]:
    """Returns rows, and their scales if there are any."""
    rows, *scales = parts = x if isinstance(x, tuple) else (x,)
    if rows.dim() != 2:
        raise ValueError(f"argument 'x': expected rows of shape (tokens, hidden), got {tuple(rows.shape)}")
    if scales and scales[0].element_size() != 4:
        raise TypeError(f"argument 'x': expected scales of 4 bytes, got {scales[0].dtype}")
    return [each.contiguous() for each in parts]


def _rows(out: Sequence[torch.Tensor]) -> Rows:
    return (out[0], out[1]) if len(out) > 1 else out[0]


def _of_length(parts: Sequence[torch.Tensor], n: int) -> Sequence[torch.Tensor]:
    return [each.new_empty((n, *each.shape[1:])) for each in parts]


def _of_rows(set_up: SetUp, parts: Sequence[torch.Tensor]) -> Experts:
    """Returns the experts for such rows: of the numbers that combine sums, or of any bytes with their scales."""
    if len(parts) == 1:
        return set_up.experts
    row_bytes, scale_bytes = (each.shape[1:].numel() * each.element_size() for each in parts)
    return set_up.of_rows(row_bytes=row_bytes, also=(scale_bytes,))
