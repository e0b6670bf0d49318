"""Uses torch.distributed with the backend `nccl`, or this project's own: every collective, DDP, FSDP2, tensor parallelism,
CUDA graphs and torch.compile. Each GPU has a process.

    by_torch.py RANKS [--results FILE] [--nodes] [--backend mscclpp]

The environment decides which NCCL is used: LD_PRELOAD=.../libnccl.so puts this project's library in front. `--results` writes
the losses of the trainings as JSON, to be compared with those under another NCCL. With `--nodes` each rank counts as a node of
its own, and NCCL goes by its sockets. The script runs itself as the ranks.
"""

import argparse
import json
import os
import socket
import subprocess
import sys


def collectives(dist, torch, rank, ranks):
    """Checks all collectives of torch.distributed, with their base and coalesced forms."""
    total = ranks * (ranks + 1) // 2

    def own(dtype=torch.float32, count=1000):
        return torch.full((count,), rank + 1, dtype=dtype, device="cuda")

    def expect(got, value):
        assert torch.equal(got, torch.full_like(got, value)), (got[:4], value)

    types = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int32, torch.int64]
    for dtype in types:
        numbers = own(dtype)
        dist.all_reduce(numbers)
        expect(numbers, total)
    for op, value in [(dist.ReduceOp.MAX, ranks), (dist.ReduceOp.MIN, 1), (dist.ReduceOp.AVG, total / ranks)]:
        numbers = own()
        dist.all_reduce(numbers, op)
        expect(numbers, value)
    numbers = own()
    dist.all_reduce(numbers, dist._make_nccl_premul_sum(0.5))
    expect(numbers, total / 2)
    truth = torch.tensor([rank == 0, False], device="cuda")
    dist.all_reduce(truth, dist.ReduceOp.MAX)
    assert truth.tolist() == [True, False]

    numbers = own()
    dist.broadcast(numbers, ranks - 1)
    expect(numbers, ranks)
    numbers = own()
    dist.reduce(numbers, 0)
    if rank == 0:
        expect(numbers, total)

    parts = [torch.empty(1000, device="cuda") for _ in range(ranks)]
    dist.all_gather(parts, own())
    for r, part in enumerate(parts):
        expect(part, r + 1)
    sizes = [100 + r for r in range(ranks)]
    parts = [torch.empty(size, device="cuda") for size in sizes]
    dist.all_gather(parts, own(count=sizes[rank]))
    for r, part in enumerate(parts):
        expect(part, r + 1)
    gathered = torch.empty(1000 * ranks, device="cuda")
    dist.all_gather_into_tensor(gathered, own())
    for r, part in enumerate(gathered.chunk(ranks)):
        expect(part, r + 1)

    part = torch.empty(1000, device="cuda")
    dist.reduce_scatter(part, [own() for _ in range(ranks)])
    expect(part, total)
    dist.reduce_scatter_tensor(part, gathered)
    expect(part, ranks * (rank + 1))

    dist.all_to_all_single(gathered, own(count=1000 * ranks))
    for r, got in enumerate(gathered.chunk(ranks)):
        expect(got, r + 1)
    parts = [torch.empty(10 + rank, device="cuda") for _ in range(ranks)]
    dist.all_to_all(parts, [own(count=10 + r) for r in range(ranks)])
    for r, got in enumerate(parts):
        expect(got, r + 1)
    given = [10 + r for r in range(ranks)]
    taken = torch.empty((10 + rank) * ranks, device="cuda")
    dist.all_to_all_single(taken, own(count=sum(given)), [10 + rank] * ranks, given)
    for r, got in enumerate(taken.chunk(ranks)):
        expect(got, r + 1)

    parts = [torch.empty(1000, device="cuda") for _ in range(ranks)] if rank == 0 else None
    dist.gather(own(), parts)
    for r, got in enumerate(parts or []):
        expect(got, r + 1)
    dist.scatter(part, [torch.full((1000,), r + 5.0, device="cuda") for r in range(ranks)] if rank == 0 else None)
    expect(part, rank + 5)
    dist.barrier()

    many = [own() for _ in range(5)]
    with dist._coalescing_manager(device=torch.device("cuda", rank), async_ops=True) as coalesced:
        for numbers in many:
            dist.all_reduce(numbers)
    coalesced.wait()
    for numbers in many:
        expect(numbers, total)

    after, before = (rank + 1) % ranks, (rank - 1) % ranks
    mine, theirs = own(count=100_000), torch.empty(100_000, device="cuda")
    requests = [dist.P2POp(dist.irecv, theirs, before), dist.P2POp(dist.isend, mine, after)]
    for request in dist.batch_isend_irecv(requests):
        request.wait()
    expect(theirs, before + 1)
    if rank == 0:
        dist.send(mine, 1)
    elif rank == 1:
        dist.recv(theirs, 0)
        expect(theirs, 1)

    work = dist.all_reduce(mine, async_op=True)
    work.wait()
    expect(mine, total)
    objects = [None] * ranks
    dist.all_gather_object(objects, {"rank": rank})
    assert [each["rank"] for each in objects] == list(range(ranks))


