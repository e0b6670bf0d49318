"""`all_reduce` with more work in the same launch: an epilogue of the program, or RMSNorm."""

from __future__ import annotations

import os
import re
import struct
import tempfile
from collections.abc import Collection, Sequence
from typing import Any

from . import _mscclpp
from ._data_types import SIZES
from ._errors import misuse
from ._on_device import _Array, _handle, _new

#: The types of rows, and the names that the headers have for them.
_ROWS = {"float16": "ReduceF16", "bfloat16": "ReduceBf16", "float32": "ReduceF32"}
#: The C++ types of numbers that an epilogue may have as parameters, and their codes in `struct`.
_SCALARS = {
    "bool": "?",
    "int": "i",
    "int32_t": "i",
    "unsigned": "I",
    "unsigned int": "I",
    "uint32_t": "I",
    "long long": "q",
    "int64_t": "q",
    "unsigned long long": "Q",
    "uint64_t": "Q",
    "size_t": "Q",
    "float": "f",
    "double": "d",
}
#: The bytes of a vector, the unit in which threads read a row; the most bytes of a row; and the most outputs.
_VECTOR, _MOST, _OUTPUTS = 16, 64 << 10, 4

#: The tuples for outputs and arguments in `_Collectives.all_reduce_rows`.
_Output = tuple[int, str | None, bool]
_Argument = bytes | tuple[int, int]


def fused_all_reduce(epilogue: str, parameters: str = "", own: Collection[int] = ()) -> FusedAllReduce:
    """Make an all_reduce that passes each row of sums to an epilogue, in one launch.

    `epilogue` is CUDA C++ that defines `template <class N> struct Epilogue`, as `mscclpp/collective_rows_device.hpp`
    describes it; the library's headers are included. `parameters` declares its members, in their order, like the
    parameters of a function: pointers and numbers, such as `"const void* bias, float factor"`. `own` has the numbers
    of those outputs that each rank needs only for the rows that it sums up itself. The kernel is compiled at the
    first call with rows of a type, or by `load`.
    """
    return FusedAllReduce(epilogue, parameters, own)


class FusedAllReduce:
    """An all_reduce with an epilogue, made by `fused_all_reduce`. It is called with collectives, rows, and outputs."""

    def __init__(self, epilogue: str, parameters: str = "", own: Collection[int] = ()) -> None:
        if not re.search(r"\bstruct\s+Epilogue\b", epilogue):
            raise ValueError("argument 'epilogue': it does not define `template <class N> struct Epilogue`")
        self._epilogue, self._parameters, self._own = epilogue, _parsed(parameters), frozenset(own)
        self._declared = parameters.strip()
        self._kernels: dict[tuple[str, int], Any] = {}

    def __repr__(self) -> str:
        return f"<mscclpp.FusedAllReduce ({self._declared})>"

    def load(self, comm: Any, dtype: str) -> None:
        """Compile and load the kernel for rows of a type ("float16", "bfloat16", "float32"), on the device of `comm`.

        Loading may wait for kernels that run. So ranks that share a device load it before any of them makes the first
        call, and a call that is to be captured is loaded before the capture.
        """
        self._kernel(comm, dtype)

    def __call__(self, comm: Any, x: Any, *outputs: Any, stream: Any = None, **arguments: Any) -> Any:
        """Sum up `x` of all ranks of `comm`, and let the epilogue store to `outputs`. Return these: one, or a tuple.

        The last dimension of `x` is that of a row. An output has as many numbers as `x`, of the same or half the
        size, or one number of 4 bytes for each row. `arguments` are the parameters, by name. Once it is loaded, the
        call waits for no other rank and may be captured, like all calls of `comm`.
        """
        rows = _Rows(comm, x, stream)
        given = [rows.output(f"outputs[{n}]", output, n in self._own) for n, output in enumerate(outputs)]
        if set(arguments) != {name for name, _ in self._parameters}:
            raise TypeError(f"expected the arguments ({self._declared}), got ({', '.join(arguments)})")
        args = [rows.argument(name, kind, arguments[name]) for name, kind in self._parameters]
        rows.enqueue(self._kernel(comm, rows.x.dtype), args, given, (outputs, arguments))
        return outputs[0] if len(outputs) == 1 else outputs

    def _kernel(self, comm: Any, dtype: str) -> Any:
        if (dtype, comm.device) not in self._kernels:
            _expect_type("dtype", dtype, _ROWS)
            _expect_current(comm)
            self._kernels[dtype, comm.device] = self._compiled(_ROWS[dtype])
        return self._kernels[dtype, comm.device]

    def _compiled(self, number: str) -> Any:
        from .utils import KernelBuilder

        declared = f"{self._declared}, " if self._declared else ""
        source = f"""#include "mscclpp/collective_device.hpp"
using namespace mscclpp;
#line 1 "epilogue"
{self._epilogue}
#line 1 "fused_all_reduce"
extern "C" __global__ void __launch_bounds__(1024)
    fused_all_reduce({declared}const MSCCLPP_GRID_CONSTANT CollectiveHandle comm_,
                     const MSCCLPP_GRID_CONSTANT CollectiveRows rows_) {{
  waitForEarlierLaunches();
  using N_ = Number<{number}>;
  allReduceRows<N_>(comm_, rows_, Epilogue<N_>{{{", ".join(name for name, _ in self._parameters)}}});
}}
"""
        with tempfile.TemporaryDirectory(prefix="mscclpp-epilogue-") as folder:
            with open(os.path.join(folder, "fused_all_reduce.cu"), "w", encoding="utf-8") as file:
                file.write(source)
            return KernelBuilder("fused_all_reduce.cu", "fused_all_reduce", folder).get_compiled_kernel()._kernel


