"""`CommGroup`, as the communicators of mpi4py and PyTorch make it, and from the environment."""

import os
import sys
import types

import mscclpp
import numpy
import pytest
from mscclpp import CommGroup, Transport

import ranks


class Mpi:
    """What `CommGroup` uses of an mpi4py communicator, over queues."""

    def __init__(self, rank, queues):
        self.rank, self.queues = rank, queues

    def Get_rank(self):
        return self.rank

    def Get_size(self):
        return len(self.queues)

    def bcast(self, value, root):
        if self.rank == root:
            for peer, queue in enumerate(self.queues):
                if peer != root:
                    queue.put(value)
            return value
        return self.queues[self.rank].get(timeout=60)


def summary(group):
    assert group.my_rank == group.bootstrap.get_rank() and group.communicator.bootstrap() is group.bootstrap
    group.barrier()
    return group.my_rank, group.nranks, group.nranks_per_node, group.nranks_per_ipc_domain, group.ipc_domain_n_ranks


def by_mpi(rank, n, address, queues, how):
    comm = Mpi(rank, queues)
    if how == "string":
        return summary(CommGroup(comm, f"lo:{address}"))
    return summary(CommGroup(comm) if how == "position" else CommGroup(mpi_comm=comm, interfaceIpPortTrio=address))


@pytest.mark.parametrize("how", ["position", "string", "name"])
def test_an_mpi_communicator(how):
    queues = [ranks.SPAWN.Queue() for _ in range(2)]
    assert ranks.run(2, by_mpi, queues, how) == [(0, 2, 2, 2, 2), (1, 2, 2, 2, 2)]


def by_torch(rank, n, address, queues):
    """With what `CommGroup` uses of torch.distributed in its place."""
    mpi = Mpi(rank, queues)
    dist = types.ModuleType("torch.distributed")
    dist.get_rank = lambda group: group.rank
    dist.get_world_size = lambda group: len(group.queues)
    dist.get_global_rank = lambda group, rank: rank

    def broadcast_object_list(objects, src, group):
        objects[:] = [group.bcast(objects[0], src)]

    dist.broadcast_object_list = broadcast_object_list
    sys.modules["torch"] = types.ModuleType("torch")
    sys.modules["torch"].distributed = dist
    sys.modules["torch.distributed"] = dist
    return summary(CommGroup(torch_group=mpi))


def test_a_torch_process_group():
    queues = [ranks.SPAWN.Queue() for _ in range(2)]
    assert ranks.run(2, by_torch, queues) == [(0, 2, 2, 2, 2), (1, 2, 2, 2, 2)]


def by_environment(rank, n, address, launcher):
    rank_name, size_name, place = launcher
    os.environ[rank_name], os.environ[size_name] = str(rank), str(n)
    if place == "comm_id":
        os.environ["MSCCLPP_COMM_ID"] = address
    else:
        host, port = address.split(":")
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = host, str(int(port) - 1)
    return summary(CommGroup.from_env())


@pytest.mark.parametrize(
    "launcher",
    [
        ("RANK", "WORLD_SIZE", "master"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "comm_id"),
        ("SLURM_PROCID", "SLURM_NTASKS", "comm_id"),
    ],
)
def test_the_environment_of_launchers(launcher):
    assert ranks.run(2, by_environment, launcher) == [(0, 2, 2, 2, 2), (1, 2, 2, 2, 2)]


def test_an_environment_that_says_too_little(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MSCCLPP_COMM_ID", "MASTER_ADDR", "SLURM_PROCID", "PMI_RANK"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RuntimeError, match="RANK and WORLD_SIZE"):
        CommGroup.from_env()
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(RuntimeError, match="'two'"):
        CommGroup.from_env()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match="MSCCLPP_COMM_ID"):
        CommGroup.from_env()


def test_a_group_says_what_it_is_made_of():
    with pytest.raises(TypeError, match="'mpi_comm', 'torch_group'"):
        CommGroup()
    with pytest.raises(TypeError, match="'rank' and 'size'"):
        CommGroup(interfaceIpPortTrio="127.0.0.1:5000", rank=0)
    with pytest.raises(TypeError, match="not both"):
        CommGroup(object(), object())


def test_all_ranks_hear_why_rank_0_cannot_begin(monkeypatch):
    monkeypatch.setenv("MSCCLPP_SOCKET_IFNAME", "nosuch0")
    queues = [ranks.SPAWN.Queue() for _ in range(2)]
    with pytest.raises(mscclpp.Error, match="nosuch0"):
        CommGroup(Mpi(0, queues))
    with pytest.raises(mscclpp.Error, match="nosuch0"):
        CommGroup(Mpi(1, queues))


def tensors(rank, n, address):
    group = ranks.group(rank, n, address)
    peer = 1 - rank
    sent, got = numpy.arange(6) + 10 * rank, numpy.zeros(6, dtype=int)
    group.send(sent.reshape(2, 3), peer, 0)
    group.recv(got, peer, 0)

    class OnGpu:
        __cuda_array_interface__ = {"shape": (1,), "typestr": "<f4", "data": (4096, False), "version": 3}

    with pytest.raises(TypeError, match="memory of a GPU"):
        group.send(OnGpu(), peer, 0)
    connections = group.make_connection([peer], {peer: mscclpp.EndpointConfig(Transport.CudaIpc)})
    memories = group.register_tensor_with_connections(mscclpp.GpuBuffer(3, dtype=numpy.int8), connections)
    assert sorted(memories) == [0, 1] and all(memory.size() == 3 for memory in memories.values())
    with pytest.raises(mscclpp.Error, match="no device memory") as caught:
        group.register_local_memory(numpy.zeros(3), connections)
    assert "GpuBuffer" in caught.value.__notes__[0]
    with pytest.raises(NotImplementedError, match="switch"):
        group.make_connection([0, 1], Transport.CudaIpc, use_switch=True)
    group.barrier()
    return got.tolist()


def test_arrays_travel():
    assert ranks.run(2, tensors) == [list(range(10, 16)), list(range(6))]


def older(rank, n, address):
    group = ranks.group(rank, n, address)
    connections = group.make_connection([1 - rank], Transport.CudaIpc)
    data, service = mscclpp.GpuBuffer(4), mscclpp.ProxyService()
    with pytest.warns(DeprecationWarning) as caught:
        port = group.make_proxy_channels(service, data, connections)[1 - rank]
        memory = group.make_sm_channels(data, connections)[1 - rank]
    group.barrier()
    return type(port).__name__, type(memory).__name__, len(caught)


def test_older_names_make_the_newer_channels():
    assert ranks.run(2, older) == [("PortChannel", "MemoryChannel", 2)] * 2


def test_infiniband_devices_by_number():
    group = CommGroup(interfaceIpPortTrio=ranks.free_address(), rank=0, size=1)
    assert [group.my_ib_device(i) for i in (0, 7)] == [Transport.IB0, Transport.IB7]
    with pytest.raises(ValueError, match="'local_rank'"):
        group.my_ib_device(8)
