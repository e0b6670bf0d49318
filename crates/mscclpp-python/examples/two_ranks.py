"""An all_reduce between two ranks, here threads of one process: MSCCLPP_PLATFORM=sim python two_ranks.py"""

# ANCHOR: program
import sys
from concurrent.futures import ThreadPoolExecutor

import mscclpp
import numpy as np

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:15507"  # where the ranks meet


def main(rank: int) -> None:
    group = mscclpp.CommGroup(interfaceIpPortTrio=ADDRESS, rank=rank, size=2)
    mscclpp.set_device(rank % mscclpp.device_count())
    comm = mscclpp.Collectives(group)
    numbers = mscclpp.GpuBuffer(1024, np.float32)  # of CuPy on a GPU, of NumPy on a simulated device
    numbers.set(np.full(1024, rank + 1, np.float32))
    comm.all_reduce(numbers)  # in place
    comm.synchronize()
    print(f"rank {rank}: every sum is {numbers.get()[0]:g}", flush=True)
    group.barrier()  # no rank ends before the other has its sums


with ThreadPoolExecutor(2) as threads:
    list(threads.map(main, range(2)))  # raises what a rank has raised
# ANCHOR_END: program
