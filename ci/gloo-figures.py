#!/usr/bin/env python3
"""Times an all_reduce (sum of f32) of gloo between two processes, over the loopback device, as nodes-figures.sh does for this library.

gloo-figures.py [SIZE...]: sizes in bytes; 1K to 64M if none are given. Needs torch.
"""

import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

REPEATS = 5
SIZES = [1 << shift for shift in range(10, 27, 2)]


def rank(number: int, port: int, sizes: list[int]) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=number, world_size=2)
    for size in sizes:
        numbers = torch.ones(size // 4)
        rounds = max(2, min(200, (64 << 20) // size))
        times = []
        for repeat in range(REPEATS + 1):
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(rounds):
                dist.all_reduce(numbers)
            if repeat > 0:
                times.append((time.perf_counter() - begin) / rounds * 1e6)
            numbers.fill_(1)
        if number == 0:
            print(f"gloo {size:>9} B {statistics.median(times):12.1f} us ({min(times):.1f} to {max(times):.1f})", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    asked = [int(size) for size in sys.argv[1:]] or SIZES
    mp.spawn(rank, args=(20000 + os.getpid() % 20000, asked), nprocs=2)
