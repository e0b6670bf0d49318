"""Ranks as processes: each runs a function of a test module, on its own device if there are enough."""

import functools
import logging
import logging.handlers
import multiprocessing
import os
import queue
import signal
import socket
import subprocess
import sys
import time
import traceback

import mscclpp
import pytest
from mscclpp import CommGroup
from mscclpp.utils import KernelBuilder

SPAWN = multiprocessing.get_context("spawn")
KERNELS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kernels")
EXAMPLES = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "examples")


#: Sockets that are bound and do not listen.
_RESERVED = []


def free_address():
    """Returns an address of this node at which no process listens. This process keeps its port until it ends.

    Linux gives such a port to nobody who asks for any port. A listener that asks for this one with `SO_REUSEADDR`, as
    those of this library and of PyTorch's stores do, gets it.
    """
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("", 0))
    _RESERVED.append(bound)
    return f"127.0.0.1:{bound.getsockname()[1]}"


def _rank(function, rank, n, address, args, outcome):
    try:
        mscclpp.set_device(rank % mscclpp.device_count())
        outcome.send((True, getattr(function, "of_rank", function)(rank, n, address, *args)))
    except BaseException:
        outcome.send((False, traceback.format_exc()))
        raise SystemExit(1) from None


class Ranks:
    """`n` processes that run `function(rank, n, address, *args)`."""

    def __init__(self, n, function, *args):
        address = free_address()
        self.processes, self.outcomes = [], []
        for rank in range(n):
            here, there = SPAWN.Pipe(duplex=False)
            process = SPAWN.Process(target=_rank, args=(function, rank, n, address, args, there), daemon=True)
            process.start()
            there.close()
            self.processes.append(process)
            self.outcomes.append(here)

    def kill(self, rank):
        os.kill(self.processes[rank].pid, signal.SIGKILL)

    def outcome(self, rank, timeout=120):
        """Returns the value that the function of a rank returned. An exception of the function fails the test."""
        assert self.outcomes[rank].poll(timeout), f"rank {rank} did not finish within {timeout} s"
        try:
            good, value = self.outcomes[rank].recv()
        except EOFError:
            self.processes[rank].join(10)
            raise AssertionError(f"rank {rank} ended with {self.processes[rank].exitcode}") from None
        assert good, f"rank {rank}:\n{value}"
        return value

    def join(self, timeout=30):
        """Waits for the processes to end without an error."""
        deadline = time.monotonic() + timeout
        for rank, process in enumerate(self.processes):
            process.join(max(0.1, deadline - time.monotonic()))
            assert process.exitcode == 0, f"rank {rank} ended with {process.exitcode}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            if process.is_alive():
                process.kill()
            process.join(10)


def run(n, function, *args, timeout=120):
    """Returns the values that the function returned on all ranks."""
    with Ranks(n, function, *args) as ranks:
        values = [ranks.outcome(rank, timeout) for rank in range(n)]
        ranks.join(timeout)
        return values


def each_of(*numbers, timeout=120):
    """Makes a test of a function of a rank, for each of these numbers of ranks."""

    def made(function):
        @functools.wraps(function)
        @pytest.mark.parametrize("n", numbers)
        def test(n):
            run(n, test, timeout=timeout)

        # Else pytest takes the arguments of the function for those of the test.
        del test.__wrapped__
        test.of_rank = function
        return test

    return made


def group(rank, n, address):
    """Returns the group of a rank."""
    return CommGroup(interfaceIpPortTrio=address, rank=rank, size=n)


def pair(rank, n, address):
    """Returns the group of one of two ranks, the number of the other, and the connections to it."""
    made, peer = group(rank, n, address), 1 - rank
    return made, peer, made.make_connection([peer], mscclpp.Transport.CudaIpc)


def alone():
    """Returns the communicator of a job of one rank, and its connection with itself."""
    bootstrap = mscclpp.TcpBootstrap.create(0, 1)
    bootstrap.initialize(mscclpp.TcpBootstrap.create_unique_id())
    comm = mscclpp.Communicator(bootstrap)
    return comm, comm.connect(mscclpp.Transport.CudaIpc, 0).get()


def python(*arguments, timeout=300, cwd=None, **environment):
    """Starts a Python program, and returns what it printed. A variable of the environment that is None is removed."""
    environment = {name: value for name, value in {**os.environ, **environment}.items() if value is not None}
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=cwd, env=environment)


def next_line_about_a_wait(action, timeout=60):
    """Does something, and returns the first line after that about a wait of this process."""
    lines, logger = queue.SimpleQueue(), logging.getLogger("mscclpp.wait")
    handler = logging.handlers.QueueHandler(lines)
    logger.addHandler(handler)
    mscclpp.log_to_python("WARNING")
    action()
    line = lines.get(timeout=timeout).getMessage()
    logger.removeHandler(handler)
    return line


def kernel(file, name, folder=KERNELS, **macros):
    """Compiles a kernel of `tests/kernels`, or of another folder."""
    return KernelBuilder(file, name, folder, macros).get_compiled_kernel()
