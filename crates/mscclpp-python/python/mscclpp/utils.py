"""Kernels in Python: compiling them from CUDA C++, and launching them."""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from . import _mscclpp
from ._arrays import is_of_cuda, is_torch_tensor, locate
from ._buffer import GpuBuffer
from ._data_types import DataType
from ._errors import misuse
from ._mscclpp import RawGpuBuffer
from ._paths import get_include

__all__ = [
    "GpuBuffer",
    "Kernel",
    "KernelBuilder",
    "get_device_arch",
    "is_torch_tensor",
    "pack",
    "torch_dtype_to_mscclpp_dtype",
]


class Kernel:
    """A kernel that is loaded on the GPU that was current when it was made.

    `Kernel(cubin, kernel_name)` takes compiled code for CUDA: a cubin, a fatbin or PTX. `KernelBuilder` makes one of CUDA
    C++, and runs on simulated devices, too.
    """

    _kernel: _mscclpp._Kernel
    _name: str
    #: The sizes that `pack` was given at the last launch.
    _packed: tuple[int, ...] | None = None

    def __init__(self, cubin: bytes | bytearray | memoryview, kernel_name: str) -> None:
        code = bytes(cubin)
        platform, _, _ = _mscclpp._current_gpu()
        if platform != "cuda":
            raise RuntimeError(
                f"argument 'cubin': it is code for CUDA, and this is {platform}; use KernelBuilder, of a source"
            )
        self._name = kernel_name
        if code.startswith((b"\x7fELF", b"\x50\xed\x55\xba")):
            self._kernel = _mscclpp._Kernel.of_binary(f"the code of {kernel_name}", code, kernel_name)
        else:
            try:
                ptx = code.rstrip(b"\0").decode()
            except UnicodeDecodeError:
                raise ValueError("argument 'cubin': it is neither a cubin, a fatbin nor PTX") from None
            self._kernel = _mscclpp._Kernel(f"{kernel_name}.ptx", "", [], kernel_name, ptx)

    @classmethod
    def _of_source(
        cls, name: str, source: str, headers: list[tuple[str, str]], kernel_name: str, ptx: str | None
    ) -> Self:
        kernel = cls.__new__(cls)
        kernel._name = kernel_name
        kernel._kernel = _mscclpp._Kernel(name, source, headers, kernel_name, ptx)
        return kernel

    def launch_kernel(
        self,
        params: Any,
        nblocks: int | Sequence[int],
        nthreads: int | Sequence[int],
        shared: int,
        stream: Any,
    ) -> None:
        """Launch the kernel, and do not wait for it.

        `params` is a tuple with an argument for each parameter. The arguments live until the kernel has ended, even
        if the program drops them. They are arrays, or objects with a device handle, such as channels and FIFOs, whose
        handle is passed. An int takes the size of its parameter. `params` may also be bytes, as `pack` makes them.
        Then the memory that they point to must live until the kernel has ended, which a `GpuBuffer` does by itself.

        Numbers of blocks and threads are one number, or up to three. `stream` is None for the default stream, a
        stream of CuPy or PyTorch, an object with `__cuda_stream__`, or a driver's handle.
        """
        blocks, threads, handle = _three("nblocks", nblocks), _three("nthreads", nthreads), stream_handle(stream)
        keep, addresses = None, None
        if isinstance(params, (tuple, list)):
            if isinstance(params, tuple) and self._kernel.launch_again(params, blocks, threads, shared, handle):
                return
            keep = tuple(params)
            params, addresses = self._aligned(keep), _addresses(keep)
        elif isinstance(params, _Packed) and params.arguments != self._packed:
            self._check_packed(params.arguments)
        self._kernel.launch(params, blocks, threads, shared, handle, keep, addresses)

    def _aligned(self, args: Sequence[Any]) -> bytes:
        """Returns the arguments as bytes, where a C compiler puts the members of a struct."""
        parameters = self._kernel.parameters
        if len(args) != len(parameters):
            names = self._kernel.parameter_names
            taken = f" ({', '.join(names)})" if names else ""
            raise TypeError(
                f"argument 'params': {self._name} takes {_counted(len(parameters), 'argument')}{taken}, and {len(args)} "
                f"{'is' if len(args) == 1 else 'are'} given"
            )
        packed = bytearray()
        for place, arg, (offset, size) in zip(self._places, args, parameters, strict=True):
            packed += bytes(offset - len(packed))
            packed += _sized(place, arg, size)
        return bytes(packed)

    def _check_packed(self, arguments: tuple[int, ...]) -> None:
        """Checks that each packed argument belongs to one parameter, or to a part of one. Gaps between parameters may
        be filled.
        """
        parameters = self._kernel.parameters
        sizes = [size for _, size in parameters]
        end, total = sum(parameters[-1]) if parameters else 0, sum(map(abs, arguments))
        # `launch` cuts the bytes in the same two ways: with the gaps that a compiler leaves, or without gaps.
        is_aligned = end <= total < end + 8
        starts = (
            [offset for offset, _ in parameters] if is_aligned else list(itertools.accumulate(sizes, initial=0))[:-1]
        )
        fits, at = is_aligned or total == sum(sizes), 0
        for size in arguments:
            # An argument of bytes may cover several parameters.
            covers_two = size > 0 and any(at < start < at + size for start in starts)
            fits &= at < end and not covers_two
            at += abs(size)
        if not fits:
            given = [abs(size) for size in arguments]
            raise misuse(
                f"launch of {self._name}: it has {_counted(len(sizes), 'parameter')}, of {sizes} bytes ({end} with the "
                f"gaps between them), and pack() was given {_counted(len(given), 'argument')}, of {given} bytes "
                f"({total} in all); a tuple of arguments in place of pack() has each in its place",
            )
        self._packed = arguments

    @functools.cached_property
    def _places(self) -> list[str]:
        """The names of the arguments in messages."""
        names = self._kernel.parameter_names or [""] * len(self._kernel.parameters)
        return [f"{place}{f' ({name})' if name else ''} of {self._name}" for place, name in enumerate(names)]

    def __repr__(self) -> str:
        return f"<mscclpp.utils.Kernel {self._name} of {len(self._kernel.parameters)} parameters>"


