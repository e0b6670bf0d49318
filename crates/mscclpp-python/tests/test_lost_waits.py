"""The failed wait of a kernel is reported once, with the rank it waited for, by each call that waits for the kernel."""

import contextlib
import os
import signal

import mscclpp
import numpy
import pytest
from mscclpp import Error, Transport

import ranks

BYTES = 4 << 20


def alone():
    """A rank that is connected with itself."""
    group = ranks.group(0, 1, ranks.free_address())
    return group, group.make_connection([0], Transport.CudaIpc)


def things(group, connections, peer):
    """A channel or semaphore of each kind to a rank, and the kernel that waits through it."""
    connection, data = connections[peer], mscclpp.GpuBuffer(64, dtype=numpy.int32)
    service = mscclpp.ProxyService()
    port = group.make_port_channels(service, data, connections)[peer]
    id = service.build_and_add_semaphore(group.communicator, connection)
    base_port = service.base_port_channel(id)
    service.start_proxy(blocking=True)
    made = [
        ("wait_memory", group.make_memory_channels(data, connections)[peer]),
        ("wait_base", mscclpp.BaseMemoryChannel(group.communicator, connection)),
        ("wait_semaphore", mscclpp.MemoryDevice2DeviceSemaphore(group.communicator, connection)),
        ("wait_host", mscclpp.Host2DeviceSemaphore(group.communicator, connection)),
        ("wait_port", port),
        ("wait_base_port", base_port),
    ]
    return service, {name: (ranks.kernel("waits.cu", name), thing) for name, thing in made}


def said(call):
    with pytest.raises(Error) as caught:
        call()
    return f"{caught.value.code.name}: {caught.value.args[1]}"


def plainly(thing, other):
    mscclpp.synchronize(20)


def with_abort(thing, other):
    mscclpp.synchronize(20, abort=[thing])


def with_abort_of_another(thing, other):
    mscclpp.synchronize(20, abort=other)


def by_get(thing, other):
    mscclpp.GpuBuffer(1, dtype=numpy.int32).get()


def by_check(thing, other):
    """Waits for the kernel by means of another error."""
    with pytest.raises(Error):
        mscclpp.synchronize(20)
    thing.check()


FORMS = [plainly, with_abort, with_abort_of_another, by_check]
if os.environ["MSCCLPP_PLATFORM"] == "sim":
    FORMS.append(by_get)  # on GPUs it is CuPy's


def survive(rank, n, address):
    """Rank 2 is killed while kernels wait for it, and each form of synchronize says so for each kind of object."""
    group = ranks.group(rank, n, address)
    connections = group.make_connection([peer for peer in range(n) if peer != rank], Transport.CudaIpc)
    # The peers make theirs in the same order.
    to = {peer: things(group, {peer: connections[peer]}, peer)[1] for peer in connections} if rank < 2 else None
    if rank == 2:
        for peer in (0, 1):
            things(group, {peer: connections[peer]}, peer)
        for peer in (0, 1):
            group.bootstrap.recv(peer, 1)
        os.kill(os.getpid(), signal.SIGKILL)
    outcome, errors = mscclpp.GpuBuffer(1, dtype=numpy.int32), []
    launches = []
    for form in FORMS:
        for name, (kernel, thing) in to[2].items():
            launches.append((form, name, kernel, (thing, -1, outcome), thing))
    # The first kernel waits while rank 2 is killed; the others find it dead.
    launches[0][2].launch_kernel(launches[0][3], 1, 1, 0, None)
    group.bootstrap.send(b"go", 2, 1)
    other = to[1 - rank]["wait_memory"][1]
    for number, (form, name, kernel, arguments, thing) in enumerate(launches):
        if number > 0:
            kernel.launch_kernel(arguments, 1, 1, 0, None)
        error = said(lambda form=form, thing=thing: form(thing, other))
        assert error.startswith("RemoteError:") and "lost rank 2" in error, (form.__name__, name, error)
        mscclpp.synchronize(20)  # once
        assert outcome[0] == -1
        # A tuple that was prepared before.
        kernel.launch_kernel(arguments, 1, 1, 0, None)
        assert "lost rank 2" in said(lambda: mscclpp.synchronize(20))
        errors.append(error)
    return len(errors)


