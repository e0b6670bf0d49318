"""Two ranks make different calls, and are told so: MSCCLPP_PLATFORM=sim python wrong_calls.py"""

# ANCHOR: program
import sys
from concurrent.futures import ThreadPoolExecutor

import mscclpp
import numpy as np

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:15508"


def main(rank: int) -> None:
    group = mscclpp.CommGroup(interfaceIpPortTrio=ADDRESS, rank=rank, size=2)
    mscclpp.set_device(rank % mscclpp.device_count())
    comm = mscclpp.Collectives(group, check_calls=True, timeout=30)
    numbers = mscclpp.GpuBuffer(1024, np.float32)
    try:
        comm.all_reduce(numbers, "sum" if rank == 0 else "max")  # wrong: the operations differ
        comm.synchronize()
    except mscclpp.Error as error:
        print(f"on rank {rank}: {error}", flush=True)


with ThreadPoolExecutor(2) as threads:
    list(threads.map(main, range(2)))
# ANCHOR_END: program