def subgroups(dist, torch, rank, ranks):
    """Checks groups of some ranks, whose calls share the devices with those of the group of all ranks."""
    alone = [dist.new_group([r]) for r in range(ranks)]
    everyone = dist.new_group(list(range(ranks)))
    numbers = torch.ones(1000, device="cuda")
    for _ in range(3):
        dist.all_reduce(numbers, group=alone[rank])
        dist.all_reduce(numbers, group=everyone)
        dist.all_reduce(numbers)
    assert torch.equal(numbers, torch.full_like(numbers, float(ranks**6)))
    for group in [*alone, everyone]:
        if rank in dist.get_process_group_ranks(group):
            dist.destroy_process_group(group)


def graphs(dist, torch, rank, ranks):
    """Checks all-reduces in a CUDA graph, among kernels of torch."""
    numbers = torch.ones(8192, device="cuda")
    dist.all_reduce(numbers)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        numbers.add_(1)
        dist.all_reduce(numbers)
        numbers.mul_(0.5)
        dist.all_reduce(numbers)
    for round in range(5):
        numbers.fill_(round)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(numbers, torch.full_like(numbers, (round + 1) * ranks * 0.5 * ranks))


def model(torch):
    torch.manual_seed(7)
    layers = [torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256)]
    return torch.nn.Sequential(*layers).cuda()


def train(torch, trained, rank):
    """Trains a model for some steps on data of this rank's own, and returns the losses."""
    torch.manual_seed(100 + rank)
    data = torch.randn(20, 32, 256, device="cuda")
    optimizer, losses = torch.optim.AdamW(trained.parameters(), lr=1e-3), []
    for batch in data:
        optimizer.zero_grad()
        loss = (trained(batch) - batch).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0], losses
    return losses


def ddp(dist, torch, rank, ranks):
    """Trains with DistributedDataParallel, and returns the losses."""
    trained = torch.nn.parallel.DistributedDataParallel(model(torch), device_ids=[rank])
    return train(torch, trained, rank)


def fsdp2(dist, torch, rank, ranks):
    """Trains with FSDP2's fully_shard, and returns the losses."""
    from torch.distributed.fsdp import fully_shard

    trained = model(torch)
    for layer in (trained[0], trained[2]):
        fully_shard(layer)
    return train(torch, fully_shard(trained), rank)


def tensor_parallel(dist, torch, rank, ranks):
    """Checks that a model that DTensor shards gives the same result as the whole model."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    whole, sharded = model(torch), model(torch)
    mesh = init_device_mesh("cuda", (ranks,))
    parallelize_module(sharded, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    torch.manual_seed(1)
    batch = torch.randn(32, 256, device="cuda")
    torch.testing.assert_close(sharded(batch), whole(batch), rtol=1e-4, atol=1e-4)


def compiled(dist, torch, rank, ranks):
    """Checks functional collectives that torch.compile puts between its own kernels."""
    from torch.distributed import _functional_collectives as functional

    def step(numbers):
        sums = functional.all_reduce(numbers * 2, "sum", dist.group.WORLD)
        gathered = functional.all_gather_tensor(sums + rank, 0, dist.group.WORLD)
        return functional.reduce_scatter_tensor(gathered.sin(), "sum", 0, dist.group.WORLD)

    numbers = torch.arange(4096, device="cuda") / 4096.0
    torch.testing.assert_close(torch.compile(step, fullgraph=True)(numbers), step(numbers))


TRIALS = [collectives, subgroups, graphs, ddp, fsdp2, tensor_parallel, compiled]


def run(options):
    import torch
    import torch.distributed as dist

    rank, ranks = int(os.environ["RANK"]), options.ranks
    torch.cuda.set_device(rank)
    if options.backend == "mscclpp":
        import mscclpp.torch  # noqa: F401, which makes the backend known
    dist.init_process_group(options.backend, device_id=torch.device("cuda", rank))
    results = {}
    for trial in TRIALS:
        results[trial.__name__] = trial(dist, torch, rank, ranks)
        torch.cuda.synchronize()
        if rank == 0:
            print(f"{trial.__name__}: ok", flush=True)
    if options.results and rank == 0:
        with open(options.results, "w") as file:
            json.dump(results, file)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("ranks", type=int)
    parser.add_argument("--results")
    parser.add_argument("--nodes", action="store_true")
    parser.add_argument("--backend", default="nccl")
    options = parser.parse_args()
    if "RANK" in os.environ:
        run(options)
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    common = {**os.environ, "WORLD_SIZE": str(options.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command, ranks = [sys.executable, *sys.argv], []
    for rank in range(options.ranks):
        node = {"NCCL_HOSTID": f"node {rank}", "NCCL_IB_DISABLE": "1"} if options.nodes else {}
        ranks.append(subprocess.Popen(command, env={**common, **node, "RANK": str(rank)}))
    try:
        codes = [rank.wait(timeout=500) for rank in ranks]
        assert not any(codes), codes
    finally:
        for rank in ranks:
            rank.kill()


if __name__ == "__main__":
    main()
