"""Translates calls of `torch.distributed` into requests to `Collectives`: address, type and count of each tensor."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ._collectives import Op, Request
from ._data_types import SIZES
from ._mscclpp import _Requests

#: The type and the number of the numbers in an element, of the types whose elements are moved as they are. All others are
#: moved as bytes.
_MOVED = {getattr(torch, name): (name, 1) for name in SIZES}
_COMPLEX = {torch.complex32: ("float16", 2), torch.complex64: ("float32", 2), torch.complex128: ("float64", 2)}
#: For each name of an operation, the hash of torch's `RedOpType`, which is its number.
_OPS = {
    name: hash(getattr(dist.ReduceOp.RedOpType, kind))
    for kind, name in (("SUM", "sum"), ("AVG", "avg"), ("PRODUCT", "prod"), ("MIN", "min"), ("MAX", "max"))
}
_PREMUL_SUM = hash(dist.ReduceOp.RedOpType.PREMUL_SUM)
#: For the number of an operation and a type: the type and the number of the numbers in an element, and the operation on
#: them.
_REDUCTIONS: dict[tuple[int, torch.dtype], tuple[str, int, Op]] = {
    (number, dtype): (*numbers, name) for name, number in _OPS.items() for dtype, numbers in _MOVED.items()
}
# Others cannot be applied to real and imaginary parts separately.
_REDUCTIONS |= {(_OPS[name], dtype): (*numbers, name) for name in ("sum", "avg") for dtype, numbers in _COMPLEX.items()}
# For the numbers 0 and 1, "or" is the maximum. A sum of bools is "or".
_REDUCTIONS |= {
    (_OPS[name], torch.bool): ("uint8", 1, {"sum": "max"}.get(name, name)) for name in ("sum", "prod", "min", "max")
}


class Call:
    """One call: its requests, the copies before and after them, and the tensors that must live until then."""

    __slots__ = ("copy", "finish", "name", "prepare", "requests", "results", "tensors")

    def __init__(
        self, name: str, tensors: list[torch.Tensor], results: Any, requests: list[Request | _Requests]
    ) -> None:
        self.name = name
        #: The tensors of the program.
        self.tensors = tensors
        #: The value of the call's future.
        self.results = results
        self.requests = requests
        #: Copies tensors in the stream of the call, and returns the requests. None if there is nothing to copy.
        self.prepare: Callable[[], list[Request | _Requests]] | None = None
        #: Copies the results to the program's tensors, in the stream of the call. None if there is nothing to copy.
        self.finish: Callable[[], Any] | None = None
        #: The copies that `prepare` made, which must live until the call is complete.
        self.copy: Any = None

    def prepared(self) -> list[Request | _Requests]:
        """Returns the requests, when the copies for them are in the current stream."""
        if self.prepare is None:
            return self.requests
        # The function refers to this call, which would keep the tensors until the garbage collector runs.
        prepare, self.prepare = self.prepare, None
        with torch.no_grad():
            return prepare()

    def finished(self) -> None:
        """Puts the copies of the results into the current stream."""
        if self.finish is not None:
            with torch.no_grad():
                self.finish()


def reduction(op: Any, dtype: torch.dtype) -> tuple[str, int, Op]:
    """Returns the type and the number of the numbers in an element, and the operation on them, for an operation of torch."""
    number = hash(op)
    known = _REDUCTIONS.get((number, dtype))
    if known is not None:
        return known
    kind = getattr(op, "op", op)
    if number != _PREMUL_SUM and number not in _OPS.values():
        raise ValueError(
            f"the backend mscclpp has no reduction {kind}; there are SUM, AVG, PRODUCT, MIN, MAX, PREMUL_SUM"
        )
    numbers = _MOVED.get(dtype) or _COMPLEX.get(dtype)
    if dtype is torch.bool or (numbers is not None and number != _PREMUL_SUM):
        raise ValueError(f"the backend mscclpp has no {kind.name} of {str(dtype).removeprefix('torch.')} tensors")
    if numbers is None:
        raise TypeError(f"the backend mscclpp does not reduce tensors of {dtype}")
    return *numbers, ("premul_sum", float(op.__getstate__()[1]))


def numbers(tensor: torch.Tensor) -> tuple[str, int]:
    """Returns the type and the number of the numbers to move in an element: bytes, if the collectives have no such type."""
    return _MOVED.get(tensor.dtype) or ("uint8", tensor.element_size())


def moved(tensor: torch.Tensor) -> tuple[str, int]:
    """Returns the type and count of numbers to move."""
    name, times = numbers(tensor)
    return name, times * tensor.numel()


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the memory holds the numbers in their order and with their signs."""
    return tensor.is_contiguous() and not (tensor.is_neg() or tensor.is_conj())


