"""Communicators, connections, memories and semaphores between ranks."""

import ctypes
import gc
import os
import threading
import time

import mscclpp
import numpy
import pytest
from mscclpp import Communicator, Context, Device, DeviceType, EndpointConfig, Error, TcpBootstrap, Transport

import ranks
from device import arrays, fill, memset, read

CPU = EndpointConfig(Transport.Ethernet, DeviceType.CPU)


def job(rank, n, address):
    bootstrap = TcpBootstrap.create(rank, n)
    bootstrap.initialize(address)
    return Communicator(bootstrap)


def writes(rank, n, address, config):
    comm = job(rank, n, address)
    peer = 1 - rank
    future = comm.connect(config or Transport.CudaIpc, peer, 3)
    connection = future.get()
    assert future.get() is connection
    assert (comm.remote_rank_of(connection), comm.tag_of(connection)) == (peer, 3)
    assert connection.transport() == connection.remote_transport() != Transport.Unknown
    assert connection.get_max_write_queue_size() == -1 and f"rank {peer}" in repr(connection)
    inbox, outbox = mscclpp.GpuBuffer(16, dtype=numpy.uint64), mscclpp.GpuBuffer(16, dtype=numpy.uint64)
    fill(outbox, 100 * rank + numpy.arange(16))
    transport = connection.transport()
    ours = comm.register_memory(inbox.data.ptr, inbox.nbytes, transport)
    source = comm.register_memory(outbox.data.ptr, outbox.nbytes, mscclpp.TransportFlags(transport))
    assert (ours.data(), ours.size(), ours.transports()) == (inbox.data.ptr, 128, mscclpp.TransportFlags(transport))
    comm.send_memory(ours, peer, 3)
    theirs = comm.recv_memory(peer, 3).get()
    assert theirs.size() == 128 and theirs.transports().has(transport)
    # The pointer is there at once if the transport maps memory.
    assert (theirs.data() != 0) == (transport == Transport.CudaIpc)
    word = ctypes.c_uint64(0)
    connection.write(theirs, 8, source, 16, 24)
    connection.update_and_sync(theirs, 64, ctypes.addressof(word), 4711)
    connection.flush()
    comm.bootstrap().barrier()
    with pytest.raises(Error, match="128"):
        connection.write(theirs, 120, source, 0, 16)
    with pytest.raises(Error, match="src is 0x1"):
        connection.update_and_sync(theirs, 0, 1, 1)
    with pytest.raises(OverflowError, match="a number from 0 to .*, got -1"):
        connection.write(theirs, -1, source, 0, 8)
    assert word.value == 4711 and comm.context() is comm.context()
    comm.bootstrap().barrier()
    return inbox[[0, 1, 2, 3, 4, 8]].tolist()


@pytest.mark.parametrize("config", [None, Transport.Ethernet])
def test_writes_arrive(config):
    expected = [[0, 102, 103, 104, 0, 4711], [0, 2, 3, 4, 0, 4711]]
    assert ranks.run(2, writes, config) == expected


def hosts(rank, n, address):
    comm = job(rank, n, address)
    peer = 1 - rank
    connection = comm.connect(CPU, peer).get()
    assert connection.local_device().type == DeviceType.CPU
    memory = (ctypes.c_uint64 * 4)()
    ours = comm.register_memory(ctypes.addressof(memory), 32, Transport.Ethernet)
    comm.send_memory(ours, peer)
    theirs = comm.recv_memory(peer).get()
    semaphore = mscclpp.Host2HostSemaphore(comm, connection)
    assert semaphore.poll() is False
    with pytest.raises(Error, match="no signal from rank .* came within 3 polls") as caught:
        semaphore.wait(3)
    assert caught.value.code == mscclpp.ErrorCode.Timeout
    comm.bootstrap().barrier()
    source = (ctypes.c_uint64 * 4)(*[rank + 1] * 4)
    registered = comm.register_memory(ctypes.addressof(source), 32, Transport.Ethernet)
    connection.write(theirs, 0, registered, 0, 32)
    semaphore.signal()
    semaphore.wait(-1)
    got = list(memory)
    semaphore.signal()
    semaphore.wait()
    comm.bootstrap().barrier()
    return got


