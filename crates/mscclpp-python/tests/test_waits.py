"""Waits let other threads run; Ctrl-C ends a wait in the main thread, and an abort ends one in other threads."""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

import mscclpp
import numpy
import pytest
from mscclpp.utils import pack

import ranks


@dataclass
class Wait:
    """Programs: the lines before, the call that does not return, and the call of another thread that ends it."""

    before: str
    call: str
    abort: str | None = None


#: The definitions that all programs need.
HELP = f"""
import os, signal, subprocess, sys, threading, time
import mscclpp
import numpy
from mscclpp import Communicator, EndpointConfig, Error, ErrorCode, TcpBootstrap, Transport
from mscclpp.utils import KernelBuilder, pack

# A shell starts background processes with this signal ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
address = {{address!r}}
CPU = EndpointConfig(Transport.Ethernet, mscclpp.DeviceType.CPU)

def alone():
    bootstrap = TcpBootstrap.create(0, 1)
    bootstrap.initialize(TcpBootstrap.create_unique_id())
    return bootstrap

def first_of_two():
    peer, bootstrap = TcpBootstrap.create(1, 2), TcpBootstrap.create(0, 2)
    thread = threading.Thread(target=peer.initialize, args=(address,))
    thread.start()
    bootstrap.initialize(address)
    thread.join()
    return bootstrap, peer

def kernel(file, name):
    return KernelBuilder(file, name, {ranks.KERNELS!r}, {{{{"EXTRA": 0}}}}).get_compiled_kernel()
"""

#: A peer that sends memory over Ethernet and then does nothing.
STOPPED_PEER = """
import ctypes, os, signal, sys, mscclpp
bootstrap = mscclpp.TcpBootstrap.create(1, 2)
bootstrap.initialize(sys.argv[1])
comm = mscclpp.Communicator(bootstrap)
config = mscclpp.EndpointConfig(mscclpp.Transport.Ethernet, mscclpp.DeviceType.CPU)
connection = comm.connect(config, 0).get()
memory = (ctypes.c_char * (64 << 20))()
ours = comm.register_memory(ctypes.addressof(memory), len(memory), mscclpp.Transport.Ethernet)
comm.send_memory(ours, 0)
bootstrap.recv(0, 5)
print("stopping", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""

WAITS = {
    "initialize": Wait(
        "bootstrap = TcpBootstrap.create(0, 2)", "bootstrap.initialize(address, 60)", "bootstrap.abort()"
    ),
    "recv": Wait("bootstrap = alone()", "bootstrap.recv(0, 1)", "bootstrap.abort()"),
    "barrier": Wait("bootstrap, peer = first_of_two()", "bootstrap.barrier()", "bootstrap.abort()"),
    "all_gather": Wait(
        "bootstrap, peer = first_of_two()", "bootstrap.all_gather(bytearray(16), 8)", "bootstrap.abort()"
    ),
    "get": Wait("comm = Communicator(alone()); future = comm.recv_memory(0)", "future.get()", "comm.abort()"),
    "get of a connection": Wait(
        "bootstrap, peer = first_of_two(); comm = Communicator(bootstrap); future = comm.connect(CPU, 1)",
        "future.get()",
        "comm.abort()",
    ),
    "connect_all": Wait(
        "bootstrap, peer = first_of_two(); comm = Communicator(bootstrap)",
        "comm.connect_all(CPU, [1, 0])",
        "comm.abort()",
    ),
    "a semaphore built": Wait(
        """
bootstrap, peer = first_of_two()
comm, theirs = Communicator(bootstrap), Communicator(peer)
pending, other = comm.connect(CPU, 1), theirs.connect(CPU, 0)
thread = threading.Thread(target=other.get)
thread.start()
connection = pending.get()
thread.join()
""",
        "mscclpp.Host2HostSemaphore(comm, connection)",
        "comm.abort()",
    ),
    "wait": Wait(
        """
comm = Communicator(alone())
semaphore = mscclpp.Host2HostSemaphore(comm, comm.connect(CPU, 0).get())
""",
        "semaphore.wait(-1)",
        "semaphore.abort()",
    ),
    "flush": Wait(
        f"""
peer = subprocess.Popen([sys.executable, "-c", {STOPPED_PEER!r}, address], stdout=subprocess.PIPE)
print("pid", peer.pid, flush=True)
bootstrap = TcpBootstrap.create(0, 2)
bootstrap.initialize(address)
comm = Communicator(bootstrap)
connection = comm.connect(CPU, 1).get()
theirs = comm.recv_memory(1).get()
data = numpy.zeros(theirs.size(), dtype=numpy.uint8)
ours = comm.register_memory(data.ctypes.data, data.nbytes, Transport.Ethernet)
connection.write(theirs, 0, ours, 0, 8)
connection.flush()
bootstrap.send(b"go", 1, 5)
assert peer.stdout.readline() == b"stopping\\n"
connection.write(theirs, 0, ours, 0, data.nbytes)
""",
        "connection.flush()",
        "comm.abort()",
    ),
    "synchronize": Wait(
        """
