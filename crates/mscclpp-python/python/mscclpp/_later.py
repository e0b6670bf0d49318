"""What programs may import and is not there yet: it raises when it is used."""

import enum
import os
import types
from collections.abc import Callable
from typing import Any, Self

from . import _mscclpp
from ._paths import get_include


def _missing(what: str) -> NotImplementedError:
    return NotImplementedError(f"mscclpp.{what} is not there yet in this implementation of mscclpp")


class _Later:
    """A class whose objects cannot be made yet."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        raise _missing(cls.__name__)


class Executor(_Later):
    """Runs execution plans. Not there yet."""


class ExecutionPlan(_Later):
    """A plan of a collective. Not there yet."""


class Algorithm(_Later):
    """A collective algorithm. Not there yet."""

    @classmethod
    def create_from_execution_plan(cls, *args: Any, **kwargs: Any) -> Self:
        """Make one of an execution plan. Not there yet."""
        raise _missing("Algorithm.create_from_execution_plan")

    @classmethod
    def create_from_native_capsule(cls, *args: Any, **kwargs: Any) -> Self:
        """Make one of compiled code. Not there yet."""
        raise _missing("Algorithm.create_from_native_capsule")


class AlgorithmBuilder(_Later):
    """Makes algorithms. Not there yet."""


class AlgorithmCollection(_Later):
    """Several algorithms. Not there yet."""


class AlgorithmCollectionBuilder(_Later):
    """Collects algorithms. Not there yet."""

    @classmethod
    def reset(cls) -> None:
        """Forget the algorithms that were collected: there are none, yet."""


class SwitchChannel(_Later):
    """A channel through a switch that computes. Not there yet."""


class NvlsConnection(_Later):
    """A connection of many GPUs through a switch. Not there yet."""


def connect_nvls_collective(communicator: Any, all_ranks: Any, buffer_size: int) -> Any:
    """Connect GPUs through a switch that computes. Not there yet."""
    raise _missing("connect_nvls_collective")


def compile(*args: Any, **kwargs: Any) -> Any:
    """Make an execution plan of a program. Not there yet."""
    raise _missing("compile")


def compile_native(*args: Any, **kwargs: Any) -> Any:
    """Compile an algorithm written in CUDA C++. Not there yet."""
    raise _missing("compile_native")


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
    return platform == "host" or (capability is not None and capability >= (9, 0))


def _npkit(name: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        raise _missing(f"npkit.{name}")

    call.__name__ = name
    call.__doc__ = "Part of the traces of kernels. Not there yet."
    return call


#: Traces of kernels. Not there yet.
npkit = types.SimpleNamespace(**{name: _npkit(name) for name in ("init", "dump", "shutdown")})


class DataType(enum.IntEnum):
    """What elements are."""

    int32 = 0
    uint32 = 1
    float16 = 2
    float32 = 3
    bfloat16 = 4
    float8_e4m3 = 5
    float8_e5m2 = 6
    uint8 = 7


class PacketType(enum.IntEnum):
    """Which packets an executor uses."""

    LL8 = 0
    LL16 = 1


class ReduceOp(enum.IntEnum):
    """How elements are reduced."""

    SUM = 0
    MIN = 3


# Under the names that the extension module has them by.
_mscclpp.cpp_npkit = npkit
for _later in (
    Executor,
    ExecutionPlan,
    Algorithm,
    AlgorithmBuilder,
    AlgorithmCollection,
    SwitchChannel,
    NvlsConnection,
    DataType,
    PacketType,
    ReduceOp,
):
    setattr(_mscclpp, _later.__name__, _later)
    setattr(_mscclpp, f"Cpp{_later.__name__}", _later)
for _function in ("connect_nvls_collective", "is_nvls_supported", "is_bulk_supported"):
    setattr(_mscclpp, _function, globals()[_function])
