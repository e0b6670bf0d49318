"""Microseconds of training steps with PyTorch, by NCCL, in place of NCCL, or by the backend `mscclpp`.

    steps.py RANKS [--backend mscclpp] [--nodes] [--steps NAME,...] [--results FILE]

Each GPU has a process; the script starts itself as the ranks. The environment decides which NCCL is used:
LD_PRELOAD=.../libnccl.so puts this project's library in front. A figure is the least of ten means, and the middle one.
With `--nodes` each rank counts as a node of its own, and NCCL goes by its sockets.
`--results` writes the losses of each step as JSON: with two ranks they are the same, to the last bit, with every library.
"""

import argparse
import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from timing import as_ranks, of_host
from torch import nn

HIDDEN = 4096


def linear_layers() -> nn.Module:
    return nn.Sequential(*[nn.Linear(HIDDEN, HIDDEN) for _ in range(8)]).cuda()


def trained(model: nn.Module, batch: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Return a step: forward, backward, and a small change of the weights."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(batch).float().square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def replayed(step: Callable[[], torch.Tensor], warm_up: int) -> Callable[[], torch.Tensor]:
    """Return the step as a CUDA graph. DistributedDataParallel wants eleven steps before, in another stream."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warm_up):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()

    def replay() -> torch.Tensor:
        graph.replay()
        return loss

    return replay


def ddp(captured: bool) -> Callable[[], torch.Tensor]:
    """Eight linear layers in f32, whose gradients go in buckets of 25 MiB."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        model = nn.parallel.DistributedDataParallel(linear_layers(), device_ids=[torch.cuda.current_device()])
    torch.cuda.current_stream().wait_stream(stream)
    step = trained(model, torch.randn(64, HIDDEN, device="cuda"))
    return replayed(step, 11) if captured else step


def fsdp2() -> Callable[[], torch.Tensor]:
    """Two blocks of a transformer in bf16, each sharded."""
    from torch.distributed.fsdp import fully_shard

    blocks = [nn.TransformerEncoderLayer(HIDDEN, 32, 4 * HIDDEN, dropout=0.0, batch_first=True) for _ in range(2)]
    model = nn.Sequential(*blocks).cuda().bfloat16()
    for block in model:
        fully_shard(block)
    return trained(fully_shard(model), torch.randn(4, 512, HIDDEN, device="cuda", dtype=torch.bfloat16))


def tensor_parallel() -> Callable[[], torch.Tensor]:
    """A multilayer perceptron of DTensors in bf16, the first matrix sharded by columns, the second by rows."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    layers = [nn.Linear(HIDDEN, 4 * HIDDEN, bias=False), nn.GELU(), nn.Linear(4 * HIDDEN, HIDDEN, bias=False)]
    model = nn.Sequential(*layers).cuda().bfloat16()
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    torch.manual_seed(1)
    return trained(model, torch.randn(1024, HIDDEN, device="cuda", dtype=torch.bfloat16))


def compiled() -> Callable[[], torch.Tensor]:
    """A compiled forward pass of two matrices with a functional all_reduce behind them."""
    from torch.distributed import _functional_collectives as functional

    first, second = (torch.randn(HIDDEN, HIDDEN, device="cuda") / HIDDEN**0.5 for _ in range(2))
    batch = torch.randn(64, HIDDEN, device="cuda")

    def perceptron() -> torch.Tensor:
        partial = torch.relu(batch @ first) @ second
        return functional.all_reduce(partial, "sum", dist.group.WORLD)

    step = torch.compile(perceptron, fullgraph=True)
    assert torch.equal(step(), perceptron())
    return lambda: step()[0, :8]


def reduced_in_a_graph() -> Callable[[], torch.Tensor]:
    """A decode step's sums: a graph of 16 all_reduces of 8192 bf16."""
    numbers = torch.zeros(8192, dtype=torch.bfloat16, device="cuda")

    def step() -> torch.Tensor:
        for _ in range(16):
            dist.all_reduce(numbers)
        return numbers[:8]

    return replayed(step, 1)


STEPS: dict[str, Callable[[], Callable[[], torch.Tensor]]] = {
    "16 all_reduces in a graph": reduced_in_a_graph,
    "DDP": lambda: ddp(False),
    "DDP in a graph": lambda: ddp(True),
    "FSDP2": fsdp2,
    "tensor parallel": tensor_parallel,
    "compiled": compiled,
}


def chosen(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    for name, make in STEPS.items():
        if any(word in name for word in options.steps.split(",")):
            yield name, make


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("ranks", type=int)
    parser.add_argument("--backend", default="nccl")
    parser.add_argument("--nodes", action="store_true")
    parser.add_argument("--steps", default="", help="only steps with one of these words in their name")
    parser.add_argument("--results")
    options = parser.parse_args()

    def rank() -> None:
        device = torch.device("cuda", int(os.environ["RANK"]))
        torch.cuda.set_device(device)
        if options.nodes:
            os.environ.update(NCCL_HOSTID=f"node {device.index}", NCCL_IB_DISABLE="1")
        if options.backend == "mscclpp":
            import mscclpp.torch  # noqa: F401, which makes the backend known
        dist.init_process_group(options.backend, device_id=device)
        losses = {}
        for name, make in chosen(options):
            torch.manual_seed(100 + device.index)
            step = make()
            losses[name] = [step().flatten().tolist() for _ in range(3)]
            means = sorted(whole for whole, _ in of_host(step, 20, 10))
            if device.index == 0:
                print(f"{name}: {means[0]:.1f} us, middle {means[5]:.1f} us", flush=True)
        if options.results and device.index == 0:
            with open(options.results, "w") as file:
                json.dump(losses, file)
        dist.destroy_process_group()

    as_ranks(__file__, rank, options.ranks)


main()
