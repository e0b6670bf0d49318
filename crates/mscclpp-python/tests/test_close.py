"""Objects that hold something: `close()`, `with`, and `repr`."""

import gc
import os
import threading
import time

import mscclpp
import pytest
from fuzz_arguments import instances

import ranks
from device import arrays

#: The classes of objects that can be closed, but for `Context`, each with a method that takes no arguments.
CALLS = {
    "PortChannel": "device_handle", "BasePortChannel": "abort", "MemoryChannel": "device_handle",
    "BaseMemoryChannel": "abort", "Host2DeviceSemaphore": "signal", "Host2HostSemaphore": "poll",
    "MemoryDevice2DeviceSemaphore": "device_handle", "Semaphore": "check", "SemaphoreStub": "memory",
    "ProxyService": "start_proxy", "Proxy": "start", "Fifo": "poll", "RegisteredMemory": "size", "RawGpuBuffer": "data",
    "Connection": "flush", "Endpoint": "serialize", "Communicator": "bootstrap", "TcpBootstrap": "get_rank",
}  # fmt: skip


def all_objects():
    """An object of each class that can be closed, each with a call."""
    firsts = {type(each).__name__: each for each in reversed(instances()[0])}
    context = firsts["Context"]
    calls = [(firsts[name], getattr(firsts[name], call)) for name, call in CALLS.items()]
    return [*calls, (context, lambda: context.create_endpoint(mscclpp.Transport.CudaIpc))]


@pytest.mark.parametrize("is_backwards", [False, True])
def test_a_closed_object_says_so(is_backwards):
    objects = all_objects()
    for closed, call in objects[::-1] if is_backwards else objects:
        name = type(closed).__name__
        assert repr(closed).startswith(f"<mscclpp.{name}") and "closed" not in repr(closed)
        closed.close()
        with pytest.raises(mscclpp.Error, match=f"this {name} is closed") as raised:
            call()
        assert raised.value.code == mscclpp.ErrorCode.InvalidUsage
        with pytest.raises(mscclpp.Error, match="closed"):
            closed.__enter__()
        closed.close()
        assert repr(closed) == f"<mscclpp.{name}, closed>"


def test_a_closed_object_is_no_argument():
    comm, connection = ranks.alone()
    connection.close()
    with pytest.raises(mscclpp.Error, match="this Connection is closed"):
        comm.build_semaphore(connection, 0)
    comm.close()
    with pytest.raises(mscclpp.Error, match="this Communicator is closed"):
        mscclpp.synchronize(1, abort=comm)


@pytest.mark.parametrize("kind", ["MemoryChannel", "BaseMemoryChannel", "PortChannel", "BasePortChannel"])
def test_a_channel_is_aborted_with_its_semaphore(kind):
    comm, connection = ranks.alone()
    semaphore, service = comm.build_semaphore(connection, 0).get(), mscclpp.ProxyService()
    buffer = mscclpp.RawGpuBuffer(64)
    memory = comm.register_memory(buffer.data(), 64, mscclpp.Transport.CudaIpc)
    place = service.add_memory(memory)
    channel = {
        "MemoryChannel": lambda: mscclpp.MemoryChannel(semaphore, memory, memory),
        "BaseMemoryChannel": lambda: mscclpp.BaseMemoryChannel(semaphore),
        "PortChannel": lambda: service.port_channel(service.add_semaphore(semaphore), place, place),
        "BasePortChannel": lambda: service.base_port_channel(service.add_semaphore(semaphore)),
    }[kind]()
    semaphore.check()
    channel.abort("for a test")
    with pytest.raises(mscclpp.Error, match="for a test") as raised:
        semaphore.check()
    assert raised.value.code == mscclpp.ErrorCode.Aborted


def test_the_memory_of_a_stub():
    comm, connection = ranks.alone()
    stub = mscclpp.SemaphoreStub(connection)
    memory = stub.memory()
    assert memory.data() and memory.size() >= 8
    theirs = mscclpp.SemaphoreStub.deserialize(stub.serialize()).memory()
    assert theirs.size() == memory.size() and comm.bootstrap().get_rank() == 0


def test_with_closes():
    bootstrap = mscclpp.TcpBootstrap.create(0, 1)
    with pytest.raises(ZeroDivisionError), bootstrap as entered:
        assert entered is bootstrap and "rank 0 of 1, not connected yet" in repr(bootstrap)
        raise ZeroDivisionError
    with pytest.raises(mscclpp.Error, match="closed"):
        bootstrap.initialize(mscclpp.TcpBootstrap.create_unique_id())
    with mscclpp.CommGroup(interfaceIpPortTrio=ranks.free_address(), rank=0, size=1) as group:
        group.barrier()
    with pytest.raises(mscclpp.Error, match="TcpBootstrap is closed"):
        group.barrier()
    with pytest.raises(mscclpp.Error, match="Communicator is closed"):
        group.communicator.context()


def test_a_closed_communicator_lets_go_of_its_bootstrap():
    comm, connection = ranks.alone()
    connection.close()
    before = len(os.listdir("/proc/self/fd"))
    comm.close()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) < before


def test_what_others_need_stays():
    comm, connection = ranks.alone()
    semaphore = comm.build_semaphore(connection, 0).get()
    channel = mscclpp.BaseMemoryChannel(semaphore)
    bootstrap = comm.bootstrap()
    for needed in (semaphore, connection, comm.context(), bootstrap):
        needed.close()
    comm.connect(mscclpp.Transport.CudaIpc, 0).get().flush()
    comm.close()
    assert channel.device_handle().raw


def test_services_are_stopped():
    with mscclpp.ProxyService() as service:
        service.close()
    proxy = mscclpp.Proxy(lambda trigger: mscclpp.ProxyHandlerResult.Continue)
    with proxy:
        assert "running" in repr(proxy)
        before = threading.active_count()
        proxy.close()
    assert threading.active_count() <= before
    with pytest.raises(mscclpp.Error, match="this Proxy is closed"):
        proxy.is_running()


def test_an_array_keeps_the_memory_of_a_closed_buffer():
    raw = mscclpp.RawGpuBuffer(1 << 20)
    array = arrays.asarray(raw)
    raw.close()
    mscclpp.synchronize()
    mscclpp.RawGpuBuffer(64).close()
    array[:] = 7
    del raw
    gc.collect()
    assert array.sum() == 7 << 20


def test_close_ends_joining_a_job():
    bootstrap = mscclpp.TcpBootstrap.create(1, 2)
    raised = []

    def join():
        try:
            bootstrap.initialize(ranks.free_address(), timeout_sec=60)
        except mscclpp.Error as error:
            raised.append(error.code)

    thread = threading.Thread(target=join)
    thread.start()
    bootstrap.close()
    thread.join(10)
    assert raised in ([mscclpp.ErrorCode.Aborted], [mscclpp.ErrorCode.InvalidUsage])


def test_calls_of_other_threads_go_on():
    address, bootstraps, got = ranks.free_address(), [mscclpp.TcpBootstrap.create(rank, 2) for rank in range(2)], []

    def receive():
        bootstraps[1].initialize(address)
        bootstraps[1].send(b"here", 0, 8)
        got.append(bootstraps[1].recv(0, 9))

    thread = threading.Thread(target=receive)
    thread.start()
    bootstraps[0].initialize(address)
    assert bootstraps[0].recv(1, 8) == b"here"
    time.sleep(0.5)  # it waits by now
    bootstraps[1].close()
    bootstraps[0].send(b"late", 1, 9)
    thread.join(30)
    assert got == [b"late"]
