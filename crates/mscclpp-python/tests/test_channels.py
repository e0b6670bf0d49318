"""Kernels on several ranks that signal each other and move data."""

import ctypes

import mscclpp
import numpy
import pytest
from mscclpp.utils import pack

import ranks
from device import fill


def ping_pong(rank, n, address, rounds):
    group, peer, connections = ranks.pair(rank, n, address)
    data, outcome = mscclpp.GpuBuffer(1000, dtype=numpy.int32), mscclpp.GpuBuffer(1, dtype=numpy.int32)
    channel = group.make_memory_channels(data, connections)[peer]
    kernel = ranks.kernel("ping_pong.cu", "ping_pong", ranks.EXAMPLES)
    group.barrier()
    params = pack(channel.device_handle().raw, rank, rounds, ctypes.c_size_t(data.nbytes), outcome)
    kernel.launch_kernel(params, 1, 64, 0, None)
    mscclpp.synchronize(60)
    group.barrier()
    assert channel.device_handle().src_ == data.data.ptr
    return int(outcome[0]), set(data.tolist())


def test_a_ping_pong_through_memory_channels():
    assert ranks.run(2, ping_pong, 10) == [(10, {9}), (10, {10})]


def with_scratch(rank, n, address):
    group, peer, connections = ranks.pair(rank, n, address)
    data = mscclpp.GpuBuffer(250, dtype=numpy.int32)
    scratch = mscclpp.GpuBuffer(2 * data.nbytes, dtype=numpy.uint8)
    fill(data, numpy.arange(250) + 1000 * rank)
    registered = group.register_local_memory(scratch, connections)
    channel = group.make_memory_channels_with_scratch(data, registered, connections)[peer]
    handle = channel.device_handle()
    assert (handle.src_, handle.packetBuffer_) == (data.data.ptr, scratch.data.ptr) and handle.dst_ != 0
    kernel = ranks.kernel("memory_channel.cu", "exchange_packets")
    group.barrier()
    kernel.launch_kernel(pack(handle.raw, ctypes.c_size_t(data.nbytes), 5), 1, 32, 0, None)
    mscclpp.synchronize(60)
    group.barrier()
    return data.tolist()


def test_packets_go_through_scratch_buffers():
    assert ranks.run(2, with_scratch) == [list(range(1000, 1250)), list(range(250))]


def made_in_each_way(rank, n, address):
    """Channels of a Semaphore, of a semaphore object, and of a communicator and a connection."""
    group, peer, connections = ranks.pair(rank, n, address)
    connection = connections[peer]
    semaphores = group.make_semaphores(connections)
    kernel = ranks.kernel("memory_channel.cu", "meet")
    outcomes = []
    of_pair = mscclpp.MemoryDevice2DeviceSemaphore(group.communicator, connection)
    of_semaphore = mscclpp.MemoryDevice2DeviceSemaphore(semaphores[peer])
    made = [mscclpp.BaseMemoryChannel(semaphore) for semaphore in (semaphores[peer], of_semaphore, of_pair)]
    made.append(mscclpp.BaseMemoryChannel(group.communicator, connection))
    made.append(mscclpp.BaseMemoryChannel(connection=connection, communicator=group.communicator))
    for channel in made:
        outcome = mscclpp.GpuBuffer(1, dtype=numpy.int32)
        kernel.launch_kernel(pack(channel.device_handle().raw, outcome), 1, 1, 0, None)
        mscclpp.synchronize(60)
        outcomes.append(int(outcome[0]))
    shared = of_semaphore.device_handle()
    assert shared.inbound_token == mscclpp.BaseMemoryChannel(semaphores[peer]).device_handle().semaphore_.inbound_token
    assert shared.inbound_token != of_pair.device_handle().inbound_token
    group.barrier()
    return outcomes


def test_channels_are_made_in_each_way():
    assert ranks.run(2, made_in_each_way) == [[1] * 5] * 2


