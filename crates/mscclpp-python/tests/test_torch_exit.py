"""Processes that end while threads of the torch backend are inside calls have the exit code that they ask for."""

import os

import pytest

import ranks

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(os.environ["MSCCLPP_PLATFORM"] != "sim", reason="of simulated devices")

#: Ways in which a program ends, and the exit codes.
ENDS = {
    "return": ("pass", 0),
    "exit": ("sys.exit(3)", 3),
    "exception": ("raise KeyError('the end')", 1),
    "thread": ("threading.Thread(target=lambda: time.sleep(0.05)).start()", 0),
    "atexit": ("atexit.register(torch.ones(1).sum)", 0),
    "destroyed": ("dist.destroy_process_group()", 0),
}
#: What goes on at the end, one after the other. In the first, rank 0 does not come.
GOING_ON = """
if turn % 3 == 0:  # a communicator that is being made
    kept = dist.isend(torch.ones(2), 0) if rank == 1 else None
elif turn % 3 == 1:  # calls that nobody waits for
    kept = [dist.all_reduce(torch.ones(1 << 16), async_op=True) for _ in range(3)]
else:  # a thread that is in torch again and again
    ended, store = threading.Event(), dist.HashStore()
    def calls():
        while not ended.is_set():
            store.check(["nothing"])
    assert mscclpp._threads.start("again-and-again", calls, ended.set)
"""
TURNS = 6
PROGRAM = """
import atexit, os, sys, tempfile, threading, time
import torch, torch.distributed as dist
import mscclpp, mscclpp.torch

for turn in {turns}:
    folder = tempfile.mkdtemp()
    rank = 0 if os.fork() == 0 else 1 if os.fork() == 0 else None
    if rank is not None:
        break
    codes = sorted(os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(2))
    print(*codes, flush=True)
else:
    os._exit(0)

mscclpp.set_device(rank)
dist.init_process_group("mscclpp", store=dist.FileStore(folder + "/store", 2), rank=rank, world_size=2)
{going_on}
time.sleep(0.1 + turn % 7 / 100)
{end}
"""


@pytest.mark.parametrize("end", ENDS)
def test_a_process_ends_as_it_wants_to(end):
    how, code = ENDS[end]
    # A group that is destroyed makes the messages that were put off, and waits for the other rank.
    turns = [turn for turn in range(TURNS) if end != "destroyed" or turn % 3]
    program = PROGRAM.format(turns=turns, going_on=GOING_ON, end=how)
    run = ranks.python("-W", "ignore", "-c", program, timeout=600, MSCCLPP_TORCH_SIMULATED="1")
    assert run.stdout.splitlines() == [f"{code} {code}"] * len(turns), run.stderr
