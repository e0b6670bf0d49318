"""`GpuBuffer`: an array over device memory that peers can be given."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

from . import _mscclpp
from ._errors import misuse
from ._mscclpp import GpuBufferGranularity, RawGpuBuffer

if TYPE_CHECKING:
    import numpy

    # CuPy's arrays have the same methods, but no types that a checker knows.
    _Array = numpy.ndarray[Any, numpy.dtype[Any]]
else:
    _Array = object


class _Meta(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return getattr(instance, "_is_gpu_buffer", False)


class GpuBuffer(_Array, metaclass=_Meta):
    """`GpuBuffer(shape, dtype)` is a CuPy array over zeroed device memory of this library, on the current GPU.

    On the simulated platform it is a NumPy array, with `get()`, `set()`, `data.ptr`, `data.mem.ptr` and `data.mem.size` as
    CuPy's have. A slice is a `GpuBuffer`, too; a copy and the result of a computation are not, as no peer can be given
    their memory.
    """

    if TYPE_CHECKING:

        @property
        def data(self) -> Any: ...
        def get(self, stream: Any = None, order: Any = "C", out: Any = None, blocking: bool = True) -> Any: ...
        def set(self, arr: Any, stream: Any = None) -> None: ...
        # A slice is a GpuBuffer, an element is a number, and a list of places gives a copy.
        def __getitem__(self, key: Any, /) -> Any: ...
        def reshape(self, *shape: Any, **how: Any) -> Any: ...
        def view(self, *how: Any, **kinds: Any) -> Any: ...

    def __new__(
        cls,
        shape: int | Iterable[int],
        dtype: Any = float,
        strides: Sequence[int] | None = None,
        order: Literal["C", "F"] = "C",
        granularity: GpuBufferGranularity = GpuBufferGranularity.MultiCastMinimum,
    ) -> Self:
        platform, _, _ = _mscclpp._current_gpu()
        make = _sim_class() if platform == "sim" else _cuda_class()
        import numpy

        shape, dtype = _shape(shape), _dtype(numpy.dtype(dtype))
        array: Self = make(shape, dtype, RawGpuBuffer(_bytes(shape, dtype, strides), granularity), strides, order)
        return array


def _bytes(shape: tuple[int, ...], dtype: Any, strides: Sequence[int] | None) -> int:
    """Returns how many bytes an array takes, at least one."""
    size = int(dtype.itemsize)
    if strides is not None and 0 not in shape:
        if any(stride < 0 for stride in strides):
            raise ValueError(f"argument 'strides': {strides} has negative numbers, which are not supported here")
        return sum((n - 1) * stride for n, stride in zip(shape, strides)) + size
    return max(size * math.prod(shape), 1)


def _shape(shape: int | Iterable[int]) -> tuple[int, ...]:
    numbers = tuple(shape) if isinstance(shape, Iterable) else (shape,)
    if not all(hasattr(n, "__index__") for n in numbers):
        raise TypeError(f"argument 'shape': expected an int or several, got {shape!r}")
    if any(n < 0 for n in numbers):
        raise ValueError(f"argument 'shape': {numbers} has negative numbers")
    return numbers


def _dtype(dtype: Any) -> Any:
    """Returns the type, unless its values are Python objects, which cannot be in device memory."""
    if dtype.hasobject:
        raise TypeError(f"argument 'dtype': {dtype} has Python objects, which cannot be in device memory")
    return dtype


# Methods of NumPy's arrays that do not touch the memory.
_NEEDS_NO_MEMORY = {"__new__", "__len__", "__sizeof__", "__class_getitem__", "__buffer__", "__release_buffer__"}


class _Memory:
    """The object `array.data.mem` of a `GpuBuffer`."""

    def __init__(self, raw: RawGpuBuffer) -> None:
        self.ptr, self.size, self.device_id = raw.data(), raw.bytes(), raw.device_id()


class _Pointer:
    """The object `array.data` of a `GpuBuffer`."""

    def __init__(self, ptr: int, raw: RawGpuBuffer) -> None:
        self.ptr, self.mem = ptr, _Memory(raw)


@functools.cache
def _sim_class() -> Any:
    import numpy

    class SimGpuBuffer(numpy.ndarray):
        """A NumPy array over the memory of a simulated device."""

        def __new__(cls, shape: Any, dtype: Any, raw: RawGpuBuffer, strides: Any, order: Any) -> Any:
            array = super().__new__(cls, shape, dtype, numpy.asarray(raw), 0, strides, order)
            array._raw, array._made = raw, (os.getpid(), raw.data(), raw.bytes())
            return array

        def __array_finalize__(self, of: Any) -> None:
            # Views are over the same memory; copies are not, which `_is_gpu_buffer` finds out.
            self._raw, self._made = getattr(of, "_raw", None), getattr(of, "_made", None)

        def _parent(self) -> int | None:
            """Returns the process that the device memory belongs to, in a child that it forked; None elsewhere."""
            if self._made is None or self._made[0] == os.getpid():
                return None
            process, begin, size = self._made
            return process if 0 <= self.__array_interface__["data"][0] - begin < size else None

        def _check_process(self) -> None:
            if (parent := self._parent()) is not None:
                raise misuse(
                    f"this GpuBuffer was made in process {parent} and is used in process {os.getpid()}, a fork of it, which "
                    'has none of its devices, threads and connections; start processes with multiprocessing\'s "spawn", or '
                    "fork before the first use of mscclpp",
                )

        def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = (), **how: Any) -> Any:
            """Computes as NumPy does. The result is this array if it is computed in place, else a plain array of
            NumPy.
            """

            def plain(array: Any) -> Any:
                if not isinstance(array, SimGpuBuffer):
                    return array
                array._check_process()
                return array.view(numpy.ndarray)

            if out:
                how["out"] = tuple(plain(array) for array in out)
            result = getattr(ufunc, method)(*(plain(array) for array in inputs), **how)
            return result if not out or result is None else out[0] if len(out) == 1 else out

        def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
            """Makes the results of other functions of NumPy plain arrays of NumPy."""
            if array is self:
                return self
            return array[()] if return_scalar else array.view(numpy.ndarray)

        @property
        def _is_gpu_buffer(self) -> bool:
            raw = self._raw
            return raw is not None and 0 <= self.__array_interface__["data"][0] - raw.data() < raw.bytes()

        @property
        def data(self) -> Any:
            raw = self._raw
            if raw is None or not self._is_gpu_buffer:
                return super().data
            return _Pointer(self.__array_interface__["data"][0], raw)

        def set(self, arr: Any, stream: Any = None) -> None:
            """Copy a NumPy array of the same shape and type into this, after the kernels of the default stream.

            Like CuPy's arrays, it raises `TypeError` for anything else, and `ValueError` for another shape.
            """
            self._check("arr", arr)
            self._wait()
            self[...] = arr

        def get(
            self, stream: Any = None, order: Literal["C", "F", "A"] = "C", out: Any = None, blocking: bool = True
        ) -> Any:
            """Return a copy in host memory, made after the kernels of the default stream: in `out`, or in a new
            array.
            """
            if out is not None:
                self._check("out", out)
            self._wait()
            if out is None:
                return numpy.array(self, order=order)
            out[...] = self
            return out

        def _wait(self) -> None:
            """Waits for the kernels of the device that has the memory, which need not be the current one."""
            raw = self._raw if self._is_gpu_buffer else None
            _mscclpp._synchronize(300.0, None, None if raw is None else raw.device_id())

        def _check(self, name: str, array: Any) -> None:
            if not isinstance(array, numpy.ndarray):
                raise TypeError(f"argument '{name}': expected an array of NumPy, got {type(array).__name__}")
            if array.dtype != self.dtype:
                raise TypeError(f"argument '{name}': expected an array of {self.dtype}, got one of {array.dtype}")
            if array.shape != self.shape:
                raise ValueError(
                    f"argument '{name}': expected an array of shape {self.shape}, got one of {array.shape}"
                )

        def __repr__(self) -> str:
            parent = self._parent()
            return super().__repr__() if parent is None else f"<mscclpp.GpuBuffer of process {parent}>"

        def __str__(self) -> str:
            return super().__str__() if self._parent() is None else repr(self)

        def __reduce__(self) -> Any:
            self._check_process()
            # The pickle holds a copy of the numbers.
            return numpy.asarray(self).__reduce__()

    def checked(method: Any) -> Any:
        @functools.wraps(method)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            self._check_process()
            return method(self, *args, **kwargs)

        return call

    # All methods that may touch the memory check the process first. Computations do so above.
    for name, method in vars(numpy.ndarray).items():
        if callable(method) and name not in vars(SimGpuBuffer) and name not in _NEEDS_NO_MEMORY:
            setattr(SimGpuBuffer, name, checked(method))
    return SimGpuBuffer


@functools.cache
def _cuda_class() -> Any:
    try:
        import cupy
    except ImportError as error:
        raise ImportError(
            "GpuBuffer is a CuPy array, and CuPy is not installed (pip install cupy-cuda12x); RawGpuBuffer(bytes) works "
            "without, and to_dlpack() gives its memory to other libraries"
        ) from error

    class CudaGpuBuffer(cupy.ndarray):
        """A CuPy array over device memory of this library."""

        _is_gpu_buffer = True

        def __new__(cls, shape: Any, dtype: Any, raw: RawGpuBuffer, strides: Any, order: Any) -> Any:
            memory = cupy.cuda.UnownedMemory(raw.data(), raw.bytes(), raw, raw.device_id())
            pointer = cupy.cuda.MemoryPointer(memory, 0)
            return cupy.ndarray.__new__(cls, shape, dtype, pointer, strides, order)

    return CudaGpuBuffer