def in_one_call(rank, n, address):
    """A memory channel of a connection, without a semaphore object."""
    group, peer, connections = ranks.pair(rank, n, address)
    data, outcome = mscclpp.GpuBuffer(100, dtype=numpy.int32), mscclpp.GpuBuffer(1, dtype=numpy.int32)
    memories = group.register_tensor_with_connections(data, connections)
    channel = mscclpp.MemoryChannel(
        group.communicator, connections[peer], memories[peer], src=memories[rank], packet_buffer=None
    )
    kernel = ranks.kernel("ping_pong.cu", "ping_pong", ranks.EXAMPLES)
    group.barrier()
    kernel.launch_kernel((channel, rank, 4, data.nbytes, outcome), 1, 64, 0, None)
    mscclpp.synchronize(60)
    group.barrier()
    return int(outcome[0]), set(data.tolist())


def test_a_channel_is_made_in_one_call():
    assert ranks.run(2, in_one_call) == [(4, {3}), (4, {4})]


def in_a_ring(rank, n, address):
    """Neighbours: each rank lists them in an order of its own."""
    group = ranks.group(rank, n, address)
    comm, config = group.communicator, mscclpp.EndpointConfig(mscclpp.Transport.CudaIpc)
    neighbours = [(rank + 1) % n, (rank - 1) % n]
    connections = comm.connect_all(config, neighbours, tag=4)
    assert [comm.remote_rank_of(connection) for connection in connections] == neighbours
    assert [comm.tag_of(connection) for connection in connections] == [4, 4]
    for wrong, words in (([0, 0], "named twice"), ([n], f"no rank {n}")):
        try:
            comm.connect_all(config, wrong)
        except mscclpp.Error as error:
            assert words in str(error), error
        else:
            raise AssertionError(f"{wrong} was taken")
    group.barrier()
    return True


def test_all_neighbours_are_connected_in_one_call():
    assert ranks.run(4, in_a_ring) == [True] * 4


def all_gather(rank, n, address, transport, scratch):
    group = ranks.group(rank, n, address)
    peers = [peer for peer in range(n) if peer != rank]
    connections = group.make_connection(peers, getattr(mscclpp.Transport, transport))
    elements = 256
    data = mscclpp.GpuBuffer(n * elements, dtype=numpy.int32)
    data[rank * elements : (rank + 1) * elements] = rank + 1
    result = data
    service = mscclpp.ProxyService()
    if scratch:
        result = mscclpp.GpuBuffer(n * elements, dtype=numpy.int32)
        result[rank * elements : (rank + 1) * elements] = rank + 1
        registered = group.register_local_memory(result, connections)
        channels = group.make_port_channels_with_scratch(service, data, registered, connections)
        del registered  # the service keeps it: peers put to it
    else:
        channels = group.make_port_channels(service, data, connections)
    size = len(channels[peers[0]].device_handle().raw)
    raw = b"".join(channels[peer].device_handle().raw if peer != rank else bytes(size) for peer in range(n))
    handles = mscclpp.GpuBuffer(len(raw), dtype=numpy.uint8)
    fill(handles, numpy.frombuffer(raw, dtype=numpy.uint8))
    outcome = mscclpp.GpuBuffer(n, dtype=numpy.int32)
    kernel = ranks.kernel("port_channel.cu", "all_gather")
    service.start_proxy()
    group.barrier()
    kernel.launch_kernel(pack(handles, rank, n, ctypes.c_size_t(4 * elements), outcome), 1, n, 0, None)
    mscclpp.synchronize(60)
    group.barrier()
    service.stop_proxy()
    service.health()
    return outcome.tolist(), result.reshape(n, elements).tolist()


def check_all_gather(n, *args):
    for rank, (outcome, data) in enumerate(ranks.run(n, all_gather, *args)):
        assert outcome == [0 if peer == rank else 1 for peer in range(n)]
        assert data == [[part + 1] * 256 for part in range(n)]


def test_four_ranks_gather_through_port_channels():
    check_all_gather(4, "CudaIpc", False)


@pytest.mark.parametrize("transport", ["CudaIpc", "Ethernet"])
def test_port_channels_put_into_scratch_buffers(transport):
    check_all_gather(2, transport, True)


def test_port_channels_work_over_ethernet():
    check_all_gather(2, "Ethernet", False)


