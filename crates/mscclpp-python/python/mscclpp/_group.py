"""`CommGroup`: the ranks of a job, and what they make together."""

import os

from . import _arrays
from ._errors import Error
from ._mscclpp import (
    Communicator,
    MemoryChannel,
    TcpBootstrap,
    Transport,
    TransportFlags,
)
from ._older import warn


class CommGroup:
    """The ranks of a job.

    The job is that of an mpi4py communicator, of a PyTorch process group, or of processes that are told their rank and
    the address at which they meet: `CommGroup(interfaceIpPortTrio="10.0.0.1:15000", rank=0, size=2)`, the address with
    an interface in front if need be. `CommGroup.from_env()` asks the environment for all of it.
    """

    def __init__(self, mpi_comm=None, torch_group=None, interfaceIpPortTrio="", rank=None, size=None):
        if isinstance(torch_group, str):
            torch_group, interfaceIpPortTrio = None, torch_group
        if mpi_comm is not None and torch_group is not None:
            raise TypeError("CommGroup() takes one of 'mpi_comm' and 'torch_group', not both")
        if mpi_comm is not None:
            rank, size = mpi_comm.Get_rank(), mpi_comm.Get_size()

            def share(id):
                return mpi_comm.bcast(id, 0)

        elif torch_group is not None:
            rank, size, share = _of_torch(torch_group)
        elif not interfaceIpPortTrio:
            raise TypeError(
                "CommGroup() takes 'mpi_comm', 'torch_group', or 'interfaceIpPortTrio' with 'rank' and 'size'; "
                "CommGroup.from_env() asks the environment"
            )
        elif rank is None or size is None:
            raise TypeError("CommGroup() with 'interfaceIpPortTrio' alone takes 'rank' and 'size', too")
        bootstrap = TcpBootstrap.create(rank, size)
        bootstrap.initialize(interfaceIpPortTrio or _agree(rank, share))
        self.bootstrap = bootstrap
        self.communicator = Communicator(bootstrap)
        self.my_rank = bootstrap.get_rank()
        self.nranks = bootstrap.get_n_ranks()
        self.nranks_per_node = bootstrap.get_n_ranks_per_node()
        self.nranks_per_ipc_domain = bootstrap.get_n_ranks_per_ipc_domain()
        self.ipc_domain_n_ranks = self.nranks_per_ipc_domain

    @classmethod
    def from_env(cls):
        """The job that a launcher (torchrun, mpirun, srun) has started this process for.

        Ranks meet at `MSCCLPP_COMM_ID`, such as `10.0.0.1:15000`; else at `MASTER_ADDR`, one port above `MASTER_PORT`,
        which torchrun uses itself.
        """
        rank, size = _numbers_of_launcher(os.environ)
        address = os.environ.get("MSCCLPP_COMM_ID", "")
        if not address:
            try:
                host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            except (KeyError, ValueError):
                raise RuntimeError(
                    "the environment does not say where ranks meet: set MSCCLPP_COMM_ID to an address of rank 0's host, "
                    "such as 10.0.0.1:15000, or MASTER_ADDR and MASTER_PORT"
                ) from None
            address = f"[{host}]:{port + 1}" if ":" in host else f"{host}:{port + 1}"
        return cls(interfaceIpPortTrio=address, rank=rank, size=size)

    def barrier(self):
        """Return when all ranks have called it."""
        self.bootstrap.barrier()

    def send(self, tensor, peer, tag):
        """Send an array in host memory to a rank."""
        self.bootstrap.send(*_in_host_memory(tensor), peer, tag)

    def recv(self, tensor, peer, tag):
        """Receive an array of the same size from a rank."""
        self.bootstrap.recv(*_in_host_memory(tensor), peer, tag)

    def my_ib_device(self, local_rank):
        """The transport of InfiniBand device `local_rank`, 0 to 7."""
        if not 0 <= local_rank <= 7:
            raise ValueError(f"argument 'local_rank': it is {local_rank}; there are InfiniBand devices 0 to 7")
        return Transport(Transport.IB0.value + local_rank)

    def make_connection(self, all_ranks, endpoints, use_switch=False):
        """Connect with ranks, each of which does the same. Returns them by rank.

        `endpoints` is a Transport or an EndpointConfig for all, or a dictionary by rank.
        """
        if use_switch:
            raise NotImplementedError(
                "connections through a switch are not there yet in this implementation of mscclpp"
            )
        ranks = [all_ranks] if isinstance(all_ranks, int) else list(all_ranks)

        def endpoint(rank):
            return endpoints[rank] if isinstance(endpoints, dict) else endpoints

        pending = {rank: self.communicator.connect(endpoint(rank), rank) for rank in ranks}
        return {rank: connection.get() for rank, connection in pending.items()}

    def register_local_memory(self, tensor, connections):
        """Register an array for the transports of connections."""
        transports = TransportFlags()
        for connection in connections.values():
            transports |= connection.transport()
        try:
            return self.communicator.register_memory(*_arrays.locate(tensor), transports)
        except Error as error:
            error.add_note("mscclpp.GpuBuffer(shape, dtype) makes an array that can be registered for every transport")
            raise

    def register_tensor_with_connections(self, tensor, connections):
        """Exchange arrays with the ranks of connections. Returns their memories by rank, and this rank's own."""
        return self._exchange(self.register_local_memory(tensor, connections), connections)

    def make_semaphores(self, connections):
        """Make a semaphore over each connection. Returns them by rank."""
        build = self.communicator.build_semaphore
        pending = {rank: build(connection, rank) for rank, connection in connections.items()}
        return {rank: semaphore.get() for rank, semaphore in pending.items()}

    def make_memory_channels(self, tensor, connections):
        """Make channels by which kernels copy between this rank's array and those of peers. Returns them by rank."""
        semaphores = self.make_semaphores(connections)
        memories = self.register_tensor_with_connections(tensor, connections)
        mine = memories[self.my_rank]
        return {rank: MemoryChannel(semaphores[rank], memories[rank], mine) for rank in connections}

    def make_memory_channels_with_scratch(self, tensor, registeredScratchBuffer, connections):
        """Make channels from this rank's array to the scratch buffers of peers, for packets too. Returns them by rank."""
        semaphores = self.make_semaphores(connections)
        scratches = self._exchange(registeredScratchBuffer, connections)
        mine = self.register_local_memory(tensor, connections)
        packets = registeredScratchBuffer.data()
        return {rank: MemoryChannel(semaphores[rank], scratches[rank], mine, packets) for rank in connections}

    def make_port_channels(self, proxy_service, tensor, connections):
        """Make port channels between this rank's array and those of peers. Returns them by rank."""
        semaphores = self._add_semaphores(proxy_service, connections)
        memories = self.register_memory_with_proxy(proxy_service, tensor, connections)
        mine = memories[self.my_rank]
        channel = proxy_service.port_channel
        return {rank: channel(semaphores[rank], memories[rank], mine) for rank in connections}

    def make_port_channels_with_scratch(self, proxy_service, tensor, registeredScratchBuffer, connections):
        """Make port channels from this rank's array to the scratch buffers of peers. Returns them by rank."""
        semaphores = self._add_semaphores(proxy_service, connections)
        scratches = self._exchange(registeredScratchBuffer, connections)
        mine = proxy_service.add_memory(self.register_local_memory(tensor, connections))
        theirs = {rank: proxy_service.add_memory(scratches[rank]) for rank in connections}
        channel = proxy_service.port_channel
        return {rank: channel(semaphores[rank], theirs[rank], mine) for rank in connections}

    def register_semaphore_with_proxy(self, proxy_service, connections):
        """Make port channels without memories of their own. Returns them by rank."""
        semaphores = self._add_semaphores(proxy_service, connections)
        return {rank: proxy_service.base_port_channel(semaphores[rank]) for rank in connections}

    def register_memory_with_proxy(self, proxy_service, tensor, connections):
        """Exchange arrays with the ranks of connections, and give them numbers in the service. Returns those by rank."""
        memories = self.register_tensor_with_connections(tensor, connections)
        return {rank: proxy_service.add_memory(memory) for rank, memory in memories.items()}

    # Older names.

    def make_proxy_channels(self, proxy_service, tensor, connections):
        warn("CommGroup.make_proxy_channels", "CommGroup.make_port_channels")
        return self.make_port_channels(proxy_service, tensor, connections)

    def make_proxy_channels_with_scratch(self, proxy_service, tensor, registeredScratchBuffer, connections):
        warn("CommGroup.make_proxy_channels_with_scratch", "CommGroup.make_port_channels_with_scratch")
        return self.make_port_channels_with_scratch(proxy_service, tensor, registeredScratchBuffer, connections)

    def make_sm_channels(self, tensor, connections):
        warn("CommGroup.make_sm_channels", "CommGroup.make_memory_channels")
        return self.make_memory_channels(tensor, connections)

    def make_sm_channels_with_scratch(self, tensor, registeredScratchBuffer, connections):
        warn("CommGroup.make_sm_channels_with_scratch", "CommGroup.make_memory_channels_with_scratch")
        return self.make_memory_channels_with_scratch(tensor, registeredScratchBuffer, connections)

    # Steps of the above.

    def _exchange(self, mine, connections):
        memories = {self.my_rank: mine}
        for rank in connections:
            self.communicator.send_memory(mine, rank)
        pending = {rank: self.communicator.recv_memory(rank) for rank in connections}
        memories.update((rank, memory.get()) for rank, memory in pending.items())
        return memories

    def _add_semaphores(self, proxy_service, connections):
        semaphores = self.make_semaphores(connections)
        return {rank: proxy_service.add_semaphore(semaphore) for rank, semaphore in semaphores.items()}