stop = mscclpp.GpuBuffer(1, dtype=numpy.int32)
kernel("plain.cu", "spin").launch_kernel((stop,), 1, 1, 0, None)
""",
        "mscclpp.synchronize()",
    ),
    "calls that are compared": Wait(
        """
comms, theirs = [Communicator(bootstrap) for bootstrap in first_of_two()], []
join = lambda comm: mscclpp.Collectives(comm, 0, check_calls=True)
thread = threading.Thread(target=lambda: theirs.append(join(comms[1])))
thread.start()
collectives = join(comms[0])
thread.join()
collectives.send(numpy.ones(8, numpy.float32), 1)  # which is complete, and the other rank does not receive
""",
        "collectives.synchronize(0)",
    ),
    "drop": Wait(
        """
entered, leave = threading.Event(), threading.Event()
def handler(trigger):
    entered.set()
    leave.wait()
    return mscclpp.ProxyHandlerResult.Continue
proxy = mscclpp.Proxy(handler)
proxy.start(blocking=True)
positions = mscclpp.GpuBuffer(1, dtype=numpy.uint64)
params = pack(proxy.device_handle().raw, numpy.uint64(1), positions)  # which keep nothing alive
kernel("plain.cu", "push").launch_kernel(params, 1, 1, 0, None)
entered.wait()
""",
        "del proxy",
        "leave.set()",
    ),
}


class Program:
    """A process that prints words. After 100 s at the latest, it is ended with the processes that it started."""

    def __init__(self, program):
        program = HELP.format(address=ranks.free_address()) + program
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([sys.executable, "-c", program], stdout=pipe, stderr=pipe, text=True)
        self.deadline = threading.Timer(100, self.process.kill)
        self.deadline.start()
        self.others = []

    def words(self):
        """Returns the words of the next line. Lines that name other processes are kept for the end."""
        while True:
            words = self.process.stdout.readline().split()
            if words[:1] != ["pid"]:
                assert words, self.process.stderr.read()
                return words
            self.others.append(int(words[1]))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.deadline.cancel()
        self.process.kill()
        for pid in self.others:
            os.kill(pid, signal.SIGKILL)
        self.process.communicate()


@pytest.mark.parametrize("wait", WAITS)
def test_ctrl_c_ends_a_wait(wait):
    program = f"""
{WAITS[wait].before}
try:
    print("ready", flush=True)
    {WAITS[wait].call}
    time.sleep(0)  # a destructor cannot raise, what comes behind it does
except KeyboardInterrupt:
    print("interrupted", time.time(), flush=True)
    os._exit(0)
print("ended by itself", flush=True)
"""
    with Program(program) as running:
        assert running.words() == ["ready"]
        time.sleep(0.5)
        pressed = time.time()
        running.process.send_signal(signal.SIGINT)
        word, at = running.words()
        # One second is the limit; a busy machine gets nine more.
        assert word == "interrupted" and float(at) - pressed < 10
        assert running.process.wait(30) == 0


@pytest.mark.parametrize("wait", [name for name, wait in WAITS.items() if wait.abort is not None])
def test_a_thread_that_waits_lets_others_run_and_an_abort_ends_it(wait):
    before, call, abort = WAITS[wait].before, WAITS[wait].call, WAITS[wait].abort
    program = f"""
{before}
outcome = []
def wait():
    global proxy
    try:
        {call}
        outcome.append("returned")
    except Error as error:
        outcome.append(error.code.name)
thread = threading.Thread(target=wait, daemon=True)
thread.start()
began = time.monotonic()
for _ in range(20):
    time.sleep(0.02)
