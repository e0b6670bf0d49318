"""Finds the memory of an array of any library."""

import functools
import math
from collections.abc import Iterable
from typing import Any

from . import _mscclpp


def is_torch_tensor(tensor: Any) -> bool:
    """Whether it is a tensor of PyTorch. PyTorch need not be installed."""
    kind: Any = type(tensor)
    return _is_tensor_type(kind)


@functools.lru_cache
def _is_tensor_type(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "torch" and hasattr(kind, "data_ptr")


def locate(tensor: Any, argument: str = "argument 'tensor'", one_piece: bool = True) -> tuple[int, int]:
    """Returns the address of the first element, and how many bytes all elements have, which must be in one piece."""
    if is_torch_tensor(tensor):
        if one_piece:
            _check_one_piece(tensor.shape, tensor.stride(), argument)
        return tensor.data_ptr(), tensor.numel() * tensor.element_size()
    for name in ("__cuda_array_interface__", "__array_interface__"):
        interface = getattr(tensor, name, None)
        if interface is not None:
            return _of_interface(interface, argument, one_piece)
    if hasattr(tensor, "__dlpack__"):
        address, _, bits, shape, strides = _mscclpp._of_dlpack(tensor.__dlpack__())
        if one_piece and strides:
            _check_one_piece(shape, strides, argument)
        return address, math.prod(shape) * (bits // 8)
    raise TypeError(
        f"{argument}: expected an array (CuPy, NumPy, PyTorch, or one with __cuda_array_interface__, "
        f"__array_interface__ or __dlpack__), got {type(tensor).__name__}"
    )


def is_of_cuda(tensor: Any) -> bool:
    """Whether the memory is that of a CUDA device, which the host cannot read."""
    if is_torch_tensor(tensor):
        return bool(tensor.is_cuda)
    if getattr(tensor, "__cuda_array_interface__", None) is not None:
        return True
    if hasattr(tensor, "__array_interface__") or not hasattr(tensor, "__dlpack_device__"):
        return False
    return int(tensor.__dlpack_device__()[0]) != 1


def _of_interface(interface: dict[str, Any], argument: str, one_piece: bool) -> tuple[int, int]:
    typestr, shape, strides = interface["typestr"], interface["shape"], interface.get("strides")
    if typestr[1] == "O":
        raise TypeError(f"{argument}: the array has Python objects, which cannot be in device memory")
    size = item_size(typestr)
    if one_piece and strides is not None and size:
        _check_one_piece(shape, [stride // size for stride in strides], argument)
    return int(interface["data"][0] or 0), math.prod(shape) * size


def item_size(typestr: str) -> int:
    """Returns the bytes of an element of a type of the array interface, or 0 for Python objects."""
    # Behind the number, dates and times name their unit: "<M8[s]". Characters are of 4 bytes.
    size = typestr[2:].partition("[")[0]
    return 0 if typestr[1] == "O" else int(size) * (4 if typestr[1] == "U" else 1)


def _check_one_piece(shape: Iterable[int], strides: Iterable[int], argument: str) -> None:
    """Checks that there are no gaps between elements, in any order of dimensions. Strides count elements."""
    shape = list(shape)
    if 0 in shape:
        return
    expected = 1
    for stride, n in sorted((stride, n) for stride, n in zip(strides, shape) if n != 1):
        if stride != expected:
            raise ValueError(
                f"{argument}: the array's memory is not in one piece; copy it into an array that is, such as "
                "with ascontiguousarray"
            )
        expected *= n