def _counted(n: int, thing: str) -> str:
    return f"{n} {thing}{'s' * (n != 1)}"


#: The largest number that a GPU takes, for each argument.
_MOST = {"nblocks": 2**31 - 1, "nthreads": 1024}


def _addresses(args: tuple[Any, ...]) -> list[tuple[int, int]] | None:
    """Returns the places and addresses of tensors, which can move; None if another argument may change its bytes."""
    addresses = []
    for place, arg in enumerate(args):
        if is_torch_tensor(arg):
            addresses.append((place, arg.data_ptr()))
        elif type(arg) not in (int, bool, bytes):
            # Arrays of CuPy and objects of this library keep their address until they are closed.
            library = type(arg).__module__.partition(".")[0]
            if library not in ("cupy", "mscclpp") and not _is_numpy_scalar(arg):
                return None
    return addresses


def _is_numpy_scalar(arg: Any) -> bool:
    return type(arg).__module__ == "numpy" and getattr(arg, "shape", None) == () and not hasattr(arg, "__setitem__")


def _three(argument: str, numbers: int | Sequence[int]) -> list[int]:
    if type(numbers) is int and 0 <= numbers < 2**32:
        return [numbers, 1, 1]
    given = list(numbers) if isinstance(numbers, Sequence) else [numbers]
    if not 1 <= len(given) <= 3:
        raise ValueError(f"argument '{argument}': {given} is not one to three numbers")
    for number in given:
        if not hasattr(number, "__index__"):
            raise TypeError(f"argument '{argument}': expected an int, or up to three, got {number!r}")
        # For numbers in this range, the launch checks the limits of the GPU.
        if not 0 <= number < 2**32:
            raise OverflowError(f"argument '{argument}': expected numbers from 1 to {_MOST[argument]}, got {number}")
    return given + [1] * (3 - len(given))


_NO_TIME = "; seconds are given to mscclpp.synchronize(timeout_sec) and Collectives(timeout=..)"


def stream_handle(stream: Any) -> int | None:
    """The driver's handle of a stream of any library; None for the default stream."""
    if hasattr(stream, "__cuda_stream__"):
        stream = stream.__cuda_stream__()[1]
    for attribute in ("ptr", "cuda_stream"):
        stream = getattr(stream, attribute, stream)
    if stream is not None and (not isinstance(stream, int) or stream < 0):
        raise TypeError(
            f"argument 'stream': expected None, a stream of CuPy or PyTorch, or a driver's handle (int), got {stream!r}"
            f"{_NO_TIME if isinstance(stream, float) else ''}"
        )
    # The default stream of CuPy and PyTorch is 0.
    return stream or None


