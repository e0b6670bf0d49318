"""`CommGroup`, made from communicators of mpi4py and PyTorch, and from the environment."""

import os
import socket
import sys
import time
import types

import mscclpp
import numpy
import pytest
from mscclpp import CommGroup, Transport
from mscclpp.utils import KernelBuilder

import ranks


class Mpi:
    """The methods of an mpi4py communicator that `CommGroup` uses, over queues."""

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
    """Replaces torch.distributed by the functions that `CommGroup` uses of it."""
    mpi = Mpi(rank, queues)
    dist = types.ModuleType("torch.distributed")
    dist.ProcessGroup = Mpi
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


#: The variables that launchers set.
LAUNCHED = (
    "MSCCLPP_RANK",
    "MSCCLPP_N_RANKS",
    "MSCCLPP_ADDRESS",
    "MSCCLPP_COMM_ID",
    "MSCCLPP_JOB_ID",
    "RANK",
    "WORLD_SIZE",
)
LAUNCHED_PREFIXES = ("LOCAL_", "MASTER_", "TORCHELASTIC_", "OMPI_", "PMI", "MPI_", "SLURM_", "JOB_")


def launched_as(variables):
    """Removes all variables of launchers from the environment, and sets `variables`."""
    for name in list(os.environ):
        if name in LAUNCHED or name.startswith(LAUNCHED_PREFIXES):
            del os.environ[name]
    os.environ.update(variables)


def by_environment(rank, n, address, variables):
    host, port = address.split(":")
    values = {"rank": rank, "n": n, "address": address, "host": host, "port": port}
    launched_as({name: value.format(**values) for name, value in variables.items()})
    return summary(CommGroup.from_env())


TORCHRUN = {
    "RANK": "{rank}",
    "WORLD_SIZE": "{n}",
    "LOCAL_RANK": "{rank}",
    "MASTER_ADDR": "{host}",
    "MASTER_PORT": "{port}",
    "TORCHELASTIC_RUN_ID": "a-test",
}


@pytest.mark.parametrize(
    "variables",
    [
        {"MSCCLPP_RANK": "{rank}", "MSCCLPP_N_RANKS": "{n}", "MSCCLPP_ADDRESS": "{address}"},
        {"RANK": "{rank}", "WORLD_SIZE": "{n}", "MSCCLPP_COMM_ID": "lo:{address}"},
        TORCHRUN,
        {
            "OMPI_COMM_WORLD_RANK": "{rank}",
            "OMPI_COMM_WORLD_SIZE": "{n}",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "{n}",
            "PMIX_NAMESPACE": "a-test-{port}@1",
        },
        {"PMI_RANK": "{rank}", "PMI_SIZE": "{n}", "MSCCLPP_COMM_ID": "{address}"},
        {"SLURM_PROCID": "{rank}", "SLURM_NTASKS": "{n}", "SLURM_STEP_ID": "0", "MSCCLPP_COMM_ID": "{address}"},
        {"JOB_COMPLETION_INDEX": "{rank}", "MSCCLPP_N_RANKS": "{n}", "MSCCLPP_ADDRESS": "{address}"},
    ],
    ids=["own", "torch", "torchrun", "mpirun", "pmi", "srun", "kubernetes"],
)
def test_the_environment_of_launchers(variables):
    assert ranks.run(2, by_environment, variables) == [(0, 2, 2, 2, 2), (1, 2, 2, 2, 2)]


def test_the_port_of_the_launchers_store_is_left_alone():
    with socket.socket() as store:
        store.bind(("127.0.0.1", 0))
        store.listen()
        variables = {**TORCHRUN, "MASTER_PORT": str(store.getsockname()[1])}
        assert ranks.run(2, by_environment, variables) == [(0, 2, 2, 2, 2), (1, 2, 2, 2, 2)]


