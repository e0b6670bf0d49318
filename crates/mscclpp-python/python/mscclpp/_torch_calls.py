"""Translates calls of `torch.distributed` into requests to `Collectives`: address, type and count of each tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ._collectives import Op, Request, check_factor
from ._data_types import SIZES

_REDUCED = {getattr(torch, name): name for name in SIZES}
_OPS: dict[int, str] = {
    getattr(dist.ReduceOp.RedOpType, kind).value: name
    for kind, name in (("SUM", "sum"), ("AVG", "avg"), ("PRODUCT", "prod"), ("MIN", "min"), ("MAX", "max"))
}
_PREMUL_SUM: int = dist.ReduceOp.RedOpType.PREMUL_SUM.value


class Call:
    """One call: its requests, the copies before and after them, and the tensors that must live until then."""

    def __init__(
        self, name: str, tensors: Sequence[torch.Tensor], results: Any, requests: Callable[[], list[Request]]
    ) -> None:
        self.name = name
        #: The tensors of the program.
        self.tensors = tensors
        #: The value of the call's future.
        self.results = results
        #: Makes the requests. Its copies go into the stream of the call.
        self.requests = requests
        #: Copies the results to the program's tensors, in the stream of the call. None if there is nothing to copy.
        self.finish: Callable[[], Any] | None = None
        #: Whether `requests` or `finish` copy.
        self.copies = False
        #: The copies that `requests` made, which must live until the call is complete.
        self.copy: Any = None


def operation(op: Any, dtype: torch.dtype) -> Op:
    """Returns the name that `Collectives` has for an operation of torch, on numbers of this type."""
    # The kinds are compared by their numbers, which is much faster. A `ReduceOp` has a kind.
    kind = dist.ReduceOp.SUM if op is None else getattr(op, "op", op)
    name = _OPS.get(kind.value)
    if name is None:
        if kind.value == _PREMUL_SUM:
            return _scaled(op, dtype)
        raise ValueError(
            f"the backend mscclpp has no reduction {kind}; there are SUM, AVG, PRODUCT, MIN, MAX, PREMUL_SUM"
        )
    if dtype == torch.bool:
        # For the numbers 0 and 1, "or" is the maximum. A sum of bools is "or".
        if name == "avg":
            raise ValueError("the backend mscclpp has no average of bool tensors")
        return "max" if name == "sum" else name
    return name


def _scaled(op: Any, dtype: torch.dtype) -> Op:
    if dtype == torch.bool:
        raise ValueError("the backend mscclpp has no PREMUL_SUM of bool tensors")
    named = "premul_sum", float(op.__getstate__()[1])
    check_factor(named, str(dtype))
    return named


def reduced(tensor: torch.Tensor) -> tuple[str, int]:
    """Returns the type and count of the numbers to reduce."""
    if tensor.dtype == torch.bool:
        return "uint8", tensor.numel()
    if tensor.is_complex():
        real = {torch.complex64: "float32", torch.complex128: "float64", torch.complex32: "float16"}[tensor.dtype]
        return real, 2 * tensor.numel()
    name = _REDUCED.get(tensor.dtype)
    if name is None:
        raise TypeError(f"the backend mscclpp does not reduce tensors of {tensor.dtype}")
    return name, tensor.numel()


def check_reduction(op: Op, tensor: torch.Tensor) -> None:
    """Checks that the operation can be applied to real and imaginary parts separately."""
    name = op if isinstance(op, str) else op[0]
    if tensor.is_complex() and name not in ("sum", "avg", "premul_sum"):
        raise ValueError(f"the backend mscclpp has no reduction {name!r} of complex tensors")


def moved(tensor: torch.Tensor) -> tuple[str, int]:
    """Returns the type and count of numbers to move: bytes, if the collectives have no such type."""
    name = _REDUCED.get(tensor.dtype)
    if name:
        return name, tensor.numel()
    return "uint8", tensor.numel() * tensor.element_size()


def contiguous(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor if the backend takes it, as NCCL's does: contiguous in a memory format that torch suggests."""
    if tensor.is_sparse:
        raise ValueError(f"{name}: Tensors must be dense, and this one is sparse")
    if not tensor.is_contiguous() and not _is_channels_last(tensor):
        raise ValueError(
            f"{name}: Tensors must be contiguous, and this one has the shape {tuple(tensor.shape)} and the strides "
            f"{tensor.stride()}; give its .contiguous()"
        )
    return tensor


