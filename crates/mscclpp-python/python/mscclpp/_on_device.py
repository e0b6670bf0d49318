"""`OnDevice`: what the calls of all ranks have in common. They take arrays of any library, and streams."""

from __future__ import annotations

import functools
import math
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

from . import _arguments, _arrays, _mscclpp
from ._buffer import GpuBuffer
from ._data_types import OF_DLPACK
from ._group import CommGroup
from ._mscclpp import Communicator

#: The kinds in the array interface, and their codes in DLPack.
_KINDS = {"i": 0, "u": 1, "f": 2}

#: Arrays of calls on simulated devices, by device. They are kept until all work of the device's only stream is
#: complete, also when the objects that made the calls are gone.
_kept: dict[int, list[Any]] = {}
_keeping = threading.Lock()

#: The names of PyTorch's types, of which there are few.
_OF_TORCH: dict[Any, str] = {}


@functools.cache
def _stream_of_torch() -> Callable[[int], int]:
    """Returns the function that returns the handle of a device's current stream."""
    torch: Any = sys.modules["torch"]
    # The handle alone is cheaper than a stream object; versions of torch without this function have stream objects
    # only.
    handle_of: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return handle_of or (lambda device: int(torch.cuda.current_stream(device).cuda_stream))


def _type_of_torch(dtype: Any) -> str:
    name = _OF_TORCH[dtype] = str(dtype).removeprefix("torch.")
    return name


class _Array(NamedTuple):
    """The properties of an array that a call needs."""

    address: int
    length: int
    dtype: str
    shape: tuple[int, ...]
    #: The bytes of an element, or 0 for elements that are Python objects or not whole bytes.
    size: int


