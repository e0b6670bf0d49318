"""Calls everything with wrong arguments of all kinds, and prints how often. `test_fuzz.py` starts it.

No call may end the process, and no error may be worded for Rust programs. Addresses are an exception: a number in place
of an address means memory, by contract.
"""

import functools
import inspect
import operator
import random
import re
import sys
import threading

import mscclpp
import numpy
from mscclpp import _mscclpp
from mscclpp.ep import Experts

#: Methods whose arguments are addresses or handles of a driver, and how they are called without these.
ADDRESSES = {"send": 0, "recv": 0, "all_gather": 0, "update_and_sync": 2, "launch": 5, "enqueue": 0}
#: Methods that end only when another rank or a kernel acts.
WAITS = {"wait", "get", "initialize", "connect", "from_env"}
#: Methods that would end the objects that are needed for other calls.
ENDS = {"abort", "close"}


#: Words that appear in error texts of Rust, and in none of Python.
OF_RUST = re.compile(
    r"[A-Z]\w+::\w|\br#|HostTo(Device|Host)Semaphore|\bDeviceToDevice|\b[iu](8|16|32|64|size)\b|\bPy(?!Torch)[A-Z]|integral"
)


def check_text(error):
    text = " ".join([str(error), *getattr(error, "__notes__", [])])
    # NumPy has types with such names.
    assert type(error).__module__ == "numpy" or not OF_RUST.search(text), text


def instances():
    """Returns a working object of each class."""
    bootstrap = mscclpp.TcpBootstrap.create(0, 1)
    id = mscclpp.TcpBootstrap.create_unique_id()
    bootstrap.initialize(id)
    comm = mscclpp.Communicator(bootstrap)
    connection = comm.connect(mscclpp.Transport.CudaIpc, 0).get()
    host = comm.connect(mscclpp.EndpointConfig(mscclpp.Transport.Ethernet, mscclpp.DeviceType.CPU), 0).get()
    buffer = mscclpp.GpuBuffer(64)
    memory = comm.register_memory(buffer.data.ptr, buffer.nbytes, mscclpp.Transport.CudaIpc)
    comm.send_memory(memory, 0)
    theirs = comm.recv_memory(0).get()
    semaphore = comm.build_semaphore(connection, 0).get()
    service = mscclpp.ProxyService()
    number = service.add_semaphore(comm.build_semaphore(connection, 0).get())
    port = service.port_channel(number, service.add_memory(theirs), service.add_memory(memory))
    channel = mscclpp.MemoryChannel(semaphore, theirs, memory)
    endpoint = comm.context().create_endpoint(mscclpp.Transport.CudaIpc)
    config = mscclpp.EndpointConfig()
    proxy = mscclpp.Proxy(lambda trigger: mscclpp.ProxyHandlerResult.Continue)
    collectives = mscclpp.Collectives(comm, max_blocks=1)
    experts = Experts(comm, experts=2, top_k=1, hidden=8, capacity=4, tag=79)
    objects = [
        bootstrap, id, comm, comm.context(), connection, host, memory, theirs, semaphore, service, port, channel, endpoint,
        config, config.ib, config.device, proxy, mscclpp.Fifo(), mscclpp.RawGpuBuffer(64), mscclpp.env(),
        mscclpp.SemaphoreStub(connection), mscclpp.Host2DeviceSemaphore(comm, connection),
        mscclpp.Host2HostSemaphore(comm, host), mscclpp.MemoryDevice2DeviceSemaphore(semaphore),
        mscclpp.BaseMemoryChannel(semaphore), service.base_port_channel(number), mscclpp.ProxyTrigger(),
        mscclpp.TransportFlags(), mscclpp.Transport.CudaIpc, mscclpp.DeviceType.GPU, mscclpp.IbMode.Host,
        mscclpp.ErrorCode.Timeout, mscclpp.GpuBufferGranularity.MultiCastMinimum, mscclpp.ProxyHandlerResult.Stop,
        mscclpp.BaseProxyService(), channel.device_handle(), port.device_handle(), mscclpp.Fifo().device_handle(),
        comm.recv_memory(0, 77), comm.connect(mscclpp.Transport.CudaIpc, 0, 78), collectives, experts,
        # Empty objects.
        mscclpp.Semaphore(), mscclpp.RegisteredMemory(), mscclpp.MemoryChannel(), mscclpp.BaseMemoryChannel(),
        mscclpp.PortChannel(), mscclpp.BasePortChannel(), mscclpp.UniqueId(),
    ]  # fmt: skip
    return objects, buffer