class KernelBuilder:
    """Compiles a kernel, which must be `extern "C"`, from a file of CUDA C++.

    The file is looked for in `file_dir`. Without `file_dir`, it is looked for in the current folder, beside the file
    that calls this, and beside the program. The headers of this library are found without further options. Compiled
    code is kept in a cache.
    """

    def __init__(
        self, file: str, kernel_name: str, file_dir: str | None = None, macro_dict: Mapping[str, Any] | None = None
    ) -> None:
        caller = sys._getframe(1).f_globals.get("__file__")
        self._path = _find(file, file_dir, caller)
        self._name = kernel_name
        self._macros = dict(macro_dict or {})

    def __repr__(self) -> str:
        return f"<mscclpp.utils.KernelBuilder of {self._name} in {self._path}>"

    def get_compiled_kernel(self) -> Kernel:
        """Compile it, unless that was done before, and load it on the current GPU."""
        with open(self._path, encoding="utf-8") as file:
            text = file.read()
        name = os.path.basename(self._path)
        headers = _own_headers(text, os.path.dirname(self._path))
        platform, _, capability = _mscclpp._current_gpu()
        ptx = self._ptx(capability, text, headers) if platform == "cuda" and capability is not None else None
        source = text
        if self._macros:
            macros = "".join(f"#define {macro} {value}\n" for macro, value in self._macros.items())
            source = f'{macros}#line 1 "{name}"\n{text}'
        return Kernel._of_source(name, source, headers, self._name, ptx)

    def _ptx(self, capability: tuple[int, int], text: str, headers: list[tuple[str, str]]) -> str | None:
        """Returns the PTX that nvcc makes, or has made before; None if it has not, and there is no nvcc."""
        major, minor = capability
        options = ["-ptx", "-std=c++17", f"-arch=compute_{major}{minor}", f"-I{get_include()}"]
        options += [f"-D{macro}={value}" for macro, value in self._macros.items()]
        # The version of nvcc is not part of the key, since only nvcc could tell it.
        made_from = ["nvcc", *options, text]
        made_from += [f"{name}={os.environ.get(name)}" for name in _READ_BY_NVCC]
        for header in headers + _headers_of_the_library():
            made_from += header
        try:
            return _mscclpp._cached_ptx(os.path.basename(self._path), made_from, lambda: self._compiled(options, text))
        except _NoNvcc:
            return None

    def _compiled(self, options: list[str], text: str) -> str:
        nvcc = _find_nvcc()
        if nvcc is None:
            raise _NoNvcc
        with tempfile.TemporaryDirectory(prefix="mscclpp-nvcc-") as folder:
            ptx = os.path.join(folder, "kernel.ptx")
            command = [nvcc, *options, self._path, "-o", ptx]
            run = subprocess.run(command, capture_output=True, text=True, timeout=600)
            if run.returncode != 0:
                said = f"{self._path} did not compile ({' '.join(command)}):\n{run.stderr}{run.stdout}"
                raise misuse(said)
            with open(self._path, encoding="utf-8") as file:
                if file.read() != text:
                    raise RuntimeError(f"{self._path} was changed while it was compiled; try again")
            with open(ptx, encoding="utf-8") as file:
                return file.read()


#: Environment variables that nvcc, and the compiler that it calls, read.
_READ_BY_NVCC = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN", "CPATH", "CPLUS_INCLUDE_PATH")


class _NoNvcc(Exception):
    """Raised if there is no nvcc: then NVRTC compiles the kernel."""


def _find(file: str, file_dir: str | None, caller: str | None) -> str:
    program = getattr(sys.modules.get("__main__"), "__file__", None)
    folders = [os.getcwd(), *(os.path.dirname(os.path.abspath(path)) for path in (caller, program) if path)]
    folders = [file_dir] if file_dir is not None else folders
    paths = list(dict.fromkeys(os.path.abspath(os.path.join(folder, file)) for folder in folders))
    for path in paths:
        if os.path.isfile(path):
            return path
    raise FileNotFoundError(f"argument 'file': there is no {' and no '.join(paths)}")


def _find_nvcc() -> str | None:
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        nvcc = os.path.join(os.environ.get(variable, ""), "bin", "nvcc")
        if os.environ.get(variable) and os.access(nvcc, os.X_OK):
            return nvcc
    return shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")


_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)


@functools.cache
def _headers_of_the_library() -> list[tuple[str, str]]:
    return [(path.name, path.read_text(encoding="utf-8")) for path in sorted(Path(get_include()).glob("mscclpp/*"))]


