"""An all_reduce of torch.distributed, through this library.

    torchrun --nproc-per-node 2 torch_ranks.py

On simulated devices, `MSCCLPP_PLATFORM=sim MSCCLPP_TORCH_SIMULATED=1` stands before it.
"""

# ANCHOR: program
import os

import mscclpp.torch  # noqa: F401 (makes the backend known)
import torch
import torch.distributed as dist

if torch.cuda.is_available():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("mscclpp")
numbers = torch.full((1024,), 1.0 + dist.get_rank(), device="cuda" if torch.cuda.is_available() else "cpu")
dist.all_reduce(numbers)  # any call of torch.distributed
print(f"rank {dist.get_rank()}: every sum is {numbers[0].item():g}", flush=True)
dist.destroy_process_group()
# ANCHOR_END: program