def test_hosts_signal_behind_their_data():
    assert ranks.run(2, hosts) == [[2] * 4, [1] * 4]


def shared(rank, n, address):
    """Several objects of one semaphore share its tokens, and its host side can be given to a service."""
    comm = job(rank, n, address)
    peer = 1 - rank
    connection = comm.connect(Transport.CudaIpc, peer).get()
    future = comm.build_semaphore(connection, peer)
    semaphore = future.get()
    assert future.get() is semaphore
    first, second = mscclpp.Host2DeviceSemaphore(semaphore), mscclpp.Host2DeviceSemaphore(semaphore)
    assert first.device_handle().raw == second.device_handle().raw
    token = first.device_handle().inbound_token
    memory = semaphore.local_memory()
    assert memory.data() <= token < memory.data() + memory.size() and semaphore.remote_memory().size() > 0
    comm.bootstrap().barrier()
    first.signal()
    second.signal()
    connection.flush()
    comm.bootstrap().barrier()
    # Two words: one for signals of the peer's kernels, one for signals of its host side.
    assert numpy.frombuffer(read(token, 16), dtype=numpy.uint64).sum() == 2
    service = mscclpp.ProxyService()
    id = service.add_semaphore(first)
    assert service.semaphore(id).device_handle().raw == second.device_handle().raw
    with pytest.raises(Error, match="another signaller"):
        second.signal()
    with pytest.raises(Error, match="CPU"):
        mscclpp.Host2HostSemaphore(semaphore)
    semaphore.check()
    comm.bootstrap().barrier()
    return True


def test_objects_of_one_semaphore_share_its_tokens():
    assert ranks.run(2, shared) == [True, True]


def by_hand(rank, n, address):
    """Endpoints and stubs as bytes, without the communicator's exchange."""
    bootstrap = TcpBootstrap.create(rank, n)
    bootstrap.initialize(address)
    peer, context = 1 - rank, Context.create()
    number = rank % mscclpp.device_count()
    endpoint = context.create_endpoint(EndpointConfig(Transport.CudaIpc, Device(DeviceType.GPU, number)))
    assert endpoint.config().device.id == endpoint.device().id == number
    assert endpoint.transport() == Transport.CudaIpc and endpoint.max_write_queue_size() == -1
    bootstrap.send(endpoint.serialize(), peer, 0)
    remote = mscclpp.Endpoint.deserialize(bootstrap.recv(peer, 0))
    connection = context.connect(endpoint, remote)
    stub = mscclpp.SemaphoreStub(connection)
    bootstrap.send(stub.serialize(), peer, 0)
    semaphore = mscclpp.Semaphore(stub, mscclpp.SemaphoreStub.deserialize(bootstrap.recv(peer, 0)))
    assert semaphore.connection().local_device().id == number
    again = semaphore.connection()
    assert again == connection and again is not connection and {connection: 1}[again] == 1 and again != 1
    buffer = mscclpp.GpuBuffer(8, dtype=numpy.uint8)
    memory = context.register_memory(buffer.data.ptr, 8, Transport.CudaIpc)
    bootstrap.send(memory.serialize(), peer, 0)
    theirs = mscclpp.RegisteredMemory.deserialize(bytearray(bootstrap.recv(peer, 0)))
    bootstrap.barrier()
    memset(theirs.data(), rank + 1, 8)
    bootstrap.barrier()
    with pytest.raises(Error, match="semaphore stub"):
        mscclpp.SemaphoreStub.deserialize(endpoint.serialize())
    bootstrap.barrier()
    return buffer.tolist()


def test_everything_travels_as_bytes():
    assert ranks.run(2, by_hand) == [[2] * 8, [1] * 8]