ran, waits = time.monotonic() - began, thread.is_alive()
aborted = time.monotonic()
{abort}
thread.join(30)
print(ran, waits, time.monotonic() - aborted, outcome, flush=True)
os._exit(0)
"""
    with Program(program) as running:
        ran, waits, took, *outcome = running.words()
    assert float(ran) < 10 and waits == "True"
    # The limit is the same as above.
    assert float(took) < 10, outcome
    assert outcome == ["['returned']" if wait == "drop" else "['Aborted']"]


def alone(rank, n, address, how):
    group = ranks.group(rank, n, address)
    began = time.monotonic()
    with pytest.raises(mscclpp.Error) as caught:
        if rank == 0:
            how(group)
        else:
            # The rank that the others wait for in vain.
            group.recv(numpy.zeros(1, dtype=numpy.uint8), 0, 9)
    assert time.monotonic() - began < 30
    if rank == 0:
        assert caught.value.code == mscclpp.ErrorCode.Timeout
        group.communicator.abort("the end of the test")
    else:
        assert caught.value.code == mscclpp.ErrorCode.Aborted
    return str(caught.value)


def barrier(group):
    group.barrier(timeout_sec=0.3)


def all_gather(group):
    group.bootstrap.all_gather(bytearray(2), 1, timeout_sec=0.3)


def recv(group):
    group.bootstrap.recv(1, 3, timeout_sec=0.3)


@pytest.mark.parametrize(
    ("how", "what"),
    [(barrier, "barrier, waiting for rank 1,"), (all_gather, "all_gather"), (recv, "recv from rank 1 with tag 3")],
)
def test_time_outs_name_who_is_missing_and_the_whole_time(how, what):
    said = ranks.run(2, alone, how)[0]
    assert said.startswith(f"rank 0: {what}") and "timed out after 300.0ms" in said, said
    assert said.endswith("missing: rank 1"), said


def again(rank, n, address):
    group = ranks.group(rank, n, address)
    if rank == 1:
        assert bytes(group.bootstrap.recv(0, 1)) == b"now"
    else:
        with pytest.raises(mscclpp.Error):
            group.barrier(timeout_sec=0.1)
        with pytest.raises(mscclpp.Error, match="all_gather: barrier of this rank timed out"):
            group.bootstrap.all_gather(bytearray(2), 1)
        group.bootstrap.send(b"now", 1, 1)
    group.barrier()
    parts = bytearray([rank, rank])
    group.bootstrap.all_gather(parts, 1, timeout_sec=60)
    return list(parts)


def test_a_call_that_timed_out_is_repeated():
    assert ranks.run(2, again) == [[0, 1], [0, 1]]


def never_signalled(rank, n, address, how):
    group, peer, connections = ranks.pair(rank, n, address)
    data, outcome = mscclpp.GpuBuffer(64, dtype=numpy.int32), mscclpp.GpuBuffer(1, dtype=numpy.int32)
    channel = group.make_memory_channels(data, connections)[peer]
    kernel = ranks.kernel("ping_pong.cu", "ping_pong", ranks.EXAMPLES)
    group.barrier()
    said = None
    if rank == 0:
        # Rank 1 sends nothing.
        kernel.launch_kernel((channel, 0, 2, data.nbytes, outcome), 1, 32, 0, None)
        abort = {"channel": channel, "list": [channel], "communicator": group.communicator}[how]
        began = time.monotonic()
        with pytest.raises(mscclpp.Error) as caught:
            mscclpp.synchronize(0.5, abort=abort)
        assert time.monotonic() - began < 30
        said = f"{caught.value.code.name}: {caught.value}"
        mscclpp.synchronize(5)  # nothing is left running
        assert outcome[0] == -1, "the kernel's wait says that it ended"
        with pytest.raises(TypeError, match="'abort'.*int"):
            mscclpp.synchronize(1, abort=3)
    if how != "communicator":
        group.barrier()
    elif rank == 1:
        with pytest.raises(mscclpp.Error, match="did not finish within 500ms"):
            group.barrier()
    return said


@pytest.mark.parametrize("how", ["channel", "list", "communicator"])
def test_kernels_that_wait_in_vain_are_ended_and_the_peer_is_named(how):
    said = ranks.run(2, never_signalled, how)[0]
    assert said.startswith("Timeout:") and "rank 1" in said and "500ms" in said, said


def test_a_wait_that_goes_well_says_nothing():
    out = mscclpp.GpuBuffer(4, dtype=numpy.int32)
    ranks.kernel("plain.cu", "indices", EXTRA=0).launch_kernel(pack(out), 2, 2, 8, None)
    service = mscclpp.ProxyService()
    mscclpp.synchronize(60, abort=service)
    assert out.tolist() == [0, 1, 100, 101]
    service.health()


def test_a_long_wait_says_what_it_is_for():
    program = """
bootstrap, peer = first_of_two()
try:
    bootstrap.barrier(timeout_sec=14)
except Error as error:
    print(error.code.name, flush=True)
os._exit(0)
"""
    with Program(program) as running:
        out, err = running.process.communicate(timeout=60)
    assert out == "Timeout\n" and "waiting for" in err and "barrier" in err and "1" in err, err