class OnDevice:
    """An object of a rank whose calls go into streams of its device."""

    #: The number of the device, and whether it is simulated.
    device: int
    is_simulated: bool
    #: The object of the extension.
    _made: Any
    #: The word for the object in errors.
    _what: str

    def close(self) -> None:
        """Release the object. Later calls raise."""
        self._made.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: Any) -> None:
        self.close()

    def check(self) -> None:
        """Raise an error if a complete call failed: a rank was lost, for example. Does not block."""
        self._made.check()

    def synchronize(self, stream: Any = 0) -> None:
        """Wait until the work of a stream is complete. Raises an error with the rank's number if one was lost."""
        with _keeping:
            kept = _kept.pop(self.device, [])
        try:
            self._made.synchronize(_handle(stream))
        except BaseException:
            with _keeping:
                _kept.setdefault(self.device, []).extend(kept)
            raise

    def _keep(self, arrays: Any, enqueue: Callable[[], bool]) -> None:
        """Keeps the arrays of a call on a simulated device. Drops those of earlier calls if these are complete."""
        with _keeping:
            kept = _kept.setdefault(self.device, [])
            n = len(kept)
            # A call that fails is included, because part of it may have begun.
            kept.append(arrays)
            if enqueue():
                del kept[:n]

    def _look(self, name: str, x: Any, is_written: bool = False) -> _Array:
        """Returns the properties of an array, which must be contiguous and in memory of this device."""
        if _arrays.is_torch_tensor(x):
            return _Array(*self._look_at_torch(name, x), x.shape, x.element_size())
        interface = getattr(x, "__cuda_array_interface__", None) or getattr(x, "__array_interface__", None)
        if interface is None:
            return self._look_at_dlpack(name, x)
        on_device = hasattr(x, "__cuda_array_interface__")
        device = getattr(x, "device", None)
        self._expect_device(name, getattr(device, "id", self.device) if on_device else None)
        shape, strides, typestr = tuple(interface["shape"]), interface.get("strides"), interface["typestr"]
        if not shape and not hasattr(x, "__setitem__"):
            raise TypeError(f"argument '{name}': expected an array, got a number, {x!r}")
        address, is_read_only = interface["data"]
        if is_written and is_read_only:
            raise ValueError(f"argument '{name}': the array is read-only, and the call would store to it")
        size = 0 if getattr(getattr(x, "dtype", None), "hasobject", False) else _arrays.item_size(typestr)
        if strides is not None and size and not _is_contiguous(shape, strides, size):
            raise ValueError(f"argument '{name}': the array is not contiguous; pass a contiguous copy of it")
        dtype = str(x.dtype) if hasattr(x, "dtype") else _type_of_interface(typestr)
        return _Array(int(address or 0), math.prod(shape), dtype, shape, size)

    def _look_at_torch(self, name: str, x: Any) -> tuple[int, int, str]:
        """Returns address, length and type of a tensor."""
        usual = _mscclpp._look_at_tensor(x, None if self.is_simulated else self.device)
        if usual is not None:
            return usual
        if not x.is_contiguous():
            raise ValueError(f"argument '{name}': the tensor is not contiguous; give it .contiguous()")
        if x.is_conj() or x.is_neg():
            view, plain = ("conjugated", "resolve_conj") if x.is_conj() else ("negated", "resolve_neg")
            raise ValueError(f"argument '{name}': the tensor is a {view} view; .{plain}() makes a plain one of it")
        device = x.get_device() if x.is_cuda else None
        if device != self.device or self.is_simulated:
            self._expect_device(name, device)
        address, length, dtype = x.data_ptr(), x.numel(), x.dtype
        if not address and length:
            raise ValueError(f"argument '{name}': a {type(x).__name__} of device {x.device} that has no memory here")
        return address, length, _OF_TORCH.get(dtype) or _type_of_torch(dtype)

    def _look_at_dlpack(self, name: str, x: Any) -> _Array:
        address, _ = _arrays.locate(x, f"argument '{name}'")
        kind, device = x.__dlpack_device__()
        self._expect_device(name, int(device) if int(kind) != 1 else None)
        _, code, bits, shape, strides = _mscclpp._of_dlpack(x.__dlpack__())
        dtype = OF_DLPACK.get((code, bits)) or f"({bits} bits of kind {code} of DLPack)"
        if strides is not None and not _is_contiguous(shape, strides, 1):
            raise ValueError(f"argument '{name}': the array is not contiguous")
        return _Array(address, math.prod(shape), dtype, tuple(shape), 0 if bits % 8 else bits // 8)

    def _expect_device(self, name: str, device: int | None) -> None:
        if self.is_simulated != (device is None) or (device is not None and device != self.device):
            where = "on the host" if device is None else f"on device {device}"
            here = (
                f"simulated device {self.device}, whose arrays are NumPy's"
                if self.is_simulated
                else f"device {self.device}"
            )
            raise ValueError(f"argument '{name}': the array is {where}, and these {self._what} are those of {here}")

    def _current_stream(self, x: Any) -> int:
        if self.is_simulated:
            return 0
        if _arrays.is_torch_tensor(x):
            return _stream_of_torch()(self.device)
        cupy = sys.modules.get("cupy")
        return int(cupy.cuda.get_current_stream().ptr) if cupy is not None else 0


def communicator_of(name: str, group: Any) -> tuple[CommGroup | Communicator, Communicator]:
    """Returns the group that is made of an argument, and its communicator."""
    if not isinstance(group, (CommGroup, Communicator)):
        if hasattr(group, "Get_rank"):
            group = CommGroup(group)
        elif _arguments.is_torch_group(group):
            group = CommGroup(torch_group=group)
        else:
            raise TypeError(
                f"argument '{name}': expected a CommGroup, a Communicator, a communicator of mpi4py or a group of "
                f"PyTorch, got {group!r}"
            )
    return group, group.communicator if isinstance(group, CommGroup) else group


def _type_of_interface(typestr: str) -> str:
    """Returns the name of a type, for an array that has only an array interface."""
    code = _KINDS.get(typestr[1:2])
    if code is None or typestr[0] == ">":
        return typestr
    return OF_DLPACK.get((code, 8 * int(typestr[2:])), typestr)


def _is_contiguous(shape: Sequence[int], strides: Sequence[int], size: int) -> bool:
    expected = size
    for n, stride in zip(reversed(shape), reversed(strides)):
        if n != 1 and stride != expected:
            return 0 in shape
        expected *= n
    return True


def _new(x: Any, shape: tuple[int, ...], dtype: str | None = None) -> Any:
    """Makes an array of the library of `x`, with elements of its type, or of another one."""
    if _arrays.is_torch_tensor(x):
        return x.new_empty(shape, dtype=getattr(sys.modules["torch"], dtype) if dtype else None)
    if isinstance(x, GpuBuffer):
        return GpuBuffer(shape, dtype or x.dtype)
    library = sys.modules.get(type(x).__module__.partition(".")[0])
    if library is None or not hasattr(library, "empty"):
        raise TypeError(
            f"argument 'out': give an array for the result, since one of {type(x).__name__} cannot be made here"
        )
    return library.empty(shape, dtype or x.dtype)


def _handle(stream: Any) -> int:
    if type(stream) is int and stream >= 0:
        return stream
    from .utils import stream_handle

    return stream_handle(stream) or 0