def _own_headers(text: str, folder: str) -> list[tuple[str, str]]:
    """Returns the names and texts of the files beside a source that it includes, and of those that they include.

    Like compilers, it looks for each file beside the file that includes it, and then beside the source. A file has
    the name by which it is included and that by which it is found from the source, because compilers differ in which
    one they use.
    """
    found: dict[str, str] = {}
    files = [(text, folder)]
    while files:
        text, beside = files.pop()
        for name in _INCLUDE.findall(text):
            paths = [os.path.join(place, name) for place in (beside, folder)]
            path = next(filter(os.path.isfile, paths), None)
            if path is None:
                continue
            known = os.path.relpath(path, folder)
            if known not in found:
                with open(path, encoding="utf-8") as file:
                    found[known] = file.read()
                files.append((found[known], os.path.dirname(path)))
            found.setdefault(name, found[known])
    return list(found.items())


class _Packed(bytes):
    """The bytes that `pack` makes. They know their arguments, until they are joined with other bytes."""

    #: How many bytes each argument has: a negative number if it was given as bytes.
    arguments: tuple[int, ...]


def pack(*args: Any) -> bytes:
    """Pack the arguments of a kernel into bytes.

    An int or bool takes 4 bytes; ctypes and NumPy values their size (`ctypes.c_size_t` 8). Arrays are passed as their
    address, bytes (such as `device_handle().raw`) unchanged, and objects that have a device handle as the handle. A
    launch compares the number and sizes of the arguments with those of the kernel's parameters.
    """
    parts = [_packed(f"{place} of pack()", arg) for place, arg in enumerate(args)]
    packed = _Packed(b"".join(parts))
    packed.arguments = tuple(-len(part) if isinstance(arg, bytes) else len(part) for arg, part in zip(args, parts))
    return packed


def _packed(place: str, arg: Any) -> bytes:
    if isinstance(arg, int):
        if not -(2**31) <= arg < 2**32:
            raise OverflowError(f"argument {place} is {arg}, which is no int of 4 bytes; use ctypes.c_size_t")
        return struct.pack("i" if arg < 2**31 else "I", arg)
    if isinstance(arg, (bytes, bytearray, memoryview)):
        return bytes(arg)
    if isinstance(arg, (ctypes._SimpleCData, ctypes.Structure, ctypes.Array)):
        return bytes(arg)
    if isinstance(arg, RawGpuBuffer):
        return struct.pack("P", arg.data())
    if _is_numpy_scalar(arg):
        return bytes(arg.tobytes())
    if hasattr(arg, "device_handle"):
        arg = arg.device_handle()
    if hasattr(arg, "raw"):
        return bytes(arg.raw)
    if isinstance(arg, float):
        raise TypeError(f"argument {place} is a float; say which: ctypes.c_float or ctypes.c_double")
    address, size = locate(arg, f"argument {place}", one_piece=False)
    if size > 0 and not is_of_cuda(arg) and _is_out_of_reach(address):
        raise ValueError(
            f"argument {place} is in the memory of the host ({type(arg).__module__}.{type(arg).__name__}), which kernels of "
            "a GPU cannot reach; copy it into a mscclpp.GpuBuffer"
        )
    return struct.pack("P", address)


def _is_out_of_reach(address: int) -> bool:
    """Whether kernels cannot reach the address. It is known for simulated devices only: on a GPU, the memory may be
    pinned.
    """
    return _mscclpp._current_gpu()[0] == "sim" and _mscclpp._device_of(address) is None


def _sized(place: str, arg: Any, size: int) -> bytes:
    """Returns the bytes of an argument for a parameter of `size` bytes."""
    if isinstance(arg, int):
        try:
            return int(arg).to_bytes(size, sys.byteorder, signed=arg < 0)
        except OverflowError:
            raise OverflowError(f"argument {place} is {arg}, and its parameter has {size} bytes") from None
    packed = _packed(place, arg)
    if len(packed) != size:
        raise TypeError(
            f"argument {place} has {len(packed)} bytes ({type(arg).__name__}), and its parameter has {size}"
        )
    return packed


def get_device_arch() -> str:
    """The architecture of the current GPU, such as `sm_90`; `sim` for a simulated device."""
    platform, _, capability = _mscclpp._current_gpu()
    return f"sm_{capability[0]}{capability[1]}" if capability is not None else platform


def torch_dtype_to_mscclpp_dtype(dtype: Any) -> DataType:
    """Return the DataType for a type of PyTorch."""
    prefix, _, name = str(dtype).rpartition(".")
    if prefix != "torch" or name not in DataType.__members__:
        known = ", ".join(DataType.__members__)
        raise ValueError(f"argument 'dtype': {dtype} has no DataType; the types that have one are {known}")
    return DataType[name]