def test_every_form_of_synchronize_says_who_was_lost():
    with ranks.Ranks(3, survive) as job:
        kinds = 6
        assert [job.outcome(rank) for rank in (0, 1)] == [len(FORMS) * kinds] * 2
        assert job.outcomes[2].poll(20)
        with pytest.raises(EOFError):
            job.outcomes[2].recv()


@pytest.mark.parametrize(
    "name", ["wait_memory", "wait_base", "wait_semaphore", "wait_host", "wait_port", "wait_base_port"]
)
def test_time_that_runs_out_names_whom_kernels_wait_for(name):
    group, connections = alone()
    _service, made = things(group, connections, 0)
    outcome = mscclpp.GpuBuffer(1, dtype=numpy.int32)
    kernel, thing = made[name]
    kernel.launch_kernel((thing, -1, outcome), 1, 1, 0, None)
    error = said(lambda: mscclpp.synchronize(0.3))
    assert error.startswith("Timeout:") and "wait for rank 0, did not finish within 300ms" in error, error
    thing.abort("seen enough")
    error = said(lambda: mscclpp.synchronize(20))
    assert error.startswith("Aborted:") and "seen enough" in error, error
    mscclpp.synchronize(20)


def test_a_bound_that_was_reached_is_told_once():
    group, connections = alone()
    service, made = things(group, connections, 0)
    outcome = mscclpp.GpuBuffer(1, dtype=numpy.int32)
    for name, (kernel, thing) in made.items():
        kernel.launch_kernel((thing, 10, outcome), 1, 1, 0, None)
        error = said(lambda: mscclpp.synchronize(20))
        assert error.startswith("Timeout:") and "spin bound" in error and "rank 0" in error, (name, error)
        mscclpp.synchronize(20)
        thing.check()
    service.close()


def service_of_one():
    group, connections = alone()
    data = mscclpp.GpuBuffer(BYTES, dtype=numpy.uint8)
    service = mscclpp.ProxyService()
    channel = group.make_port_channels(service, data, connections)[0]
    kernel, outcome = ranks.kernel("waits.cu", "put_and_flush"), mscclpp.GpuBuffer(1, dtype=numpy.int32)
    return group, service, lambda offset: kernel.launch_kernel((channel, offset, BYTES, outcome), 1, 1, 0, None)


def test_a_service_that_was_not_started_is_named():
    _group, service, put = service_of_one()
    put(0)
    error = said(lambda: mscclpp.synchronize(0.3))
    assert error.startswith("Timeout:") and "the proxy service of " in error and "was not started" in error, error
    service.start_proxy()
    mscclpp.synchronize(20)
    service.close()


def test_what_the_proxy_refused_is_told():
    _group, service, put = service_of_one()
    service.start_proxy()
    put(8)  # past the end
    error = said(lambda: mscclpp.synchronize(20))
    assert error.startswith("InvalidUsage:") and "past the end" in error, error
    mscclpp.synchronize(20)
    with pytest.raises(Error):
        service.close()


def test_what_the_handler_of_a_proxy_raised_is_told_to_whoever_waits_for_the_kernel():
    def handler(trigger):
        raise ZeroDivisionError("in the handler")

    positions, kernel = mscclpp.GpuBuffer(1, dtype=numpy.uint64), ranks.kernel("plain.cu", "push")
    proxy = mscclpp.Proxy(handler)
    kernel.launch_kernel((proxy, 1, positions), 1, 1, 0, None)
    error = said(lambda: mscclpp.synchronize(0.3))
    assert error.startswith("Timeout:") and "may wait for a proxy of " in error, error
    with contextlib.suppress(ZeroDivisionError):  # it may have been raised already
        proxy.start()
    error = said(lambda: mscclpp.synchronize(20))
    assert error.startswith("Aborted:") and "the handler raised: ZeroDivisionError: in the handler" in error, error
    mscclpp.synchronize(20)
    with pytest.raises(ZeroDivisionError):
        proxy.close()
