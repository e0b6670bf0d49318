"""The collectives as algorithms, which a program chooses from a collection, under the names of the C++ project."""

from __future__ import annotations

import enum
import operator
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Self
from weakref import WeakKeyDictionary

from . import _mscclpp
from ._arguments import expect
from ._data_types import DataType, ReduceOp, operation_of_collectives, type_of_collectives
from ._group import CommGroup
from ._mscclpp import Communicator
from ._on_device import _handle
from ._original import AlgorithmBuilder, missing, put_into_extension

#: The largest size of a message, in bytes.
_MOST = 2**64 - 1

#: The algorithms: the collective of each, and the protocol of `_Collectives.enqueue` that it uses.
_DEFAULT = {
    "default_allreduce_packet": ("allreduce", "two_steps_ll128"),
    "default_allreduce_allpair_packet": ("allreduce", "ll16"),
    "default_allreduce_fullmesh": ("allreduce", "ll128"),
    "default_allreduce_rsag_zero_copy": ("allreduce", "two_steps"),
    "default_allgather_fullmesh": ("allgather", "ll128"),
    "default_allgather_fullmesh2": ("allgather", "simple"),
}


class CollectiveBufferMode(enum.IntEnum):
    """Whether an algorithm's input and output may be the same memory."""

    ANY = 0
    IN_PLACE = 1
    OUT_OF_PLACE = 2


class AlgorithmType(enum.IntEnum):
    """How an algorithm is made: as native code, or from a program."""

    NATIVE = 0
    DSL = 1


