"""Ranks that find each other and exchange bytes."""

import contextlib
import ctypes
import os
import pickle
import re
import resource
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from mscclpp import Error, ErrorCode, TcpBootstrap

import ranks


def by_id(rank, n, address, ids):
    bootstrap = TcpBootstrap.create(rank, n)
    if rank == 0:
        id = TcpBootstrap.create_unique_id()
        for _ in range(n - 1):
            ids.put(pickle.dumps(id))
    else:
        id = pickle.loads(ids.get(timeout=60))
    bootstrap.initialize(id, timeout_sec=60)
    assert bootstrap.get_unique_id() == id
    return bootstrap.get_rank(), bootstrap.get_n_ranks(), bootstrap.get_n_ranks_per_node()


def test_ranks_meet_by_unique_id():
    ids = ranks.SPAWN.Queue()
    assert ranks.run(4, by_id, ids) == [(rank, 4, 4) for rank in range(4)]


def exchange(rank, n, address):
    import numpy

    bootstrap = TcpBootstrap.create(rank=rank, nRanks=n)
    bootstrap.initialize(address)
    peer = 1 - rank
    text = f"from {rank}".encode()
    address_of_text = ctypes.create_string_buffer(text, 6)
    bootstrap.send(ctypes.addressof(address_of_text), 6, peer, 1)
    bootstrap.send(text, peer, 2)
    bootstrap.send(data=bytearray(text), peer=peer, tag=3)
    bootstrap.send(numpy.arange(3, dtype=numpy.int32), 8, peer, 4)
    got = ctypes.create_string_buffer(6)
    bootstrap.recv(ctypes.addressof(got), 6, peer, 1)
    buffer = bytearray(6)
    bootstrap.recv(buffer, peer, 2)
    part = numpy.zeros(2, dtype=numpy.int32)
    bootstrap.recv(data=part, size=8, peer=peer, tag=4)
    parts = numpy.zeros(2 * n, dtype=numpy.int64)
    parts[2 * rank : 2 * rank + 2] = rank + 1
    bootstrap.all_gather(parts, 16)
    with pytest.raises(Error, match="5 bytes came where 6"):
        bootstrap.send(b"short", peer, 5)
        bootstrap.recv(bytearray(6), peer, 5)
    with pytest.raises(Error, match="writable"):
        bootstrap.recv(b"constant", peer, 6)
    with pytest.raises(TypeError, match="'peer'"):
        bootstrap.send(b"x", "one", 6)
    with pytest.raises(TypeError, match=r"send\(\) takes .*, and was given 1$"):
        bootstrap.send(b"x")
    bootstrap.barrier()
    return got.raw, bytes(buffer), bootstrap.recv(peer, 3), part.tolist(), parts.tolist()


def test_bytes_travel_by_address_buffer_and_value():
    first, second = ranks.run(2, exchange)
    assert first == (b"from 1", b"from 1", b"from 1", [0, 1], [1, 1, 2, 2])
    assert second == (b"from 0", b"from 0", b"from 0", [0, 1], [1, 1, 2, 2])


def test_who_did_not_come_is_named_in_time():
    start = time.monotonic()
    with pytest.raises(Error, match=r"timed out.*\b1\b") as caught:
        TcpBootstrap.create(0, 2).initialize(ranks.free_address(), 0.5)
    assert caught.value.code == ErrorCode.Timeout and time.monotonic() - start < 10
    for timeout in (-1, float("nan")):
        with pytest.raises(Error, match="timeout_sec"):
            TcpBootstrap.create(0, 1).initialize(ranks.free_address(), timeout)


def of_few_descriptors(rank, n, address, size, together):
    """Rank 0, which may open few descriptors; or all others, as threads. Returns the errors that they got."""

    def told(rank):
        with pytest.raises(Error, match="timed out") as caught:
            TcpBootstrap.create(rank, size).initialize(address, 6 if rank else 3)
        return str(caught.value)

    # The times count from here on: one process may have started seconds before the other.
    together.wait(60)
    if rank == 0:
        few = len(os.listdir("/proc/self/fd")) + 10
        # The soft limit alone would be raised to the hard one.
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, few))
        return [told(0)]
    with ThreadPoolExecutor(size) as others:
        return list(others.map(told, range(1, size)))