def _agree(rank, share):
    """The id of the job, from rank 0. If that cannot make one, all ranks hear why."""
    id = None
    if rank == 0:
        try:
            id = TcpBootstrap.create_unique_id()
        except Exception as error:  # passed on, not hidden
            id = error
    id = share(id)
    if isinstance(id, Exception):
        raise id
    return id


def _of_torch(group):
    import torch.distributed as dist

    def share(id):
        shared = [id]
        dist.broadcast_object_list(shared, src=dist.get_global_rank(group, 0), group=group)
        return shared[0]

    return dist.get_rank(group), dist.get_world_size(group), share


def _numbers_of_launcher(environ):
    """Rank and size, under the names that launchers have for them."""
    names = [
        ("RANK", "WORLD_SIZE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
        ("SLURM_PROCID", "SLURM_NTASKS"),
    ]
    for rank, size in names:
        if rank in environ and size in environ:
            try:
                return int(environ[rank]), int(environ[size])
            except ValueError:
                raise RuntimeError(f"{rank}={environ[rank]!r} and {size}={environ[size]!r} must be numbers") from None
    known = ", ".join(f"{rank} and {size}" for rank, size in names)
    raise RuntimeError(f"the environment does not say which rank this is: set {known}, as launchers do")


def _in_host_memory(tensor):
    if _arrays.is_of_cuda(tensor):
        raise TypeError("argument 'tensor': it is in the memory of a GPU; copy it to the host first")
    return _arrays.locate(tensor)