def all_reduce_rms_norm(
    comm: Any,
    x: Any,
    residual: Any,
    weight: Any,
    eps: float,
    out: Any,
    residual_out: Any,
    scale: float | None,
    scales: Any,
    stream: Any,
) -> tuple[Any, Any]:
    """Implements `Collectives.all_reduce_rms_norm`."""
    rows = _Rows(comm, x, stream)
    _expect_type("x", rows.x.dtype, ("float16", "bfloat16"))
    if scale is not None and scales is not None:
        raise TypeError("all_reduce_rms_norm() takes one of 'scale' and 'scales', not both")
    is_quantised = scale is not None or scales is not None
    if out is None:
        if is_quantised:
            raise TypeError("argument 'out': give an array of fp8 for numbers that are scaled")
        out = _new(x, rows.x.shape)
    residual_out = residual if residual_out is None else residual_out
    args = [
        rows.like("residual", residual),
        rows.like("weight", weight, (rows.columns,)),
        rows.argument("eps", "f", eps),
    ]
    rows.like("residual_out", residual_out)
    if is_quantised:
        rows.like("out", out, types=("float8_e4m3fn", "uint8"))
    else:
        rows.like("out", out)
    outputs = [rows.output("residual_out", residual_out), rows.output("out", out)]
    form = ""
    if scale is not None:
        packed = rows.argument("scale", "f", scale)
        if not scale > 0:
            raise ValueError(f"argument 'scale': expected a number above 0, got {scale}")
        form = "_fp8"
        args.append(packed)
    if scales is not None:
        form = "_fp8_of_rows"
        rows.like("scales", scales, (rows.count,), ("float32",))
        outputs.append(rows.output("scales", scales))
    kernel = _rms_norm(comm, f"all_reduce_rms_norm_{'f16' if rows.x.dtype == 'float16' else 'bf16'}{form}")
    rows.enqueue(kernel, args, outputs, (residual, weight, out, residual_out, scales))
    return out, residual_out


#: The loaded kernels of the library, by name and device.
_norms: dict[tuple[str, int], _mscclpp._Kernel] = {}


def _rms_norm(comm: Any, name: str) -> _mscclpp._Kernel:
    if (name, comm.device) not in _norms:
        _expect_current(comm)
        _norms[name, comm.device] = _mscclpp._Kernel.of_rms_norm(name)
    return _norms[name, comm.device]