class Algorithm:
    """A way to carry out a collective. `mscclpp.ext.AlgorithmCollectionBuilder` makes collections of them.

    Each algorithm takes messages of every size. Its name says the protocol, which is used as long as it is possible;
    otherwise the call uses the protocol that `mscclpp.Collectives` would select.
    """

    class Constraint:
        """The job that an algorithm can be used in; 0 stands for any number."""

        def __init__(self, world_size: int = 0, n_ranks_per_node: int = 0) -> None:
            self.world_size, self.n_ranks_per_node = world_size, n_ranks_per_node

    #: The name of the algorithm.
    name: str
    #: The collective that it carries out: "allreduce" or "allgather".
    collective: str
    #: Numbers by which a program may choose an algorithm. There are none.
    tags: dict[str, int]
    buffer_mode = CollectiveBufferMode.ANY
    constraint: Constraint
    type = AlgorithmType.NATIVE

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise missing("Algorithm(), of an execution plan or of native code,")

    @classmethod
    def _named(cls, name: str) -> Self:
        algorithm = cls.__new__(cls)
        algorithm.name = name
        algorithm.collective, algorithm._protocol = _DEFAULT[name]
        algorithm.tags, algorithm.constraint = {}, cls.Constraint()
        algorithm._range = (0, _MOST)
        return algorithm

    _protocol: str
    _range: tuple[int, int]

    def __repr__(self) -> str:
        return f"<mscclpp.Algorithm {self.name}, {self.collective}>"

    @property
    def message_size_range(self) -> tuple[int, int]:
        """The sizes of messages, in bytes, for which a program should choose it. `execute` takes other sizes, too."""
        return self._range

    def set_message_size_range(self, min_message_size: int, max_message_size: int) -> None:
        """Say for which sizes of messages a program should choose it."""
        low, high = operator.index(min_message_size), operator.index(max_message_size)
        if not 0 <= low <= high <= _MOST:
            raise ValueError(
                f"a range of message sizes from {low} to {high}; it begins at 0 or above, and does not go back"
            )
        self._range = (low, high)

    def reset(self) -> None:
        """Do nothing. In the C++ project, this forgets buffers, of which this implementation keeps none."""

    def execute(
        self,
        comm: Any,
        executor: Any = None,
        input_buffer: int = 0,
        output_buffer: int = 0,
        input_size: int = 0,
        output_size: int = 0,
        dtype: Any = DataType.float32,
        op: Any = ReduceOp.NOP,
        stream: Any = 0,
        nblocks: int = 0,
        nthreads_per_block: int = 0,
        symmetric_memory: bool = False,
        extras: Mapping[str, int] | None = None,
    ) -> int:
        """Put the collective into a stream, by addresses and sizes in bytes. Return 0; errors are raised.

        All ranks of the communicator make the same call. The first call with a communicator sets up its collectives,
        on the device of `input_buffer`: it blocks until all ranks have made it, and cannot be captured. Later calls
        wait for no other rank, and may be captured in a graph, with any memory of the device; the memory must live
        until they are complete.

        `nblocks` and `nthreads_per_block` are the same on all ranks; 0 stands for the selected number. If the device
        has no room for so many, fewer are used. `executor`, `symmetric_memory` and `extras` are not needed, and
        ignored.
        """
        name, size = type_of_collectives(dtype)
        ranks, made = _collectives_of(comm, input_buffer)
        kind, operation = "all_gather", "sum"
        wanted = input_size * ranks
        if self.collective == "allreduce":
            kind, operation, wanted = "all_reduce", operation_of_collectives(op), input_size
        if input_size % size or input_size < 0:
            raise ValueError(
                f"argument 'input_size': {input_size} bytes are no numbers of type {name}, of {size} bytes"
            )
        if output_size != wanted:
            raise ValueError(
                f"argument 'output_size': an {self.collective} of {input_size} bytes by {ranks} ranks gives {wanted} "
                f"bytes, not {output_size}"
            )
        blocks, threads = _number("nblocks", nblocks), _number("nthreads_per_block", nthreads_per_block)
        request = (kind, input_buffer, output_buffer, input_size // size, name, operation, 0)
        handle = stream if type(stream) is int else _handle(stream)
        made.enqueue([request], handle, self._protocol, blocks, threads)
        return 0


class AlgorithmCollection:
    """Algorithms in an order: `for algorithm in collection`, `collection["default_allreduce_packet"]`."""

    def __init__(self, algorithms: Iterable[Algorithm] = ()) -> None:
        self._algorithms = list(algorithms)
        for algorithm in self._algorithms:
            expect("algorithms", algorithm, Algorithm)

    def __iter__(self) -> Iterator[Algorithm]:
        return iter(self._algorithms)

    def __len__(self) -> int:
        return len(self._algorithms)

    def __contains__(self, algorithm: object) -> bool:
        return any(algorithm in (each, each.name) for each in self._algorithms)

    def __getitem__(self, name: str | int) -> Algorithm:
        if not isinstance(name, str):
            return self._algorithms[name]
        for algorithm in self._algorithms:
            if algorithm.name == name:
                return algorithm
        names = ", ".join(each.name for each in self._algorithms) or "none"
        raise KeyError(f"there is no algorithm {name!r} here; there are {names}")

    def __repr__(self) -> str:
        return f"<mscclpp.AlgorithmCollection of {', '.join(each.name for each in self._algorithms) or 'nothing'}>"

    def get_by_collective(self, collective: str) -> list[Algorithm]:
        """The algorithms of a collective, "allreduce" or "allgather"."""
        return [algorithm for algorithm in self._algorithms if algorithm.collective == collective]

    def register_algorithm(self, collective: str, algo_name: str, algorithm: Algorithm) -> None:
        """Add an algorithm. It replaces one of the same name."""
        expect("algorithm", algorithm, Algorithm)
        if (algorithm.collective, algorithm.name) != (collective, algo_name):
            raise ValueError(
                f"argument 'algorithm': it is {algorithm.name}, an {algorithm.collective}, not {algo_name}, {collective}"
            )
        self._algorithms = [each for each in self._algorithms if each.name != algo_name] + [algorithm]

    def to_list(self) -> list[Algorithm]:
        """All algorithms, as a list."""
        return list(self._algorithms)


class AlgorithmCollectionBuilder:
    """Makes collections of algorithms. A process has one builder, until `reset()`."""

    _instance: ClassVar[Self | None] = None
    _lock: ClassVar[threading.Lock] = threading.Lock()
    _added: list[Algorithm]

    def __new__(cls) -> Self:
        with cls._lock:
            if cls._instance is None:
                cls._instance = super().__new__(cls)
                cls._instance._added = []
            return cls._instance

    @classmethod
    def reset(cls) -> None:
        """Drop the builder with all algorithms that were added to it. Collections that it has made stay."""
        with cls._lock:
            cls._instance = None

    def build_default_algorithms(
        self, scratch_buffer: int = 0, scratch_buffer_size: int = 0, rank: int = 0
    ) -> AlgorithmCollection:
        """The algorithms of this library. They need no scratch buffer: the collectives have their own memory."""
        return AlgorithmCollection(map(Algorithm._named, _DEFAULT))

    def add_algorithm_builder(self, algorithm_builder: Algorithm | AlgorithmBuilder) -> None:
        """Add an algorithm to the collection that `build()` returns."""
        expect("algorithm_builder", algorithm_builder, Algorithm)
        assert isinstance(algorithm_builder, Algorithm)
        self._added.append(algorithm_builder)

    def build(self) -> AlgorithmCollection:
        """The algorithms that were added."""
        return AlgorithmCollection(self._added)

    def set_algorithm_selector(self, selector: Callable[..., Any]) -> None:
        """Raise `NotImplementedError`: this implementation would never call the selector."""
        raise NotImplementedError(
            "AlgorithmCollectionBuilder.set_algorithm_selector is not there in this implementation of mscclpp, as a "
            "program calls Algorithm.execute itself; choose one by its name and message_size_range"
        )


class Executor:
    """An argument of `Algorithm.execute`, which ignores it. It cannot run execution plans."""

    def __init__(self, comm: Any) -> None:
        expect("comm", comm, Communicator, CommGroup)
        self._comm = comm

    def execute(self, *args: Any, **kwargs: Any) -> None:
        """Raise `NotImplementedError`: this implementation has no execution plans."""
        raise missing("Executor.execute, of execution plans,")

    def reset(self) -> None:
        """Do nothing. In the C++ project, this forgets plans, of which this implementation has none."""


class _Shared:
    """The collectives of a communicator, which all algorithms use."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.made: tuple[int, _mscclpp._Collectives] | None = None


_shared: WeakKeyDictionary[Communicator, _Shared] = WeakKeyDictionary()
_shared_lock = threading.Lock()


def _collectives_of(comm: Any, address: int) -> tuple[int, _mscclpp._Collectives]:
    """Returns how many ranks a communicator has, and its collectives. The first call makes them with the other ranks."""
    if isinstance(comm, CommGroup):
        comm = comm.communicator
    expect("comm", comm, Communicator)
    with _shared_lock:
        shared = _shared.setdefault(comm, _Shared())
    if shared.made is None:
        with shared.lock:
            if shared.made is None:
                device = _mscclpp._device_of(address)
                made = _mscclpp._Collectives(comm, _mscclpp._current_gpu()[1] if device is None else device)
                shared.made = (made.size, made)
    return shared.made


def _number(argument: str, number: int) -> int:
    if not 0 <= number < 2**32:
        raise ValueError(f"argument '{argument}': {number} is no number of blocks or threads; 0 is the usual one")
    return number


put_into_extension(Executor, Algorithm, AlgorithmCollection, DataType, ReduceOp)