def local_use(rank, n, address):
    comm = job(rank, n, address)
    peer = 1 - rank
    connection = comm.connect(Transport.CudaIpc, peer).get()
    inbox, outbox = mscclpp.GpuBuffer(4, dtype=numpy.int32), mscclpp.GpuBuffer(4, dtype=numpy.int32)
    fill(outbox, [rank + 5] * 4)
    source = comm.register_memory(outbox.data.ptr, 16, mscclpp.TransportFlags())
    assert source.transports().none() and source.data() == outbox.data.ptr
    with pytest.raises(Error, match="without transports"):
        comm.send_memory(source, peer)
    with pytest.raises(Error, match="without transports"):
        source.serialize()
    ours = comm.register_memory(inbox.data.ptr, 16, Transport.CudaIpc | Transport.Ethernet)
    assert ours.transports().count() == 2
    comm.send_memory(ours, peer)
    theirs = comm.recv_memory(peer).get()
    connection.write(theirs, 0, source, 0, 16)
    connection.flush()
    comm.bootstrap().barrier()
    return inbox.tolist()


def test_memory_registered_without_transports_is_for_use_here():
    assert ranks.run(2, local_use) == [[6] * 4, [5] * 4]


def fresh_threads(rank, n, address):
    """Each step in a thread of its own, which has no current device."""
    results, errors = {}, []

    def step(name, work):
        def body():
            try:
                results[name] = work()
            except BaseException as error:
                errors.append((name, repr(error)))

        thread = threading.Thread(target=body)
        thread.start()
        thread.join(60)
        assert not errors and not thread.is_alive(), errors
        return results[name]

    peer = 1 - rank
    comm = step("job", lambda: job(rank, n, address))
    connection = step("connect", lambda: comm.connect(Transport.CudaIpc, peer).get())
    semaphore = step("semaphore", lambda: comm.build_semaphore(connection, peer).get())
    buffer = step("buffer", lambda: mscclpp.GpuBuffer(4, dtype=numpy.int32))
    memory = step("memory", lambda: comm.register_memory(buffer.data.ptr, 16, Transport.CudaIpc))
    step("send", lambda: comm.send_memory(memory, peer))
    theirs = step("receive", lambda: comm.recv_memory(peer).get())
    channel = step("channel", lambda: mscclpp.MemoryChannel(semaphore, theirs, memory))
    step("barrier", comm.bootstrap().barrier)
    return step("handle", lambda: channel.device_handle().dst_ == theirs.data() != 0)


def test_methods_may_be_called_from_fresh_threads():
    assert ranks.run(2, fresh_threads) == [True, True]