def fits(name: str, tensor: torch.Tensor) -> bool:
    """Returns whether a tensor is plain. Raises if the backend does not take it: it takes what NCCL's takes, dense tensors
    that are contiguous in a memory format that torch suggests.
    """
    if is_plain(tensor):
        return True
    if tensor.is_sparse:
        raise ValueError(f"{name}: Tensors must be dense, and this one is sparse")
    if not tensor.is_contiguous() and not _is_channels_last(tensor):
        raise ValueError(
            f"{name}: Tensors must be contiguous, and this one has the shape {tuple(tensor.shape)} and the strides "
            f"{tensor.stride()}; give its .contiguous()"
        )
    return False


def _is_channels_last(tensor: torch.Tensor) -> bool:
    order = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())
    return order is not None and tensor.is_contiguous(memory_format=order)


def of_tensors(
    kind: str, given: torch.Tensor, taken: torch.Tensor, are_plain: bool, count: Any, dtype: str, op: Op, root: int
) -> Call:
    """Makes a call with one request. Tensors that are not plain are replaced by copies."""
    tensors = [taken] if given is taken else [given, taken]
    if are_plain and count:
        request = (kind, given.data_ptr(), taken.data_ptr(), count, dtype, op, root)
        return Call(kind, tensors, [taken], [request])
    call = Call(kind, tensors, [taken], [])
    if count:
        call.prepare = functools.partial(_copied, call, kind, given, taken, (count, dtype, op, root))
    return call


def _copied(
    call: Call, kind: str, given: torch.Tensor, taken: torch.Tensor, numbers: tuple[Any, str, Op, int]
) -> list[Request | _Requests]:
    """Returns the request of a call with copies of tensors that are not plain."""
    source = given if is_plain(given) else given.resolve_conj().resolve_neg().contiguous()
    target = source if taken is given else taken
    if not is_plain(target):
        target = torch.empty(taken.shape, dtype=taken.dtype, device=taken.device)
    call.copy = [source, target]
    if target is not taken:
        call.finish = lambda: taken.copy_(target)
    return [(kind, source.data_ptr(), target.data_ptr(), *numbers)]


def as_list(tensors: Any) -> list[torch.Tensor]:
    """A tensor, or a list of one or more, as a list."""
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def single(name: str, tensors: Any) -> torch.Tensor:
    """Returns the tensor of a list of one, which is how torch passes it."""
    if type(tensors) is list and len(tensors) == 1:
        tensor: torch.Tensor = tensors[0]
    else:
        (tensor,) = _one(name, as_list(tensors))
    return tensor


def single_list(name: str, lists: Any) -> list[torch.Tensor]:
    """Returns the list of a list of one, which is how torch passes it, or the list itself."""
    given: list[Any] = list(lists)
    if given and isinstance(given[0], torch.Tensor):
        return given
    (tensors,) = _one(name, given)
    return list(tensors)


def _one(name: str, things: list[Any]) -> list[Any]:
    if len(things) != 1:
        raise ValueError(f"{name}: expected one tensor or list of tensors, for one device, got {len(things)}")
    return things


def known_numbers(tensor: torch.Tensor, op: Any = None) -> tuple[str, int, Op] | None:
    """Returns the type and the number of the numbers in an element, and the operation on them; None for rare operations."""
    return (*numbers(tensor), "sum") if op is None else _REDUCTIONS.get((hash(op), tensor.dtype))


