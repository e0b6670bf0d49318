"""Two ranks send tokens to experts and back, by the calls of DeepEP, on simulated devices:

MSCCLPP_PLATFORM=sim torchrun --nproc-per-node 2 deep_ep_ranks.py
"""

# ANCHOR: program
import mscclpp
import mscclpp.ep
import torch
import torch.distributed as dist

mscclpp.ep.install_deep_ep()  # before anything imports deep_ep
import deep_ep  # noqa: E402

dist.init_process_group("gloo")
rank = dist.get_rank()
mscclpp.set_device(rank)
buffer = deep_ep.Buffer(dist.group.WORLD)

# Four experts: rank 0 has 0 and 1, rank 1 has 2 and 3.
# Each rank has two tokens, and each token chooses two experts.
tokens = torch.full((2, 128), 1.0 + rank, dtype=torch.bfloat16)
choices, weights = torch.tensor([[0, 2], [1, 3]]), torch.full((2, 2), 0.5)
per_rank, _, per_expert, is_in_rank, _ = buffer.get_dispatch_layout(choices, 4)
rows, _, _, counts, handle, _ = buffer.dispatch(
    tokens,
    topk_idx=choices,
    topk_weights=weights,
    num_tokens_per_rank=per_rank,
    num_tokens_per_expert=per_expert,
    is_token_in_rank=is_in_rank,
)
sums, _, _ = buffer.combine(rows * (1 + rank), handle)  # the experts of rank 1 multiply by 2
print(f"rank {rank}: {counts} tokens for its experts, each sum is {sums[0, 0]:g}", flush=True)
dist.destroy_process_group()
# ANCHOR_END: program
