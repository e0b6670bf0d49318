"""The race detector of simulated devices, which the environment switches on before the first kernel is made."""

import os
import pathlib
import subprocess
import sys

import mscclpp
import pytest

from device import sim_only
from ranks import EXAMPLES, KERNELS, free_address, python

pytestmark = sim_only

PROGRAM = """
import sys
import mscclpp, numpy
from mscclpp.utils import KernelBuilder

folder, order = sys.argv[1:]
numbers, flag, sum = (mscclpp.GpuBuffer(size, dtype=numpy.int32) for size in (16, 1, 1))
kernel = KernelBuilder("races.cu", "hand_over", folder, {"ORDER": f"mscclpp::{order}"}).get_compiled_kernel()
kernel.launch_kernel((numbers, flag, sum), 2, 1, 0, None)
try:
    mscclpp.synchronize(60)
    print("no error")
except mscclpp.Error as error:
    print(error)
print("---")
for race in mscclpp.races():
    assert isinstance(race, mscclpp.Race) and isinstance(race.later, mscclpp.RaceAccess)
    print(f"{race.earlier.what} at {race.earlier.place} | {race.later.what} at {race.later.place}")
    print(race.later.who)
    print(race.memory)
    print(race.hint)
    print(str(race) in repr(race) and str(race).startswith("race in " + race.memory))
print(sum.tolist())
"""


def run(order, races):
    """Returns the output of the program: the result of `synchronize`, the races, and the sum."""
    run = python("-c", PROGRAM, KERNELS, order, MSCCLPP_SIM_RACES=races)
    assert run.returncode == 0, run.stderr
    said, races = run.stdout.split("---\n")
    return said, races.splitlines()


def place(mark):
    lines = (pathlib.Path(KERNELS) / "races.cu").read_text().splitlines()
    [line] = [number for number, line in enumerate(lines, 1) if line.endswith(f"// @{mark}")]
    return f"races.cu:{line}"


def test_a_store_without_release_is_reported_with_both_lines():
    said, (accesses, who, memory, hint, texts_fit, _sum) = run("memoryOrderRelaxed", "1")
    assert accesses == f"write at {place('write')} | read at {place('read')}"
    assert who == "kernel hand_over on device 0, block [1, 0, 0], thread [0, 0, 0]"
    assert "memory of device 0 at" in memory and "(64 bytes), offset 0" in memory
    assert "releases nothing" in hint and texts_fit == "True"
    assert place("write") in said and place("read") in said and hint in said


def test_a_kernel_in_order_has_none():
    assert run("memoryOrderRelease", "1") == ("no error\n", ["[120]"])


RANKS = """
import sys
import mscclpp, ping_pong
from concurrent.futures import ThreadPoolExecutor

address, *rank = sys.argv[1:]
if rank:
    ping_pong.main(int(rank[0]), address)
else:
    with ThreadPoolExecutor(2) as threads:
        for rank in [threads.submit(ping_pong.main, rank, address) for rank in range(2)]:
            rank.result()
assert not mscclpp.races()
"""


def test_ranks_that_are_threads_are_seen_and_of_those_that_are_processes_a_line_says_what_is_not():
    environment = {**os.environ, "MSCCLPP_SIM_RACES": "1", "PYTHONPATH": os.pathsep.join([EXAMPLES, *sys.path])}

    def start(*args):
        command = [sys.executable, "-c", RANKS, *args]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)

    here, apart = free_address(), free_address()
    threads, *processes = start(here), start(apart, "0"), start(apart, "1")
    for run, lines in (threads, 0), *((process, 1) for process in processes):
        _, said = run.communicate(timeout=300)
        assert run.returncode == 0, said
        assert said.count("memory of another process is mapped") == lines, said


def test_nothing_is_looked_for_unless_the_environment_says_so():
    assert run("memoryOrderRelaxed", "0") == ("no error\n", ["[120]"])


def test_there_are_none_here():
    if os.environ.get("MSCCLPP_SIM_RACES") == "1":
        pytest.skip("the detector is on for all tests")
    assert mscclpp.races() == []
