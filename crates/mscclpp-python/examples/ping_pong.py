"""Two ranks, whose kernels copy an array to and fro through a memory channel.

    MSCCLPP_PLATFORM=sim python ping_pong.py

starts both, on simulated devices; without the variable they run on GPUs, and need CuPy. Each prints what it has in the end.
"""

# ANCHOR: imports
import os
import subprocess
import sys

import mscclpp
import numpy as np
from mscclpp import CommGroup, GpuBuffer, Transport
from mscclpp.utils import KernelBuilder

HERE = os.path.dirname(os.path.abspath(__file__))
# ANCHOR_END: imports


# ANCHOR: main
def main(rank: int, address: str) -> None:
    group = CommGroup(interfaceIpPortTrio=address, rank=rank, size=2)
    peer = 1 - rank
    mscclpp.set_device(rank % mscclpp.device_count())
    connections = group.make_connection([peer], Transport.CudaIpc)
    data = GpuBuffer(1000, dtype=np.int32)
    channel = group.make_memory_channels(data, connections)[peer]

    outcome = GpuBuffer(1, dtype=np.int32)
    kernel = KernelBuilder("ping_pong.cu", "ping_pong", HERE).get_compiled_kernel()
    group.barrier()
    kernel.launch_kernel((channel, rank, 10, data.nbytes, outcome), 1, 64, 0, None)
    mscclpp.synchronize()
    print(f"rank {rank}: {int(outcome[0])} rounds, each element is {int(data[0])}", flush=True)
    group.barrier()
    # ANCHOR_END: main


if __name__ == "__main__":
    if len(sys.argv) == 3:
        main(int(sys.argv[1]), sys.argv[2])
    else:
        meeting = sys.argv[1] if len(sys.argv) == 2 else "127.0.0.1:15506"
        ranks = [subprocess.Popen([sys.executable, __file__, str(rank), meeting]) for rank in range(2)]
        sys.exit(max(abs(rank.wait(300)) for rank in ranks))