class FileStore:
    """The methods of torch's TCPStore that are used, with a file for each key."""

    def __init__(self, host_name, port, world_size=None, is_master=False, timeout=None):
        assert not is_master, "the store is the launcher's"
        assert host_name == "store.example" and port == 29500
        self.timeout = timeout.total_seconds()

    def _path(self, key):
        return os.path.join(os.environ["TEST_STORE"], key.replace("/", "-"))

    def set(self, key, value):
        with open(self._path(key) + ".new", "wb") as file:
            file.write(value)
        os.rename(self._path(key) + ".new", self._path(key))

    def get(self, key):
        deadline = time.monotonic() + self.timeout
        while not os.path.exists(self._path(key)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with open(self._path(key), "rb") as file:
            return file.read()


def by_store(rank, n, address, folder, interface):
    dist = types.ModuleType("torch.distributed")
    dist.TCPStore = FileStore
    sys.modules["torch"] = types.ModuleType("torch")
    sys.modules["torch"].distributed = dist
    sys.modules["torch.distributed"] = dist
    launched_as(
        {
            "RANK": str(rank),
            "WORLD_SIZE": str(n),
            "MASTER_ADDR": "store.example",
            "MASTER_PORT": "29500",
            "TORCHELASTIC_RUN_ID": "a-test",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TEST_STORE": folder,
        }
    )
    if rank == 0:
        os.environ["MSCCLPP_SOCKET_IFNAME"] = interface
    try:
        groups = [summary(CommGroup.from_env(timeout_sec=20)) for _ in range(2)]
    except mscclpp.Error as error:
        return str(error)
    return groups


def test_an_id_goes_through_the_launchers_store(tmp_path):
    for rank, groups in enumerate(ranks.run(2, by_store, str(tmp_path), "lo")):
        assert groups == [(rank, 2, 2, 2, 2)] * 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mscclpp-a-test-0-0", "mscclpp-a-test-0-1"]


def test_all_ranks_hear_through_the_store_why_rank_0_cannot_begin(tmp_path):
    first, second = ranks.run(2, by_store, str(tmp_path), "nosuch0")
    assert "nosuch0" in first and "rank 0 made no id" in second and "nosuch0" in second


def two_jobs(rank, n, address, together):
    together.wait(60)
    launched_as(
        {
            "MSCCLPP_RANK": str(rank),
            "MSCCLPP_N_RANKS": str(n),
            "MSCCLPP_ADDRESS": address,
            "MSCCLPP_JOB_ID": f"job-{rank}",
        }
    )
    with pytest.raises(mscclpp.Error) as caught:
        CommGroup.from_env(timeout_sec=3)
    return str(caught.value)


def test_a_rank_of_another_job_is_refused():
    first, second = ranks.run(2, two_jobs, ranks.SPAWN.Barrier(2))
    assert "timed out" in first and "job-0" in second and "job-1" in second


def device_of_launched(rank, n, address, chosen):
    numbers = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(n)}
    launched_as({**numbers, "MSCCLPP_COMM_ID": f"lo:{address}"})
    mscclpp.set_device(chosen)
    comm = mscclpp.Collectives.from_env(max_blocks=4)
    return comm.device, mscclpp._mscclpp._current_gpu()[1]


def test_launched_ranks_have_a_device_each_unless_the_program_has_chosen_one():
    count = mscclpp.device_count()
    assert ranks.run(2, device_of_launched, 0) == [(rank % count,) * 2 for rank in range(2)]
    if count > 1:
        assert ranks.run(2, device_of_launched, count - 1) == [(count - 1,) * 2] * 2


def test_what_was_chosen_is_logged():
    program = """
import mscclpp
launched = mscclpp.Rendezvous.from_env()
print(launched.rank, launched.n_ranks, launched.address, launched.job, launched.local_rank, launched.store)
print(launched)
"""
    job = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MSCCLPP_COMM_ID": "10.0.0.1:7000",
        "MSCCLPP_JOB_ID": "mine",
    }
    run = ranks.python("-c", program, timeout=60, MSCCLPP_LOG_LEVEL="INFO", **job)
    assert run.stdout.splitlines() == [
        "0 1 10.0.0.1:7000 mine 0 None",
        "<mscclpp.Rendezvous of rank 0 of 1 at 10.0.0.1:7000>",
    ]
    assert "RANK=0" in run.stderr and "MSCCLPP_COMM_ID=10.0.0.1:7000" in run.stderr, run.stderr


