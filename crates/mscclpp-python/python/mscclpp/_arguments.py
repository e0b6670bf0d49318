"""Checks of arguments, which find mistakes before anything is exchanged."""

from __future__ import annotations

import operator
import sys
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from . import _arrays, _mscclpp
from ._errors import misuse
from ._mscclpp import Connection, Endpoint, EndpointConfig, RegisteredMemory, Transport


def expect(argument: str, value: object, *classes: type) -> None:
    if not isinstance(value, classes):
        expected = " or ".join(f"{'an' if each.__name__[0] in 'AEIOU' else 'a'} {each.__name__}" for each in classes)
        raise TypeError(f"argument '{argument}': expected {expected}, got {type(value).__name__}")


def check_mpi(mpi_comm: Any) -> None:
    if not hasattr(mpi_comm, "Get_rank"):
        raise TypeError(
            f"argument 'mpi_comm': expected a communicator of mpi4py, got {mpi_comm!r}; an address is given by "
            'name, with rank and size: CommGroup(interfaceIpPortTrio="ip:port", rank=.., size=..)'
        )


def is_torch_group(group: Any) -> bool:
    """Whether it is a group of PyTorch. If PyTorch is not imported, there is none."""
    return isinstance(group, getattr(sys.modules.get("torch.distributed"), "ProcessGroup", ()))


def expect_connections(connections: Mapping[int, Connection]) -> None:
    if not isinstance(connections, Mapping):
        raise TypeError(
            "argument 'connections': expected a dictionary of Connections by rank, as make_connection() returns it, got "
            f"{type(connections).__name__}"
        )
    for connection in connections.values():
        expect("connections", connection, Connection)


def rank_numbers(all_ranks: int | Iterable[int]) -> list[int]:
    try:
        if not isinstance(all_ranks, Iterable):
            return [operator.index(all_ranks)]
        return [operator.index(rank) for rank in all_ranks]
    except TypeError:
        raise TypeError(f"argument 'all_ranks': expected the numbers of ranks, got {all_ranks!r}") from None


def check_ends(endpoints: object, ranks: list[int]) -> None:
    """Checks that each rank has an endpoint: one for all, or one by rank."""
    for endpoint in endpoints.values() if isinstance(endpoints, Mapping) else [endpoints]:
        expect("endpoints", endpoint, Transport, EndpointConfig, Endpoint)
    missing = [rank for rank in ranks if rank not in endpoints] if isinstance(endpoints, Mapping) else []
    if missing:
        raise ValueError(f"argument 'endpoints': it has none for the ranks {missing}")


def count(name: str, value: Any, least: int = 0, most: int = (1 << 31) - 1) -> int:
    """Returns an argument that is a whole number."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"argument '{name}': expected a whole number, got {value!r}") from None
    if not least <= number <= most:
        raise ValueError(f"argument '{name}': expected a number from {least} to {most}, got {number}")
    return number


def optional(name: str, value: Any, most: int = (1 << 31) - 1) -> int | None:
    return None if value is None else count(name, value, most=most)


def check_seconds(timeout_sec: float, name: str = "timeout_sec") -> None:
    if not hasattr(timeout_sec, "__float__") and not hasattr(timeout_sec, "__index__"):
        raise TypeError(f"argument '{name}': expected seconds, got {timeout_sec!r}")
    if not 0 <= timeout_sec < threading.TIMEOUT_MAX:
        raise ValueError(
            f"argument '{name}': expected seconds from 0 to {threading.TIMEOUT_MAX:.0f}, got {timeout_sec}"
        )


def check_device(address: int, rank: int, connection: Connection) -> None:
    """Checks that memory is on the GPU of a connection that maps memory."""
    gpu = _mscclpp._device_of(address) if connection.transport() == Transport.CudaIpc else None
    if gpu is not None and gpu != connection.local_device().id:
        raise ValueError(
            f"argument 'tensor': it is on GPU {gpu}, and the connection with rank {rank} is on GPU "
            f"{connection.local_device().id}; call mscclpp.set_device({gpu}) before connecting, or copy the array"
        )


def in_host_memory(tensor: Any) -> tuple[int, int]:
    if _arrays.is_of_cuda(tensor):
        raise TypeError("argument 'tensor': it is in the memory of a GPU; copy it to the host first")
    return _arrays.locate(tensor)


def check_lengths(what: str, my_rank: int, mine: RegisteredMemory, theirs: Mapping[int, RegisteredMemory]) -> None:
    sizes = {rank: memory.size() for rank, memory in theirs.items() if memory.size() != mine.size()}
    if sizes:
        others = " and ".join(f"rank {rank} of {size}" for rank, size in sizes.items())
        raise misuse(
            f"the {what} of memory channels must be of the same length on all ranks, as nothing checks the offsets that "
            f"kernels use in them: rank {my_rank}, this one, gave one of {mine.size()} bytes, and {others}; for "
            "others make MemoryChannel(semaphore, dst, src)",
        )
