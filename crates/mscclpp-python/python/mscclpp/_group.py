"""`CommGroup`: the ranks of a job, and the connections and channels between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self, TypeVar

from . import _arguments, _arrays, _meeting
from ._errors import Error
from ._mscclpp import (
    BasePortChannel,
    Bootstrap,
    Communicator,
    Connection,
    Endpoint,
    EndpointConfig,
    MemoryChannel,
    PortChannel,
    ProxyService,
    RegisteredMemory,
    Semaphore,
    Transport,
    TransportFlags,
)
from ._older import method

#: An argument for this side of a connection.
_Local = Transport | EndpointConfig | Endpoint

_Made = TypeVar("_Made")


class CommGroup:
    """The ranks of a job.

    The ranks meet through an mpi4py communicator, a PyTorch process group, or at an address:
    `CommGroup(interfaceIpPortTrio="10.0.0.1:15000", rank=0, size=2)`, where the name of an interface may stand in
    front of the address. `CommGroup.from_env()` reads rank, size and address from the environment.

    Two jobs may be given one address by mistake. An id that all ranks of a job share tells them apart: `job`, or else
    `MSCCLPP_JOB_ID`, or else the launcher's id. Without an id, both jobs fail with an error that says so. All ranks
    must come within `timeout_sec`.
    """

    #: The bootstrap of the job.
    bootstrap: Bootstrap
    #: The communicator, which makes connections.
    communicator: Communicator
    my_rank: int
    nranks: int
    nranks_per_node: int
    nranks_per_ipc_domain: int
    ipc_domain_n_ranks: int
    _is_closed = False
    #: The number of this rank on its node, if a launcher has said it.
    _local_rank: int | None = None

    def __init__(
        self,
        mpi_comm: Any = None,
        torch_group: Any = None,
        interfaceIpPortTrio: str = "",
        rank: int | None = None,
        size: int | None = None,
        *,
        job: str | None = None,
        timeout_sec: float = 30.0,
    ) -> None:
        if isinstance(torch_group, str):
            torch_group, interfaceIpPortTrio = None, torch_group
        _arguments.check_seconds(timeout_sec)
        if job is not None and not interfaceIpPortTrio:
            raise TypeError(
                "CommGroup() takes 'job' with 'interfaceIpPortTrio'; else the ranks meet by an id, which is one"
            )
        self._join(_meeting.meet(mpi_comm, torch_group, interfaceIpPortTrio, rank, size, job, timeout_sec))

    @classmethod
    def from_env(cls, timeout_sec: float = 30.0) -> CommGroup:
        """Join the job that a launcher has started this process for: torchrun, mpirun, srun, an indexed job of
        Kubernetes.

        Without a launcher, set `MSCCLPP_RANK`, `MSCCLPP_N_RANKS` and `MSCCLPP_ADDRESS`. Two sources that disagree
        are an error. The values are logged (at level INFO). Under torchrun the ranks meet through its store,
        where PyTorch is installed.
        """
        group = cls.__new__(cls)
        bootstrap, group._local_rank = _meeting.launched(timeout_sec)
        group._join(bootstrap)
        return group

    def _join(self, bootstrap: Bootstrap) -> None:
        self.bootstrap = bootstrap
        self.communicator = Communicator(bootstrap)
        self.my_rank = bootstrap.get_rank()
        self.nranks = bootstrap.get_n_ranks()
        self.nranks_per_node = bootstrap.get_n_ranks_per_node()
        self.nranks_per_ipc_domain = bootstrap.get_n_ranks_per_ipc_domain()
        self.ipc_domain_n_ranks = self.nranks_per_ipc_domain

    def close(self) -> None:
        """Close the communicator and the bootstrap. Objects that were made with them can still be used."""
        self._is_closed = True
        self.communicator.close()
        self.bootstrap.close()

    def __repr__(self) -> str:
        return f"<mscclpp.CommGroup, rank {self.my_rank} of {self.nranks}{', closed' if self._is_closed else ''}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: Any) -> None:
        self.close()

    def barrier(self, timeout_sec: float | None = None) -> None:
        """Return when all ranks have called it. If the time runs out, the next call must be `barrier` again."""
        self.bootstrap.barrier(timeout_sec)

    def send(self, tensor: Any, peer: int, tag: int) -> None:
        """Send an array in host memory to a rank."""
        self.bootstrap.send(*_arguments.in_host_memory(tensor), peer, tag)

    def recv(self, tensor: Any, peer: int, tag: int) -> None:
        """Receive an array of the same size from a rank."""
        self.bootstrap.recv(*_arguments.in_host_memory(tensor), peer, tag)

    def my_ib_device(self, local_rank: int) -> Transport:
        """The transport of InfiniBand device `local_rank`, 0 to 7."""
        if not 0 <= local_rank <= 7:
            raise ValueError(f"argument 'local_rank': it is {local_rank}; there are InfiniBand devices 0 to 7")
        return Transport(Transport.IB0.value + local_rank)

    def make_connection(
        self, all_ranks: int | Iterable[int], endpoints: _Local | Mapping[int, _Local], use_switch: bool = False
    ) -> dict[int, Connection]:
        """Connect with ranks, each of which makes the same call. Returns the connections by rank, when both sides have
        theirs.

        `endpoints` is a Transport or an EndpointConfig for all ranks, or a dictionary by rank.
        """
        if use_switch:
            raise NotImplementedError(
                "connections through a switch are not there yet in this implementation of mscclpp"
            )
        ranks = _arguments.rank_numbers(all_ranks)
        _arguments.check_ends(endpoints, ranks)
        if not isinstance(endpoints, Mapping):
            connections = dict(zip(ranks, self.communicator.connect_all(endpoints, ranks), strict=True))
            return self._settled(connections)
        pending = {rank: self.communicator.connect(endpoints[rank], rank) for rank in ranks}
        return self._settled({rank: connection.get() for rank, connection in pending.items()})

    def register_local_memory(self, tensor: Any, connections: Mapping[int, Connection]) -> RegisteredMemory:
        """Register an array for the transports of connections.

        The array must be in one piece, and for CUDA IPC on the GPU of the connections, or it is a `ValueError`. An
        array that is not in the memory of a GPU, or cannot be shared, is an `Error` that says which arrays can.
        """
        address, size = _arrays.locate(tensor)
        _arguments.expect_connections(connections)
        transports = TransportFlags()
        for rank, connection in connections.items():
            transports |= connection.transport()
            _arguments.check_device(address, rank, connection)
        try:
            return self.communicator.register_memory(address, size, transports)
        except Error as error:
            error.add_note("mscclpp.GpuBuffer(shape, dtype) makes an array that can be registered for every transport")
            raise

    def register_tensor_with_connections(
        self, tensor: Any, connections: Mapping[int, Connection]
    ) -> dict[int, RegisteredMemory]:
        """Exchange arrays with the ranks of connections. Returns their memories by rank, and this rank's own.

        The arrays may be of different lengths. If a rank is connected with itself, it also gets its own memory.
        """
        mine = self.register_local_memory(tensor, connections)
        return {**self._exchange(mine, connections), self.my_rank: mine}

    def make_semaphores(self, connections: Mapping[int, Connection]) -> dict[int, Semaphore]:
        """Make a semaphore over each connection. Returns them by rank."""
        return self._settled(self._make_semaphores(connections))

    def make_memory_channels(self, tensor: Any, connections: Mapping[int, Connection]) -> dict[int, MemoryChannel]:
        """Make channels with which kernels copy between this rank's array and those of peers. Returns them by rank.

        The arrays must be of the same length on all ranks, because nothing checks the offsets that kernels use in
        both. For arrays of different lengths, make a `MemoryChannel` of a semaphore and the memories that
        `register_tensor_with_connections` returns.
        """
        mine = self.register_local_memory(tensor, connections)
        semaphores = self._make_semaphores(connections)
        theirs = self._exchange(mine, connections)
        _arguments.check_lengths("arrays", self.my_rank, mine, theirs)
        return self._settled({rank: MemoryChannel(semaphores[rank], theirs[rank], mine) for rank in connections})

    def make_memory_channels_with_scratch(
        self, tensor: Any, registeredScratchBuffer: RegisteredMemory, connections: Mapping[int, Connection]
    ) -> dict[int, MemoryChannel]:
        """Make channels from this rank's array to the scratch buffers of peers, for packets too. Returns them by rank.

        The scratch buffers must be of the same length on all ranks: nothing checks the offsets that kernels use in them.
        """
        _arguments.expect("registeredScratchBuffer", registeredScratchBuffer, RegisteredMemory)
        mine = self.register_local_memory(tensor, connections)
        semaphores = self._make_semaphores(connections)
        scratches = self._exchange(registeredScratchBuffer, connections)
        _arguments.check_lengths("scratch buffers", self.my_rank, registeredScratchBuffer, scratches)
        packets = registeredScratchBuffer
        return self._settled(
            {rank: MemoryChannel(semaphores[rank], scratches[rank], mine, packets) for rank in connections}
        )

    def make_port_channels(
        self, proxy_service: ProxyService, tensor: Any, connections: Mapping[int, Connection]
    ) -> dict[int, PortChannel]:
        """Make port channels between this rank's array and those of peers. Returns them by rank."""
        memory = self.register_local_memory(tensor, connections)
        semaphores = self._add_semaphores(proxy_service, connections)
        theirs = {rank: proxy_service.add_memory(it) for rank, it in self._exchange(memory, connections).items()}
        mine = proxy_service.add_memory(memory)
        channel = proxy_service.port_channel
        return self._settled({rank: channel(semaphores[rank], theirs[rank], mine) for rank in connections})

    def make_port_channels_with_scratch(
        self,
        proxy_service: ProxyService,
        tensor: Any,
        registeredScratchBuffer: RegisteredMemory,
        connections: Mapping[int, Connection],
    ) -> dict[int, PortChannel]:
        """Make port channels from this rank's array to the scratch buffers of peers. Returns them by rank."""
        _arguments.expect("registeredScratchBuffer", registeredScratchBuffer, RegisteredMemory)
        memory = self.register_local_memory(tensor, connections)
        semaphores = self._add_semaphores(proxy_service, connections)
        scratches = self._exchange(registeredScratchBuffer, connections)
        # The service must keep the memory, because peers put data to it.
        proxy_service.add_memory(registeredScratchBuffer)
        mine = proxy_service.add_memory(memory)
        theirs = {rank: proxy_service.add_memory(scratches[rank]) for rank in connections}
        channel = proxy_service.port_channel
        return self._settled({rank: channel(semaphores[rank], theirs[rank], mine) for rank in connections})

    def register_semaphore_with_proxy(
        self, proxy_service: ProxyService, connections: Mapping[int, Connection]
    ) -> dict[int, BasePortChannel]:
        """Make port channels without memories. Returns them by rank."""
        semaphores = self._add_semaphores(proxy_service, connections)
        return self._settled({rank: proxy_service.base_port_channel(semaphores[rank]) for rank in connections})

    def register_memory_with_proxy(
        self, proxy_service: ProxyService, tensor: Any, connections: Mapping[int, Connection]
    ) -> dict[int, int]:
        """Exchange arrays with the ranks of connections, and add them to the service. Returns their numbers by rank."""
        _arguments.expect("proxy_service", proxy_service, ProxyService)
        memories = self.register_tensor_with_connections(tensor, connections)
        return {rank: proxy_service.add_memory(memory) for rank, memory in memories.items()}

    make_proxy_channels = method("CommGroup.make_proxy_channels", make_port_channels)
    make_proxy_channels_with_scratch = method(
        "CommGroup.make_proxy_channels_with_scratch", make_port_channels_with_scratch
    )
    make_sm_channels = method("CommGroup.make_sm_channels", make_memory_channels)
    make_sm_channels_with_scratch = method("CommGroup.make_sm_channels_with_scratch", make_memory_channels_with_scratch)

    # Steps of the methods above.

    def _settled(self, made: dict[int, _Made]) -> dict[int, _Made]:
        """Returns `made` when the peers have made their side, too: then each rank may drop its side."""
        self.communicator._settle(list(made))
        return made

    def _make_semaphores(self, connections: Mapping[int, Connection]) -> dict[int, Semaphore]:
        _arguments.expect_connections(connections)
        build = self.communicator.build_semaphore
        pending = {rank: build(connection, rank) for rank, connection in connections.items()}
        return {rank: semaphore.get() for rank, semaphore in pending.items()}

    def _exchange(self, mine: RegisteredMemory, connections: Mapping[int, Connection]) -> dict[int, RegisteredMemory]:
        """Returns the memories of the peers, by rank. If this rank is connected with itself, its own is among them."""
        for rank in connections:
            self.communicator.send_memory(mine, rank)
        pending = {rank: self.communicator.recv_memory(rank) for rank in connections}
        return {rank: memory.get() for rank, memory in pending.items()}

    def _add_semaphores(self, proxy_service: ProxyService, connections: Mapping[int, Connection]) -> dict[int, int]:
        _arguments.expect("proxy_service", proxy_service, ProxyService)
        semaphores = self._make_semaphores(connections)
        return {rank: proxy_service.add_semaphore(semaphore) for rank, semaphore in semaphores.items()}