def several(kind: str, given: list[torch.Tensor], taken: list[torch.Tensor], parts: int, op: Any = None) -> list[Call]:
    """Makes an "all_gather" of each input and output, or with `op` an "all_reduce" or "reduce_scatter". If all tensors are
    plain and of one type, that is one call with many requests.
    """
    as_numbers = (*numbers(given[0]), "sum") if op is None else reduction(op, given[0].dtype)
    of_each = {"all_gather": (1, parts), "reduce_scatter": (parts, 1)}.get(kind, (1, 1))
    requests = _Requests.of_tensors(kind, given, taken, of_each, as_numbers)
    if requests is not None:
        return [Call(kind, taken if given is taken else [*given, *taken], list(taken), [requests])]
    pairs = zip(given, taken, strict=True)
    if op is None:
        return [moving(kind, i, o, parts) for i, o in pairs]
    return [reducing(kind, i, o, op, parts) for i, o in pairs]


def reducing(kind: str, given: torch.Tensor, taken: torch.Tensor, op: Any, parts: int, root: int = 0) -> Call:
    """Makes an "all_reduce", "reduce" or "reduce_scatter". For the last, `given` has `parts` times the numbers of
    `taken`.
    """
    are_plain = fits(kind, given)
    if given is not taken:
        are_plain = fits(kind, taken) and are_plain
        expect_alike(kind, given, taken, of_taken=parts if kind == "reduce_scatter" else 1)
    dtype, times, on_numbers = reduction(op, given.dtype)
    return of_tensors(kind, given, taken, are_plain, times * taken.numel(), dtype, on_numbers, root)


def moving(kind: str, given: torch.Tensor, taken: torch.Tensor, parts: int, root: int = 0) -> Call:
    """Makes a call that moves numbers: "broadcast", "all_gather", "gather" or "scatter".

    A rank that is not the root, and has no input or no output of its own, gives the same tensor for both.
    """
    are_plain = fits(kind, given)
    if given is not taken:
        are_plain = fits(kind, taken) and are_plain
        of_given, of_taken = {"all_gather": (parts, 1), "gather": (parts, 1), "scatter": (1, parts)}[kind]
        expect_alike(kind, given, taken, of_given, of_taken)
    dtype, count = moved(taken if kind == "scatter" else given)
    return of_tensors(kind, given, taken, are_plain, count, dtype, "sum", root)


def message(kind: str, tensor: torch.Tensor, peer: int) -> Call:
    """Makes a "send" or "recv". The tensor may have any layout, because the numbers are sent in their order."""
    are_plain = fits(kind, tensor) if tensor.is_sparse else is_plain(tensor)
    dtype, count = moved(tensor)
    return of_tensors(kind, tensor, tensor, are_plain, count, dtype, "sum", peer)


def expect_alike(kind: str, given: torch.Tensor, taken: torch.Tensor, of_given: int = 1, of_taken: int = 1) -> None:
    """Checks that two tensors have the same type and device, and that their numbers, multiplied by `of_given` and
    `of_taken`, are as many.
    """
    expect_same_type(kind, given, taken)
    if given.numel() * of_given == taken.numel() * of_taken:
        return
    needed, left = divmod(given.numel() * of_given, of_taken)
    first, *rest = given.shape or (1,)
    first, left_of_first = divmod(first * of_given, of_taken)
    needs = f"it needs the shape {(first, *rest)}, or another of {needed} numbers"
    if left_of_first:
        needs = f"it needs {needed} numbers" if not left else f"which does not divide into {of_taken} parts"
    raise ValueError(
        f"{kind}: an output of shape {tuple(taken.shape)} does not fit an input of shape {tuple(given.shape)}; {needs}"
    )


def expect_one_device(kind: str, tensors: Sequence[torch.Tensor]) -> None:
    """Checks that the tensors of calls that are made together are on one device."""
    devices = {tensor.device for tensor in tensors}
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise ValueError(f"{kind}: tensors of {names} in calls that are made together")


def expect_same_type(kind: str, given: torch.Tensor, taken: torch.Tensor) -> None:
    """Checks that two tensors have the same type and device."""
    if given.dtype is not taken.dtype:
        raise TypeError(f"{kind}: the output is of {taken.dtype}, and the input of {given.dtype}")
    # The numbers are compared faster.
    if given.get_device() != taken.get_device():
        raise ValueError(f"{kind}: the output is on {taken.device}, and the input on {given.device}")
