"""The language in which the C++ original has collectives written. Its names can be imported, and are not there yet."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from ._later import Later


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"mscclpp.language.{name} is not there in this implementation of mscclpp, which runs no programs of that language"
    )


class MemoryChannel(Later):
    """A channel through memory. Not there yet."""


class PortChannel(Later):
    """A channel by ports. Not there yet."""


class SwitchChannel(Later):
    """A channel through a switch. Not there yet."""


class AllGather(Later):
    """An all_gather. Not there yet."""


class AllReduce(Later):
    """An all_reduce. Not there yet."""


class AllToAll(Later):
    """An all_to_all. Not there yet."""


class Collective(Later):
    """The collective of a program. Not there yet."""


class ReduceScatter(Later):
    """A reduce_scatter. Not there yet."""


class TestCollective(Later):
    """A collective for tests. Not there yet."""


class LoopIterationContext(Later):
    """A round of a loop. Not there yet."""


class CollectiveProgram(Later):
    """A program of all ranks. Not there yet."""


class BaseBuffer(Later):
    """Memory of a rank. Not there yet."""


class Buffer(Later):
    """Scratch memory of a rank. Not there yet."""


class Rank(Later):
    """A rank. Not there yet."""


class Semaphore(Later):
    """A semaphore between blocks. Not there yet."""


class AlgoSpec(Later):
    """The specification of a program. Not there yet."""


class ReplicationPolicy(Later):
    """How instances of a program share a message. Not there yet."""


def _module(name: str, *classes: type) -> ModuleType:
    """A module of the language, which can be imported by its name."""
    module = ModuleType(f"{__name__}.{name}", f"Part of `{__name__}`. Not there yet.")
    for each in classes:
        setattr(module, each.__name__, each)
    module.__dict__["__getattr__"] = __getattr__
    sys.modules[module.__name__] = module
    return module


channel = _module("channel", MemoryChannel, PortChannel, SwitchChannel)
collectives = _module("collectives", AllGather, AllReduce, AllToAll, Collective, ReduceScatter, TestCollective)
default_algos = _module("default_algos")
general = _module("general")
loop = _module("loop", LoopIterationContext)
program = _module("program", CollectiveProgram)
rank = _module("rank", BaseBuffer, Buffer, Rank, Semaphore)
thread_block_group = _module("thread_block_group")
utils = _module("utils", AlgoSpec, ReplicationPolicy)

__all__ = [
    "AlgoSpec",
    "AllGather",
    "AllReduce",
    "AllToAll",
    "BaseBuffer",
    "Buffer",
    "Collective",
    "CollectiveProgram",
    "LoopIterationContext",
    "MemoryChannel",
    "PortChannel",
    "Rank",
    "ReduceScatter",
    "ReplicationPolicy",
    "Semaphore",
    "SwitchChannel",
    "TestCollective",
]