def named_memories(rank, n, address):
    group = ranks.group(rank, n, address)
    peer = 1 - rank
    # On a device that is not the current one of rank 1: the service uses the device of its first semaphore.
    device = mscclpp.Device(mscclpp.DeviceType.GPU, 0)
    config = mscclpp.EndpointConfig(mscclpp.Transport.CudaIpc, device)
    connections = group.make_connection([peer], {peer: config})
    if mscclpp.device_count() > 1 and rank == 1:
        try:
            group.register_local_memory(mscclpp.GpuBuffer(64), connections)
        except ValueError as error:
            assert "'tensor': it is on GPU 1" in str(error) and "rank 0 is on GPU 0" in str(error), error
        else:
            raise AssertionError("memory of another GPU was taken")
    mscclpp.set_device(0)
    inbox, outbox = mscclpp.GpuBuffer(64, dtype=numpy.int32), mscclpp.GpuBuffer(64, dtype=numpy.int32)
    fill(outbox, [rank + 10] * 64)
    service = mscclpp.ProxyService(fifo_size=64)
    service.start_proxy(blocking=True)
    inboxes = group.register_memory_with_proxy(service, inbox, connections)
    source = service.add_memory(group.register_local_memory(outbox, connections))
    channel = group.register_semaphore_with_proxy(service, connections)[peer]
    handle = channel.device_handle()
    by_hand = mscclpp.BasePortChannel(handle.semaphore_id_, service.semaphore(0), service)
    assert by_hand.device_handle().raw == handle.raw
    outcome = mscclpp.GpuBuffer(1, dtype=numpy.int32)
    kernel = ranks.kernel("port_channel.cu", "put_named")
    group.barrier()
    params = pack(handle.raw, inboxes[peer], source, ctypes.c_size_t(inbox.nbytes), outcome)
    kernel.launch_kernel(params, 1, 1, 0, None)
    mscclpp.synchronize(60)
    group.barrier()
    service.stop_proxy()
    return int(outcome[0]), sorted(inboxes), set(inbox.tolist())


def test_base_port_channels_name_memories():
    assert ranks.run(2, named_memories) == [(1, [0, 1], {11}), (1, [0, 1], {10})]


def other_device(rank, n, address):
    """A service that was made before its device is known."""
    group = ranks.group(rank, n, address)
    peer = 1 - rank
    last = mscclpp.device_count() - 1
    config = mscclpp.EndpointConfig(mscclpp.Transport.Ethernet, mscclpp.Device(mscclpp.DeviceType.GPU, last))
    connection = group.make_connection([peer], config)[peer]
    service = mscclpp.ProxyService()
    service.start_proxy()
    id = service.build_and_add_semaphore(group.communicator, connection)
    assert service.semaphore(id).connection().local_device().id == last
    handle = service.base_port_channel(id).device_handle()
    service.stop_proxy()
    group.barrier()
    return handle.semaphore_id_


def test_a_service_goes_to_the_device_of_its_first_semaphore():
    assert ranks.run(2, other_device) == [0, 0]


def test_sizes_of_raw_handles_are_multiples_of_eight():
    assert all(size % 8 == 0 for sizes in ranks.run(2, raw_sizes) for size in sizes)


def raw_sizes(rank, n, address):
    group, peer, connections = ranks.pair(rank, n, address)
    semaphore = group.make_semaphores(connections)[peer]
    data = mscclpp.GpuBuffer(64)
    service = mscclpp.ProxyService()
    port = group.make_port_channels(service, data, connections)[peer].device_handle()
    memory = group.make_memory_channels(data, connections)[peer].device_handle()
    handles = [
        mscclpp.Host2DeviceSemaphore(semaphore).device_handle(),
        mscclpp.MemoryDevice2DeviceSemaphore(semaphore).device_handle(),
        mscclpp.BaseMemoryChannel(semaphore).device_handle(),
        mscclpp.Fifo().device_handle(),
        memory,
        port,
        port.semaphore_,
        port.fifo_,
        memory.semaphore_,
    ]
    group.barrier()
    sizes = [len(handle.raw) for handle in handles]
    assert len(sizes) == 9 and min(sizes) >= 16
    return sizes