@pytest.fixture
def launched(monkeypatch):
    """Sets variables, after removing those of launchers."""
    for name in list(os.environ):
        if name in LAUNCHED or name.startswith(LAUNCHED_PREFIXES):
            monkeypatch.delenv(name)
    return lambda **variables: [monkeypatch.setenv(name, value) for name, value in variables.items()]


def test_an_environment_that_says_too_little(launched):
    with pytest.raises(RuntimeError, match="MSCCLPP_RANK"):
        CommGroup.from_env()
    launched(RANK="0", WORLD_SIZE="two")
    with pytest.raises(RuntimeError, match='WORLD_SIZE.*"?two'):
        CommGroup.from_env()
    launched(WORLD_SIZE="2")
    with pytest.raises(RuntimeError, match="MSCCLPP_ADDRESS"):
        CommGroup.from_env()


def test_two_sources_that_disagree_are_an_error(launched):
    launched(RANK="0", WORLD_SIZE="2", MSCCLPP_RANK="1", MSCCLPP_ADDRESS="127.0.0.1:7000")
    with pytest.raises(RuntimeError, match="MSCCLPP_RANK=1.* RANK=0"):
        CommGroup.from_env()
    launched(MSCCLPP_RANK="0", MSCCLPP_COMM_ID="127.0.0.1:7001")
    with pytest.raises(RuntimeError, match="MSCCLPP_ADDRESS=127.0.0.1:7000.*MSCCLPP_COMM_ID=127.0.0.1:7001"):
        CommGroup.from_env()


def test_a_group_says_what_it_is_made_of():
    with pytest.raises(TypeError, match="'mpi_comm', 'torch_group'"):
        CommGroup()
    with pytest.raises(TypeError, match="'rank' and 'size'"):
        CommGroup(interfaceIpPortTrio="127.0.0.1:5000", rank=0)
    with pytest.raises(TypeError, match="not both"):
        CommGroup(object(), object())
    with pytest.raises(TypeError, match="expected a group of PyTorch, got 3"):
        CommGroup(torch_group=3)
    with pytest.raises(TypeError, match="expected a CommGroup, a Communicator, .*, got 3"):
        mscclpp.Collectives(3)


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


def of_different_lengths(rank, n, address):
    group, _, connections = ranks.pair(rank, n, address)
    data = mscclpp.GpuBuffer(8 * (1 + rank), dtype=numpy.int8)
    said = []
    with pytest.raises(mscclpp.Error) as caught:
        group.make_memory_channels(data, connections)
    said.append(str(caught.value))
    scratch = group.register_local_memory(data, connections)
    same = mscclpp.GpuBuffer(8, dtype=numpy.int8)
    with pytest.raises(mscclpp.Error) as caught:
        group.make_memory_channels_with_scratch(same, scratch, connections)
    said.append(str(caught.value))
    # A proxy checks the offsets itself.
    group.make_port_channels(mscclpp.ProxyService(), data, connections)
    sizes = {rank: memory.size() for rank, memory in group.register_tensor_with_connections(data, connections).items()}
    with pytest.raises(mscclpp.Error) as caught:
        group.bootstrap.all_gather(bytearray(2 * (rank + 1)), rank + 1)
    group.barrier()
    return said, sizes, str(caught.value)


def test_arrays_of_different_lengths_are_an_error_of_both_ranks_where_kernels_use_the_same_offsets():
    for rank, (said, sizes, gathered) in enumerate(ranks.run(2, of_different_lengths)):
        mine, theirs = 8 * (1 + rank), 8 * (2 - rank)
        words = f"rank {rank}, this one, gave one of {mine} bytes, and rank {1 - rank} of {theirs}"
        assert words in said[0] and words in said[1], said
        assert said[0].startswith("the arrays of memory channels must be of the same length"), said
        assert sizes == {0: 8, 1: 16}
        words = f"rank {1 - rank} gave {2 - rank} bytes, and rank {rank}, this one, {rank + 1}; all must give as many"
        assert gathered == f"all_gather: {words}"


