"""Calls of the backend of `torch.distributed` with lists of tensors, and with parts of different sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ._collectives import Request
from ._mscclpp import _Requests
from ._torch_calls import (
    Call,
    expect_alike,
    expect_same_type,
    fits,
    is_plain,
    message,
    moved,
    moving,
    of_tensors,
    reducing,
    reduction,
)


def into_list(
    kind: str, given: torch.Tensor, taken: Sequence[torch.Tensor], rank: int, size: int, root: int = 0
) -> Call:
    """Makes an "all_gather" into a tensor for each rank, which may be of different sizes, or a "gather"."""
    if kind == "gather" and rank != root:
        return moving(kind, given, given, size, root)
    _expect_length(kind, taken, size)
    for tensor in taken:
        expect_same_type(kind, given, tensor)
    given_is_plain = fits(kind, given)
    counts = [moved(tensor)[1] for tensor in taken]
    dtype, own = moved(given)
    if counts[rank] != own:
        raise ValueError(f"{kind}: this rank gives {given.numel()} numbers, and takes {taken[rank].numel()} of its own")
    is_even = len(set(counts)) == 1
    if kind == "gather" and not is_even:
        raise ValueError(
            f"gather: the tensors of the list have {[tensor.numel() for tensor in taken]} numbers; "
            "all must have the same number"
        )
    in_one_piece = _whole(taken)
    name, count = (kind, counts[0]) if is_even else ("all_gather_v", counts)
    call = Call(kind, [given, *taken], [list(taken)], [])
    if not any(counts):
        return call
    if in_one_piece is not None and given_is_plain:
        call.requests = [(name, given.data_ptr(), in_one_piece.data_ptr(), count, dtype, "sum", root)]
        return call

    def prepare() -> list[Request | _Requests]:
        room = in_one_piece
        if room is None:
            room = given.new_empty(sum(tensor.numel() for tensor in taken))
            call.finish = lambda: _spread(room, taken)
        sent = given if given_is_plain else given.resolve_conj().resolve_neg().contiguous()
        call.copy = [sent, room]
        return [(name, sent.data_ptr(), room.data_ptr(), count, dtype, "sum", root)]

    call.prepare = prepare
    return call


def of_list(
    kind: str, given: Sequence[torch.Tensor], taken: torch.Tensor, rank: int, size: int, op: Any = None, root: int = 0
) -> Call:
    """Makes a "reduce_scatter" or "scatter" of a list with a tensor for each rank, all of one size."""
    if kind == "scatter" and rank != root:
        return moving(kind, taken, taken, size, root)
    _expect_length(kind, given, size)
    for tensor in given:
        expect_same_type(kind, tensor, taken)
    if any(tensor.numel() != taken.numel() for tensor in given):
        raise ValueError(f"{kind}: not all tensors of the list have as many numbers as the output, {taken.numel()}")

    is_copied = not fits(kind, taken)
    if kind == "reduce_scatter":
        reduction(op, taken.dtype)
    in_one_piece = _whole(given)
    call = Call(kind, [*given, taken], [taken], [])

    def prepare() -> list[Request | _Requests]:
        whole = in_one_piece
        if whole is None:
            whole = torch.cat([tensor.reshape(-1) for tensor in given])
        if kind == "scatter":
            of_whole = moving(kind, whole, taken, size, root)
        else:
            of_whole = reducing(kind, whole, taken, op, size)
        requests = of_whole.prepared()
        call.copy, call.finish = [whole, of_whole], of_whole.finish
        return requests

    if in_one_piece is None or is_copied:
        call.prepare = prepare
    else:
        call.requests = prepare()
    return call


def between(given: Sequence[torch.Tensor], taken: Sequence[torch.Tensor], rank: int, size: int) -> Call:
    """Makes an all-to-all of lists with a tensor for each rank, of any sizes, from messages that go at the same time."""
    for tensors, name in ((given, "input"), (taken, "output")):
        if len(tensors) != size:
            raise ValueError(f"all_to_all: {len(tensors)} tensors in the {name} list, for {size} ranks")
    for given_one, taken_one in zip(given, taken, strict=True):
        fits("all_to_all", given_one), fits("all_to_all", taken_one)
        expect_same_type("all_to_all", given_one, taken_one)
    expect_alike("all_to_all", given[rank], taken[rank])

    call = Call("all_to_all", [*given, *taken], [list(taken)], [])

    def prepare() -> list[Request | _Requests]:
        taken[rank].copy_(given[rank].reshape(taken[rank].shape))
        messages = [
            message(kind, tensor, peer)
            for kind, tensors in (("send", given), ("recv", taken))
            for peer, tensor in enumerate(tensors)
            if peer != rank
        ]
        call.copy, call.finish = messages, lambda: _finish(messages)
        return [request for message in messages for request in message.prepared()]

    call.prepare = prepare
    return call


def _finish(calls: Sequence[Call]) -> None:
    for call in calls:
        call.finished()


def with_splits(
    given: torch.Tensor, taken: torch.Tensor, given_rows: Sequence[int], taken_rows: Sequence[int], size: int
) -> Call:
    """Makes an all-to-all of parts of a tensor, each of a given number of rows, or of equal parts.

    It is one call on all ranks, even if only some of them give the numbers of rows.
    """
    are_plain = fits("all_to_all", given)
    are_plain = fits("all_to_all", taken) and are_plain
    expect_same_type("all_to_all", given, taken)
    dtype, n_given = moved(given)
    _, n_taken = moved(taken)
    # A rank that neither sends nor receives anything must still make the call, as the others do.
    counts = _counts(given, n_given, given_rows, size, "input"), _counts(taken, n_taken, taken_rows, size, "output")
    call = of_tensors("all_to_all_v", given, taken, are_plain, counts, dtype, "sum", 0)
    call.name = "all_to_all"
    return call


def _counts(tensor: torch.Tensor, count: int, rows: Sequence[int], size: int, name: str) -> list[int]:
    n_rows = tensor.size(0) if tensor.dim() else 1
    if not rows:
        if n_rows % size != 0:
            raise ValueError(f"all_to_all: the {name}'s first dimension, {n_rows}, does not divide into {size} parts")
        return [count // size] * size
    if len(rows) != size or sum(rows) != n_rows:
        raise ValueError(f"all_to_all: the {name}'s parts {list(rows)} are not those of {n_rows} rows for {size} ranks")
    per_row = count // n_rows if n_rows else 0
    return [n * per_row for n in rows]


def _expect_length(kind: str, tensors: Sequence[torch.Tensor], size: int) -> None:
    if len(tensors) != size:
        raise ValueError(f"{kind}: the list is of {len(tensors)} tensors, for {size} ranks")


def _whole(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Returns one tensor for several without gaps between them in memory, such as those of `chunk`; None for others."""
    first = tensors[0]
    at, storage = first.data_ptr(), first.untyped_storage().data_ptr()
    for tensor in tensors:
        if not is_plain(tensor) or tensor.data_ptr() != at or tensor.untyped_storage().data_ptr() != storage:
            return None
        at += tensor.numel() * tensor.element_size()
    return first.detach().as_strided((sum(tensor.numel() for tensor in tensors),), (1,))


def _spread(numbers: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Copies the parts of a tensor into tensors."""
    for part, tensor in zip(numbers.split([tensor.numel() for tensor in tensors]), tensors, strict=True):
        tensor.copy_(part.view(tensor.shape))