def test_all_ranks_say_that_rank_0_has_no_descriptor_left():
    root, others = ranks.run(2, of_few_descriptors, 24, ranks.SPAWN.Barrier(2))
    why = re.compile(r"rank 0 accepts no more connections: \d+ descriptors are open, see ulimit -n")
    assert all(why.search(text) for text in root + others), root + others
    assert "missing: rank" in root[0] and len(others) == 23


def test_no_network():
    alone = ["unshare", "-n"]
    if shutil.which(alone[0]) is None or subprocess.run([*alone, "true"], stderr=subprocess.DEVNULL).returncode != 0:
        pytest.skip("no network namespaces")
    program = """
import mscclpp
try:
    mscclpp.TcpBootstrap.create_unique_id()
except mscclpp.Error as error:
    print(error)
"""
    command = [*alone, sys.executable, "-c", program]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert said.startswith("no network interface is up") and "ip link set lo up" in said, said


def test_a_bootstrap_connects_once():
    bootstrap = TcpBootstrap.create(0, 1)
    bootstrap.initialize(TcpBootstrap.create_unique_id())
    bootstrap.barrier()
    with pytest.raises(Error, match="already"):
        bootstrap.initialize(ranks.free_address())
    with pytest.raises(TypeError, match="one of 'unique_id' and 'if_ip_port_trio'"):
        bootstrap.initialize()
    alone = TcpBootstrap.create(0, 1)
    alone.initialize(if_ip_port_trio=f"lo:{ranks.free_address()}", timeout_sec=5)
    with pytest.raises(Error, match="no unique id"):
        alone.get_unique_id()


def lost(rank, n, address, met):
    bootstrap = TcpBootstrap.create(rank, n)
    bootstrap.initialize(address)
    bootstrap.barrier()
    if rank == 1:
        met.set()
        time.sleep(100)
    start = time.monotonic()
    with pytest.raises(Error, match="rank 1") as caught:
        bootstrap.recv(1, 0)
    return caught.value.args[0], time.monotonic() - start < 30


def test_a_killed_peer_is_an_error_and_no_hang():
    met = ranks.SPAWN.Event()
    with ranks.Ranks(2, lost, met) as job:
        assert met.wait(60)
        job.kill(1)
        assert job.outcome(0) == (int(ErrorCode.RemoteError), True)


def in_threads(rank, n, address):
    bootstrap = TcpBootstrap.create(rank, n)
    bootstrap.initialize(address)
    got = {}

    def receive(tag):
        got[tag] = bootstrap.recv(1 - rank, tag)

    threads = [threading.Thread(target=receive, args=(tag,)) for tag in range(4)]
    for thread in threads:
        thread.start()
    for tag in reversed(range(4)):
        bootstrap.send(bytes([tag]), 1 - rank, tag)
    for thread in threads:
        thread.join(60)
    return got


def test_waits_of_threads_do_not_keep_others_from_working():
    assert ranks.run(2, in_threads) == [{tag: bytes([tag]) for tag in range(4)}] * 2


def aborted(rank, n, address):
    bootstrap = TcpBootstrap.create(rank, n)
    bootstrap.initialize(address)
    if rank == 0:
        bootstrap.abort("enough")
    with pytest.raises(Error, match="enough") as caught:
        bootstrap.barrier()
    return caught.value.code == ErrorCode.Aborted


def test_an_abort_ends_the_calls_of_all():
    assert ranks.run(2, aborted) == [True, True]


@ranks.each_of(2)
def test_a_buffer_cannot_be_resized_while_a_call_uses_it(rank, n, address):
    bootstrap = TcpBootstrap.create(rank, n)
    bootstrap.initialize(address)
    if rank == 1:
        bootstrap.recv(0, 1)
        bootstrap.send(b"in time", 0, 2)
        return
    place = bytearray(7)

    def resize():
        with contextlib.suppress(BufferError):
            while True:
                place.__init__(7)
        bootstrap.send(b"refused", 1, 1)

    thread = threading.Thread(target=resize, daemon=True)
    thread.start()
    bootstrap.recv(place, 1, 2, timeout_sec=60)
    thread.join()
    assert place == b"in time"