def _is_channels_last(tensor: torch.Tensor) -> bool:
    order = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())
    return order is not None and tensor.is_contiguous(memory_format=order)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the memory holds the numbers in their order and with their signs."""
    return tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()


def plain(call: Call, given: torch.Tensor, taken: torch.Tensor, requests: Callable[[Any, Any], list[Request]]) -> Call:
    """Sets the requests of `call` to those for plain tensors. Tensors that are not plain are replaced by copies."""
    if is_plain(given) and (taken is given or is_plain(taken)):
        call.requests = lambda: requests(given, taken)
        return call

    def of_copies() -> list[Request]:
        source = given if is_plain(given) else given.resolve_conj().resolve_neg().contiguous()
        target = source if taken is given else taken
        if not is_plain(target):
            target = torch.empty(taken.shape, dtype=taken.dtype, device=taken.device)
        call.copy = [source, target]
        if target is not taken:
            call.finish = lambda: taken.copy_(target)
        return requests(source, target)

    call.requests, call.copies = of_copies, True
    return call


def as_list(tensors: Any) -> list[torch.Tensor]:
    """A tensor, or a list of one or more, as a list."""
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def single(name: str, tensors: Any) -> torch.Tensor:
    """Returns the tensor of a list of one, which is how torch passes it."""
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


def reducing(kind: str, given: torch.Tensor, taken: torch.Tensor, op: Any, parts: int, root: int = 0) -> Call:
    """Makes an "all_reduce", "reduce" or "reduce_scatter". For the last, `given` has `parts` times the numbers of
    `taken`.
    """
    scatters = kind == "reduce_scatter"
    contiguous(kind, given)
    if given is not taken:
        contiguous(kind, taken)
        expect_alike(kind, given, taken, of_taken=parts if scatters else 1)
    named = operation(op, given.dtype)
    check_reduction(named, given)
    dtype, count = reduced(taken)

    def requests(given: torch.Tensor, taken: torch.Tensor) -> list[Request]:
        return [(kind, given.data_ptr(), taken.data_ptr(), count, dtype, named, root)] if count else []

    return plain(Call(kind, [given, taken], [taken], list), given, taken, requests)


def moving(kind: str, given: torch.Tensor, taken: torch.Tensor, parts: int, root: int = 0) -> Call:
    """Makes a call that moves numbers: "broadcast", "all_gather", "gather", "scatter", "send" or "recv".

    A rank that is not the root, and has no input or no output of its own, gives the same tensor for both.
    """
    times = {"all_gather": (parts, 1), "gather": (parts, 1), "scatter": (1, parts)}.get(kind, (1, 1))
    # Tensors of messages may have any layout, because the numbers are sent in their order.
    if given.is_sparse or kind not in ("send", "recv"):
        contiguous(kind, given), contiguous(kind, taken)
    if given is not taken:
        expect_alike(kind, given, taken, *times)
    dtype, count = moved(taken if kind == "scatter" else given)

    def requests(given: torch.Tensor, taken: torch.Tensor) -> list[Request]:
        return [(kind, given.data_ptr(), taken.data_ptr(), count, dtype, "sum", root)] if count else []

    return plain(Call(kind, [given, taken], [taken], list), given, taken, requests)


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


def expect_same_type(kind: str, given: torch.Tensor, taken: torch.Tensor) -> None:
    """Checks that two tensors have the same type and device."""
    if given.dtype != taken.dtype:
        raise TypeError(f"{kind}: the output is of {taken.dtype}, and the input of {given.dtype}")
    if given.device != taken.device:
        raise ValueError(f"{kind}: the output is on {taken.device}, and the input on {given.device}")