class Hostile:
    """Raises whenever an attribute is asked for."""

    def __getattr__(self, name):
        raise ZeroDivisionError(name)

    def __index__(self):
        raise ZeroDivisionError("index")


def values(objects):
    wrong = [
        None, True, -1, 0, 1, 7, 2**31, 2**32, 2**63, 2**64, 2**200, -(2**63), 0.5, float("nan"), float("inf"), -1e300,
        "", "x", "127.0.0.1:1", "lo:127.0.0.1:x", "a" * 5000, "\0", "\ud800", b"", b"x" * 128, b"\0" * 4096, bytearray(3),
        [], [1, -1, 300], ["a"], (), {}, {1: 2}, {"a": 1}, set(), object(), Hostile(), len, print, type, int, Exception(),
        numpy.zeros(0), numpy.zeros((3, 3))[:, 1], numpy.float64(1), numpy.array(object()), memoryview(b"abc"), range(3),
        lambda *_: None, iter([]), ..., NotImplemented,
    ]  # fmt: skip
    return wrong + objects


def is_number(value):
    """Whether it may stand for an address: also True, and members of enumerations."""
    try:
        operator.index(value)
    except Exception:
        return False
    return True


def arguments(random, call, pool):
    n = random.choice([0, 1, 1, 2, 2, 3, 4, 5, 6])
    given = [random.choice(pool) for _ in range(n)]
    named = {}
    try:
        names = [name for name in inspect.signature(call).parameters if name not in ("self", "args", "kwargs")]
    except (TypeError, ValueError):
        names = []
    if names and random.random() < 0.5:
        given = given[: random.randrange(len(names) + 1)]
        named = {name: random.choice(pool) for name in names[len(given) :] if random.random() < 0.8}
    return given, named


def main(seed, rounds):
    rng = random.Random(seed)
    objects, buffer = instances()
    pool = values(objects)
    no_numbers = [value for value in pool if not is_number(value)]
    classes = [cls for name, cls in vars(_mscclpp).items() if isinstance(cls, type) and not name.startswith("Cpp")]
    targets = [(cls.__name__, cls) for cls in classes]
    for object_ in objects:
        for name in dir(type(object_)):
            is_special = name.startswith("_") and name not in ("__setstate__", "__getstate__", "__eq__", "__or__")
            if not is_special and name not in WAITS | ENDS and callable(getattr(object_, name, None)):
                targets.append((name, getattr(object_, name)))
    targets += [(name, getattr(mscclpp.utils, name)) for name in ("pack", "Kernel", "KernelBuilder", "is_torch_tensor")]
    targets += [
        ("GpuBuffer", mscclpp.GpuBuffer),
        ("CommGroup", mscclpp.CommGroup),
        ("Collectives", functools.partial(mscclpp.Collectives, objects[2])),
        ("Experts", functools.partial(Experts, objects[2], experts=2, top_k=1, hidden=8, capacity=4)),
        ("synchronize", mscclpp.synchronize),
    ]
    group = mscclpp.CommGroup.__new__(mscclpp.CommGroup)
    group._join(objects[0])
    quick = "send my_ib_device make_connection register_local_memory make_semaphores register_memory_with_proxy".split()
    targets += [(name, getattr(group, name)) for name in quick]
    calls = raised = 0
    for _ in range(rounds):
        name, call = rng.choice(targets)
        given, named = arguments(rng, call, no_numbers if name in ADDRESSES else pool)
        if name == "recv":
            named["timeout_sec"] = 0.01
        if name == "synchronize":
            given, named = given[:0], {"timeout_sec": 0.01, "abort": rng.choice(pool[:60])}
        calls += 1
        # A call that is right by chance may wait for a peer: then this program must be changed.
        watch = threading.Timer(60, lambda: print(f"{name} waits: {given} {named}", file=sys.stderr, flush=True))
        watch.start()
        try:
            call(*given, **named)
        except Exception as error:
            raised += 1
            check_text(error)
        finally:
            watch.cancel()
    for object_ in objects:
        for name in dir(object_):
            if not name.startswith("_"):
                try:
                    setattr(object_, name, rng.choice(pool))
                except Exception as error:
                    raised += 1
                    check_text(error)
                calls += 1
    print(calls, raised)


if __name__ == "__main__":
    import mscclpp.utils

    main(int(sys.argv[1]), int(sys.argv[2]))