def dropped(rank, n, address):
    """Objects that a channel needs are dropped before it, in every order."""
    comm = job(rank, n, address)
    peer = 1 - rank
    for order in range(4):
        connection = comm.connect(Transport.CudaIpc, peer).get()
        buffer = mscclpp.GpuBuffer(4, dtype=numpy.int32)
        memory = comm.register_memory(buffer.data.ptr, 16, Transport.CudaIpc)
        comm.send_memory(memory, peer)
        theirs = comm.recv_memory(peer).get()
        semaphore = comm.build_semaphore(connection, peer).get()
        service = mscclpp.ProxyService()
        id = service.add_semaphore(semaphore)
        port = service.port_channel(id, service.add_memory(theirs), service.add_memory(memory))
        channel = mscclpp.MemoryChannel(comm.build_semaphore(connection, peer).get(), theirs, memory)
        service.start_proxy()
        comm.bootstrap().barrier()
        kept = [connection, memory, theirs, semaphore, service, port, channel]
        del connection, memory, theirs, semaphore, service, port, channel
        while kept:
            kept.pop((0, -1, len(kept) // 2, order % len(kept))[order])
            gc.collect()
        comm.bootstrap().barrier()
    return True


def test_objects_are_dropped_in_any_order():
    assert ranks.run(2, dropped) == [True, True]


def mismatched(rank, n, address):
    comm = job(rank, n, address)
    with pytest.raises(Error, match="CudaIpc.*Ethernet|Ethernet.*CudaIpc"):
        comm.connect(Transport.CudaIpc if rank else Transport.Ethernet, 1 - rank).get()
    pending = comm.connect(Transport.CudaIpc, 1 - rank, 1)
    alone = mscclpp.Context.create()
    endpoint = alone.create_endpoint(Transport.CudaIpc)
    stranger = alone.connect(endpoint, endpoint)
    with pytest.raises(Error, match="not made by connect"):
        comm.remote_rank_of(stranger)
    pending.get()
    comm.bootstrap().barrier()
    return True


def test_a_mismatch_names_both_sides():
    assert ranks.run(2, mismatched) == [True, True]


def older(rank, n, address):
    comm = job(rank, n, address)
    with pytest.warns(DeprecationWarning) as caught:
        future = comm.connect_on_setup(1 - rank, 0, Transport.CudaIpc)
        comm.setup()
        buffer = mscclpp.GpuBuffer(2)
        comm.send_memory_on_setup(comm.register_memory(buffer.data.ptr, 16, Transport.CudaIpc), 1 - rank, 7)
        memory = comm.recv_memory_on_setup(1 - rank, 7)
        comm.setup()
    connection = future.get()
    assert memory.get().size() == 16 and comm.remote_rank_of(connection) == 1 - rank
    comm.bootstrap().barrier()
    return len(caught)


def test_the_older_way_of_setting_up_works_and_warns_once_each():
    assert ranks.run(2, older) == [4, 4]


@ranks.each_of(2)
def test_memory_that_cannot_be_mapped_has_no_address(rank, n, address):
    group, peer, _connections = ranks.pair(rank, n, address)
    if rank == 0:
        memory = group.communicator.register_memory(mscclpp.RawGpuBuffer(64).data(), 64, Transport.CudaIpc)
        group.bootstrap.send(memory.serialize(), peer, 3)
        memory.close()
    else:
        state = group.bootstrap.recv(peer, 3)
    group.barrier()
    if rank == 1:
        with pytest.raises(Error, match="it was dropped"):
            mscclpp.RegisteredMemory.deserialize(state).data()
    group.barrier()


def test_talking_to_oneself():
    bootstrap = TcpBootstrap.create(0, 1)
    bootstrap.initialize(TcpBootstrap.create_unique_id())
    comm = Communicator(bootstrap=bootstrap, context=Context())
    future = comm.connect(Transport.CudaIpc, 0)
    connection = future.get()
    buffer = mscclpp.GpuBuffer(4)
    ours = comm.register_memory(buffer.data.ptr, 32, Transport.CudaIpc)
    comm.send_memory(ours, 0)
    assert comm.recv_memory(0).get().data() == buffer.data.ptr
    semaphore = comm.build_semaphore(connection, 0).get()
    assert mscclpp.MemoryDevice2DeviceSemaphore(semaphore).device_handle().remote_inbound_token != 0
    with pytest.raises(Error, match="5"):
        comm.connect(Transport.CudaIpc, 5)


def test_nothing_is_left_behind():
    """Descriptors, threads and mappings of device memory are as many after many rounds as after a few."""

    def held():
        gc.collect()
        with open("/proc/self/maps", encoding="utf-8") as maps:
            mappings = sum("memfd:mscclpp" in line for line in maps)
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), mappings

    def work():
        comm, connection = ranks.alone()
        buffer = mscclpp.GpuBuffer(100)
        memory = comm.register_memory(buffer.data.ptr, buffer.nbytes, Transport.CudaIpc)
        comm.send_memory(memory, 0)
        theirs = comm.recv_memory(0).get()
        service = mscclpp.ProxyService()
        id = service.build_and_add_semaphore(comm, connection)
        service.start_proxy()
        service.port_channel(id, service.add_memory(theirs), service.add_memory(memory))
        mscclpp.MemoryChannel(comm.build_semaphore(connection, 0).get(), theirs, memory, buffer.data.ptr)
        proxy = mscclpp.Proxy(lambda trigger: mscclpp.ProxyHandlerResult.Continue)
        proxy.start()
        raw = mscclpp.RawGpuBuffer(64)
        arrays.from_dlpack(raw)
        raw.to_dlpack("int32")

    for _ in range(5):
        work()
    before = held()
    for _ in range(60):
        work()

    def is_more(now):
        return any(count > few for count, few in zip(now, before))

    deadline = time.monotonic() + 30
    # Threads of earlier tests may open a descriptor for a moment.
    while is_more(now := held()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_more(now), (before, now)
