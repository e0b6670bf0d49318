"""An all_reduce of the ranks that a launcher has started, on one node or several: torchrun --nproc-per-node 2 from_env.py"""

# ANCHOR: program
import mscclpp
import numpy as np

comm = mscclpp.Collectives.from_env()
numbers = mscclpp.GpuBuffer(1024, np.float32)
numbers.set(np.full(1024, comm.rank + 1, np.float32))
comm.all_reduce(numbers)
comm.barrier()  # no rank ends before the others have their sums
comm.synchronize()
print(f"rank {comm.rank} of {comm.size} on GPU {comm.device}: every sum is {numbers.get()[0]:g}", flush=True)
# ANCHOR_END: program