@pytest.mark.parametrize("transport", [Transport.CudaIpc, Transport.Ethernet])
def test_a_rank_that_is_connected_with_itself_has_channels_to_itself(transport, tmp_path):
    (tmp_path / "self.cu").write_text("""
#include <mscclpp/memory_channel_device.hpp>
#include <mscclpp/port_channel_device.hpp>
extern "C" __global__ void over_memory(mscclpp::MemoryChannelDeviceHandle channel) {
  channel.put(64, 0, 64, threadIdx.x, blockDim.x);
  channel.signal();
  channel.wait();
}
extern "C" __global__ void over_port(mscclpp::PortChannelDeviceHandle channel) {
  channel.putWithSignalAndFlush(64, 0, 64);
  channel.wait();
}
""")
    group = CommGroup(interfaceIpPortTrio=ranks.free_address(), rank=0, size=1)
    connections, data = group.make_connection([0], transport), mscclpp.GpuBuffer(128, dtype=numpy.int8)
    assert group.register_tensor_with_connections(data, connections)[0].data() == data.data.ptr
    service = mscclpp.ProxyService()
    channels = {"over_port": group.make_port_channels(service, data, connections)[0]}
    if transport == Transport.CudaIpc:
        channels["over_memory"] = group.make_memory_channels(data, connections)[0]
    with service:
        for number, (name, channel) in enumerate(channels.items(), 1):
            data.set(numpy.repeat(numpy.array([number, 0], dtype=numpy.int8), 64))
            kernel = KernelBuilder("self.cu", name, str(tmp_path)).get_compiled_kernel()
            kernel.launch_kernel((channel,), 1, 1, 0, None)
            mscclpp.synchronize(20, channel)
            assert data.get().tolist() == [number] * 128


def older(rank, n, address):
    group, peer, connections = ranks.pair(rank, n, address)
    data, service = mscclpp.GpuBuffer(4), mscclpp.ProxyService()
    with pytest.warns(DeprecationWarning) as caught:
        port = group.make_proxy_channels(service, data, connections)[peer]
        memory = group.make_sm_channels(data, connections)[peer]
        group.make_sm_channels(data, connections)
    group.barrier()
    return type(port).__name__, type(memory).__name__, len(caught)


def test_older_names_make_the_newer_channels():
    assert ranks.run(2, older) == [("PortChannel", "MemoryChannel", 2)] * 2


def test_infiniband_devices_by_number():
    group = CommGroup(interfaceIpPortTrio=ranks.free_address(), rank=0, size=1)
    assert [group.my_ib_device(i) for i in (0, 7)] == [Transport.IB0, Transport.IB7]
    with pytest.raises(ValueError, match="'local_rank'"):
        group.my_ib_device(8)


def make_and_drop(rank, n, address, round):
    """Makes all objects of a group, and drops them without waiting for the other ranks, which may still make theirs."""
    peers = [peer for peer in range(n) if peer != rank]
    group = CommGroup(interfaceIpPortTrio=address, rank=rank, size=n)
    connections = group.make_connection(peers, Transport.CudaIpc if round % 2 == 0 else Transport.Ethernet)
    memory = mscclpp.GpuBuffer(64, dtype=numpy.int32)
    if round % 4 == 0:
        group.make_memory_channels(memory, connections)
    elif round % 4 == 1:
        group.make_semaphores(connections)
    elif round % 4 == 2:
        for peer in peers:
            mscclpp.Host2DeviceSemaphore(group.communicator, connections[peer])
    else:
        group.make_port_channels(mscclpp.ProxyService(), memory, connections)


def drop_at_once(rank, n, address, rounds):
    # Also at one address, where an earlier job is about to end.
    for round in range(rounds):
        make_and_drop(rank, n, address, round)


@pytest.mark.parametrize("n", [2, 3])
def test_what_was_made_can_be_dropped_at_once(n):
    ranks.run(n, drop_at_once, 16)