class _Rows:
    """The rows of a call, its stream, and checks of its arguments and outputs."""

    def __init__(self, comm: Any, x: Any, stream: Any) -> None:
        self.comm, self.given, self.x = comm, x, comm._look("x", x)
        self.stream = comm._current_stream(x) if stream is None else _handle(stream)
        _expect_type("x", self.x.dtype, _ROWS)
        if not self.x.shape:
            raise ValueError("argument 'x': it has no dimension; the last one is that of a row")
        self.columns = self.x.shape[-1]
        self.count = self.x.length // max(self.columns, 1)
        self.size = _size("x", self.x)
        of_row = self.columns * self.size
        if of_row % _VECTOR or not 0 < of_row <= _MOST:
            raise ValueError(
                f"argument 'x': its rows of {self.columns} numbers of {self.x.dtype} have {of_row} bytes; expected a "
                f"multiple of {_VECTOR}, and up to {_MOST}"
            )
        self._expect_aligned("x", self.x)
        self._outputs = 0

    def like(self, name: str, array: Any, shape: tuple[int, ...] = (), types: Collection[str] = ()) -> _Argument:
        """Returns the argument for an array of the shape and type of `x`, or of the given ones."""
        there, shape = self.comm._look(name, array), shape or self.x.shape
        _expect_type(name, there.dtype, types or (self.x.dtype,))
        if there.shape != shape:
            raise ValueError(f"argument '{name}': expected an array of shape {shape}, got {there.shape}")
        self._expect_aligned(name, there)
        return there.address, there.length * _size(name, there)

    def output(self, name: str, array: Any, is_own: bool = False) -> _Output:
        """Returns an output, which is as large as `x`, half as large, or has one number for each row."""
        there = self.comm._look(name, array, is_written=True)
        size = _size(name, there)
        is_of_rows = there.length == self.count and size == 4 and self.columns != 1
        if not is_of_rows and (there.length != self.x.length or size not in (self.size, self.size // 2)):
            raise ValueError(
                f"argument '{name}': expected {self.x.length} numbers of {self.size} or {self.size // 2} bytes, or one of 4 "
                f"bytes for each of {self.count} rows, got {there.length} of {there.dtype}"
            )
        if (
            there.address < self.x.address + self.x.length * self.size
            and self.x.address < there.address + there.length * size
        ):
            raise ValueError(
                f"argument '{name}': it overlaps 'x', and would be stored before all rows of 'x' have been sent"
            )
        self._outputs += 1
        if self._outputs > _OUTPUTS:
            raise ValueError(f"argument '{name}': there can be {_OUTPUTS} outputs")
        if is_of_rows:
            return there.address, None, False
        self._expect_aligned(name, there)
        return there.address, there.dtype, is_own

    def argument(self, name: str, kind: str, value: Any) -> _Argument:
        """Returns the argument for a parameter of an epilogue: an array for a pointer, or a number."""
        if kind == "P":
            there = self.comm._look(name, value)
            return there.address, there.length * _size(name, there)
        try:
            return struct.pack(kind, value)
        except (struct.error, OverflowError, TypeError):
            wanted = next(c for c, of in _SCALARS.items() if of == kind)
            raise TypeError(
                f"argument '{name}': expected a number for a parameter of type {wanted}, got {value!r}"
            ) from None

    def enqueue(self, kernel: Any, args: Sequence[_Argument], outputs: list[_Output], kept: Any) -> None:
        rows = (self.x.address, self.count, self.columns, self.x.dtype)
        self.comm._put_rows(kernel, list(args), rows, outputs, self.stream, (self.given, kept))

    def _expect_aligned(self, name: str, array: _Array) -> None:
        if array.address % _VECTOR:
            raise ValueError(f"argument '{name}': it begins at {array.address:#x}, which is no multiple of {_VECTOR}")


def _parsed(parameters: str) -> list[tuple[str, str]]:
    """Returns the names of parameters, and the codes of their types in `struct`."""
    parsed = []
    for parameter in parameters.split(",") if parameters.strip() else []:
        match = re.fullmatch(r"\s*(.*?[\s*])([A-Za-z_]\w*)\s*", parameter, re.DOTALL)
        of = " ".join(re.sub(r"\bconst\b", " ", match[1]).split()) if match else ""
        kind = "P" if "*" in of else _SCALARS.get(of)
        if match is None or kind is None or match[2] in ("comm", "x", "outputs", "stream"):
            raise ValueError(
                f"argument 'parameters': {parameter.strip()!r} is no pointer and none of {', '.join(_SCALARS)}, with a name "
                "of its own behind it"
            )
        parsed.append((match[2], kind))
    return parsed


def _size(name: str, array: _Array) -> int:
    """Returns the bytes of a number."""
    size = SIZES.get(array.dtype)
    if size is None:
        raise TypeError(f"argument '{name}': there are no collectives of numbers of type {array.dtype}")
    return size


def _expect_type(name: str, dtype: str, types: Collection[str]) -> None:
    if dtype not in types:
        raise TypeError(f"argument '{name}': expected numbers of type {' or '.join(types)}, got {dtype}")


def _expect_current(comm: Any) -> None:
    _, device, _ = _mscclpp._current_gpu()
    if device != comm.device:
        raise misuse(
            f"a kernel would be loaded on device {device}, the current one, for collectives on device {comm.device}; call "
            f"mscclpp.set_device({comm.device})",
        )
