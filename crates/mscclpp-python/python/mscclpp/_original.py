"""The names of the C++ project that its extension module has, or whose parts do not exist here."""

import enum
import os
import types
from collections.abc import Callable
from typing import Any, Self

from . import _mscclpp
from ._paths import get_include


def missing(what: str) -> NotImplementedError:
    return NotImplementedError(f"mscclpp.{what} is not there yet in this implementation of mscclpp")


def put_into_extension(*classes: type) -> None:
    """Add classes to the extension module, under their names and with the prefix `Cpp`."""
    for each in classes:
        setattr(_mscclpp, each.__name__, each)
        setattr(_mscclpp, f"Cpp{each.__name__}", each)


class _Absent:
    """A class of the C++ project that does not exist here. It can be imported, and raises when an object is made."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        raise missing(cls.__name__)


class ExecutionPlan(_Absent):
    """A plan of a collective. It does not exist here."""


class AlgorithmBuilder(_Absent):
    """A builder of algorithms. It does not exist here."""


class SwitchChannel(_Absent):
    """A channel through a switch that computes (NVLS). It does not exist here."""


class NvlsConnection(_Absent):
    """A connection of several GPUs through a switch (NVLS). It does not exist here."""


def _absent(name: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        raise missing(name)

    call.__name__ = name.rpartition(".")[2]
    call.__doc__ = "Raise `NotImplementedError`: this function of the C++ project does not exist here."
    return call


compile, compile_native = _absent("compile"), _absent("compile_native")
connect_nvls_collective = _absent("connect_nvls_collective")
#: Traces of kernels, which do not exist here.
npkit = types.SimpleNamespace(**{name: _absent(f"npkit.{name}") for name in ("init", "dump", "shutdown")})


class PacketType(enum.IntEnum):
    """The packets of an executor."""

    LL8 = 0
    LL16 = 1


def is_nvls_supported() -> bool:
    """Whether GPUs can be connected through a switch that computes. This implementation cannot do it."""
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


# The extension module has these, too.
_mscclpp.cpp_npkit = npkit
put_into_extension(ExecutionPlan, AlgorithmBuilder, SwitchChannel, NvlsConnection, PacketType)
for _function in (connect_nvls_collective, is_nvls_supported, is_bulk_supported):
    setattr(_mscclpp, _function.__name__, _function)
