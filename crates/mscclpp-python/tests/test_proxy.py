"""FIFOs and proxies of your own."""

import gc
import threading
import weakref

import mscclpp
import numpy
import pytest
from mscclpp import Proxy, ProxyHandlerResult, ProxyTrigger
from mscclpp.utils import pack

import ranks


@pytest.fixture
def push():
    """Launches a kernel in which each thread pushes a trigger. Returns the memory for their positions."""
    kept = []
    yield lambda handle, first, n: _push(kept, handle, first, n)
    mscclpp.synchronize(60)


def _push(kept, handle, first, n):
    positions = mscclpp.GpuBuffer(n, dtype=numpy.uint64)
    kept.append(positions)  # what a kernel works on must live until it has ended
    kernel = ranks.kernel("plain.cu", "push", EXTRA=0)
    kernel.launch_kernel(pack(handle.raw, numpy.uint64(first), positions), 1, n, 0, None)
    return positions


def test_the_host_polls_a_fifo(push):
    fifo = mscclpp.Fifo(8)
    assert fifo.poll() is None and fifo.size() == 8
    handle = fifo.device_handle()
    assert handle.size == 8 and handle.triggers and handle.head and handle.tail
    positions = push(handle, 100, 4)
    seen = []
    while len(seen) < 4:
        trigger = fifo.poll()
        if trigger is not None:
            assert trigger == fifo.poll(), "it stays until pop"
            seen.append((trigger.fst, trigger.snd))
            fifo.pop()
    mscclpp.synchronize(60)
    assert sorted(seen) == [(100 + i, 7) for i in range(4)] and sorted(positions.tolist()) == [0, 1, 2, 3]
    assert [seen[int(positions[i])] for i in range(4)] == [(100 + i, 7) for i in range(4)]
    trigger = ProxyTrigger()
    trigger.fst, trigger.snd = 5, 6
    assert (trigger.fst, trigger.snd) == (5, 6)


def test_an_aborted_fifo_ends_pushes_that_wait(push):
    fifo = mscclpp.Fifo(8)
    push(fifo.device_handle(), 0, 16)
    with pytest.raises(mscclpp.Error) as raised:
        mscclpp.synchronize(0.3)
    assert raised.value.code == mscclpp.ErrorCode.Timeout
    fifo.abort()
    mscclpp.synchronize(60)


def test_a_handler_of_ones_own(push):
    seen, threads = [], set()

    def handler(trigger):
        threads.add(threading.get_ident())
        seen.append((trigger.fst, trigger.snd))
        return ProxyHandlerResult.Stop if trigger.fst == 99 else ProxyHandlerResult.Continue

    proxy = Proxy(handler, fifo_size=32)
    with proxy:
        push(proxy.device_handle(), 10, 8)
        mscclpp.synchronize(60)
        assert sorted(seen) == [(10 + i, 7) for i in range(8)]
        assert proxy.is_running() and threading.get_ident() not in threads
        push(proxy.device_handle(), 99, 1)
        mscclpp.synchronize(60)
        assert not proxy.is_running()
    proxy.start(blocking=True)
    push(proxy.device_handle(), 1, 1)
    # A launch returns before its kernel pushes, and triggers that come after `stop` would not be taken.
    mscclpp.synchronize(60)
    proxy.stop()
    assert seen[-1] == (1, 7) and not proxy.is_running()


def test_a_retry_gets_the_same_trigger_again(push):
    seen = []

    def handler(trigger):
        seen.append(trigger.fst)
        return ProxyHandlerResult.Retry if len(seen) < 3 else ProxyHandlerResult.Continue

    with Proxy(handler) as proxy:
        push(proxy.device_handle(), 5, 1)
        mscclpp.synchronize(60)
    assert seen == [5, 5, 5]


@pytest.mark.parametrize(
    ("answer", "raised", "words"),
    [(ZeroDivisionError("in the handler"), ZeroDivisionError, "in the handler"), ("yes", TypeError, "returned str")],
)
def test_what_a_handler_raises_comes_out_of_stop(push, answer, raised, words):
    def handler(trigger):
        if isinstance(answer, Exception):
            raise answer
        return answer

    proxy = Proxy(handler)
    proxy.start(blocking=True)
    push(proxy.device_handle(), 1, 1)
    mscclpp.synchronize(60)
    with pytest.raises(raised, match=words):
        proxy.stop()
    with pytest.raises(raised, match=words):
        proxy.start()


def test_a_running_proxy_does_not_disturb_the_exit_of_the_interpreter():
    program = """
import mscclpp
proxy = mscclpp.Proxy(lambda trigger: mscclpp.ProxyHandlerResult.Continue)
proxy.start(blocking=True)
service = mscclpp.ProxyService()
service.start_proxy(blocking=True)
print("started")
"""
    run = ranks.python("-c", program, timeout=60)
    assert (run.returncode, run.stdout, run.stderr) == (0, "started\n", "")


def test_a_proxy_whose_handler_is_a_method_of_its_owner_is_freed():
    class Service:
        def __init__(self):
            self.proxy = Proxy(self.handle)

        def handle(self, trigger):
            return ProxyHandlerResult.Continue

    services = [Service(), Service()]
    services[1].proxy.start(blocking=True)
    gone = [weakref.ref(service) for service in services]
    gc.collect()
    assert all(service() for service in gone) and services[1].proxy.is_running()
    del services
    gc.collect()
    assert not any(service() for service in gone)


def test_a_service_that_is_aborted_says_so():
    service = mscclpp.ProxyService()
    service.health()
    service.abort("for a test")
    with pytest.raises(mscclpp.Error, match="for a test") as caught:
        service.start_proxy()
    assert caught.value.code == mscclpp.ErrorCode.Aborted


def test_a_service_runs_within_a_with_statement():
    comm, connection = ranks.alone()
    with pytest.raises(ZeroDivisionError), mscclpp.ProxyService() as service:
        assert isinstance(service, mscclpp.ProxyService)
        service.build_and_add_semaphore(comm, connection)
        raise ZeroDivisionError
    with service:
        service.health()
    service.stop_proxy()  # once more does no harm


def test_a_service_derived_in_python():
    class Service(mscclpp.BaseProxyService):
        def __init__(self, name):
            self.name = name

        def start_proxy(self, blocking=False):
            return f"{self.name} started"

    service = Service("mine")
    assert service.start_proxy() == "mine started"
    with pytest.raises(NotImplementedError, match="stop_proxy"):
        service.stop_proxy()
    assert isinstance(mscclpp.ProxyService(), mscclpp.BaseProxyService)
