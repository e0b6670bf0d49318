"""Two ranks send tokens to their experts and sum up what comes back: MSCCLPP_PLATFORM=sim python experts.py"""

# ANCHOR: program
import sys
from concurrent.futures import ThreadPoolExecutor

import mscclpp
import numpy as np
from mscclpp.ep import Experts

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:15508"  # where the ranks meet


def main(rank: int) -> None:
    group = mscclpp.CommGroup(interfaceIpPortTrio=ADDRESS, rank=rank, size=2)
    mscclpp.set_device(rank % mscclpp.device_count())
    # Rank 0 has the experts 0 and 1, rank 1 has 2 and 3.
    experts = Experts(group, experts=4, top_k=2, hidden=8, capacity=16, dtype="float32")

    rows = mscclpp.GpuBuffer((3, 8), np.float32)  # of CuPy on a GPU, of NumPy on a simulated device
    ids = mscclpp.GpuBuffer((3, 2), np.int32)
    rows.set(np.array([[1] * 8, [2] * 8, [3] * 8], np.float32))
    ids.set(np.array([[0, 2], [1, 3], [0, 3]], np.int32))
    routed = experts.dispatch(rows, ids, layout="expert")
    experts.synchronize()  # NumPy computes at once, not in a stream
    (tokens,) = routed.out  # [2, 32, 8]: an expert has room for all tokens of both ranks
    for n in range(experts.n_local):
        tokens[n] *= 2 * rank + n + 1  # the experts multiply by 1, 2, 3 and 4
    sums = experts.combine(routed, tokens)
    experts.synchronize()
    print(f"rank {rank}: {routed.rows_of_experts()} tokens came, the sums are {sums.get()[:, 0].tolist()}", flush=True)
    group.barrier()  # no rank ends before the other has its sums


with ThreadPoolExecutor(2) as threads:
    list(threads.map(main, range(2)))  # raises what a rank has raised
# ANCHOR_END: program
