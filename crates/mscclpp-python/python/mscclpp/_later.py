"""Names that programs may import, but that raise when they are used: they belong to parts that do not exist here."""

import enum
import os
import types
from collections.abc import Callable
from typing import Any, Self

from . import _mscclpp
from ._paths import get_include


def missing(what: str) -> NotImplementedError:
    return NotImplementedError(f"mscclpp.{what} is not there yet in this implementation of mscclpp")


class Later:
    """Base class of classes that raise when an object is made."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        module = cls.__module__.removeprefix("mscclpp.")
        raise missing(cls.__name__ if module.startswith("_") else f"{module}.{cls.__name__}")


def put_into_extension(*classes: type) -> None:
    """Add classes to the extension module, under their names and with the prefix `Cpp`."""
    for each in classes:
        setattr(_mscclpp, each.__name__, each)
        setattr(_mscclpp, f"Cpp{each.__name__}", each)


class ExecutionPlan(Later):
    """A plan of a collective. Not there yet."""


class AlgorithmBuilder(Later):
    """Makes algorithms. Not there yet."""


class SwitchChannel(Later):
    """A channel through a switch that computes. Not there yet."""


class NvlsConnection(Later):
    """A connection of many GPUs through a switch. Not there yet."""


def connect_nvls_collective(communicator: Any, all_ranks: Any, buffer_size: int) -> Any:
    """Connect GPUs through a switch that computes. Not there yet."""
    raise missing("connect_nvls_collective")


def compile(*args: Any, **kwargs: Any) -> Any:
    """Make an execution plan of a program. Not there yet."""
    raise missing("compile")


def compile_native(*args: Any, **kwargs: Any) -> Any:
    """Compile an algorithm written in CUDA C++. Not there yet."""
    raise missing("compile_native")


def is_nvls_supported() -> bool:
    """Whether GPUs can be connected through a switch that computes: not by this implementation, yet."""
    return False


def is_bulk_supported() -> bool:
    """Whether kernels of the current GPU can use bulk copies: compute capability 9.0, or a simulated device."""
    if not os.path.exists(os.path.join(get_include(), "mscclpp", "bulk_device.hpp")):
        return False
    try:
        platform, _, capability = _mscclpp._current_gpu()
    except _mscclpp.Error:
        return False  # there is no GPU
    return platform == "sim" or (capability is not None and capability >= (9, 0))


def _npkit(name: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        raise missing(f"npkit.{name}")

    call.__name__ = name
    call.__doc__ = "Part of the traces of kernels. Not there yet."
    return call


#: Traces of kernels. Not there yet.
npkit = types.SimpleNamespace(**{name: _npkit(name) for name in ("init", "dump", "shutdown")})


class PacketType(enum.IntEnum):
    """Which packets an executor uses."""

    LL8 = 0
    LL16 = 1


# The extension module has these, too.
_mscclpp.cpp_npkit = npkit
put_into_extension(ExecutionPlan, AlgorithmBuilder, SwitchChannel, NvlsConnection, PacketType)
for _function in ("connect_nvls_collective", "is_nvls_supported", "is_bulk_supported"):
    setattr(_mscclpp, _function, globals()[_function])
