"""`memory-put` and `port-put` of `mscclpp-bench`, driven from Python: the same kernels, graphs and checks.

    mscclpp-bench memory-put --json memory.json; mscclpp-bench port-put --json port.json
    python benchmarks/puts.py memory.json port.json

Two processes with a GPU each, and CuPy. Without files the times stand alone. Run it in turns with `mscclpp-bench`, several
times: where the driver puts memory makes some per cent of the small sizes, and differs from run to run.
"""

import json
import multiprocessing
import os
import queue
import socket
import statistics
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

import mscclpp
import numpy as np
from mscclpp import CommGroup, GpuBuffer, Transport
from mscclpp.utils import KernelBuilder, pack

KERNELS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "cuda", "kernels")
SIZES = [1 << 10, 1 << 20, 128 << 20]
LARGEST = max(SIZES)
REPEATS = 7
#: The offset of the memory where the peer's data arrives: behind the memory that is sent.
INCOMING = LARGEST + 4096
#: Constants of the kernel's source: the most channels, and the bytes of its state.
CHANNELS, STATE = 64, 256 + 4 * 1024


def rounds_of(size: int) -> int:
    """Returns how many rounds `mscclpp-bench` times together."""
    return max(1, min(1000, (64 << 30) // size))


class MemoryPut:
    """32 blocks of 1024 threads, each with a channel of its own."""

    name = "memory-put"

    def __init__(self, group: CommGroup, peer: int) -> None:
        connections = group.make_connection([peer], Transport.CudaIpc)
        self.memory = GpuBuffer(INCOMING + LARGEST, dtype=np.uint8)
        self.source, self.arrivals = self.memory[:LARGEST], self.memory[INCOMING:]
        self.channel = group.make_memory_channels(self.memory, connections)[peer]
        make = mscclpp.BaseMemoryChannel
        self.own = [make(group.communicator, connections[peer]) for _ in range(32)]
        handles = b"".join(channel.device_handle().raw for channel in self.own)
        self.handles = handles.ljust(len(handles) // 32 * CHANNELS, b"\0")
        self.state, self.failed = GpuBuffer(STATE, dtype=np.uint8), GpuBuffer(1, dtype=np.uint32)
        self.kernel = KernelBuilder("memory_bench.cu", "memory_put_own", KERNELS).get_compiled_kernel()

    def launcher(self, size: int, stream: Any) -> Callable[[], None]:
        workers = max(1, min(32, -(-size // (16 * 1024))))
        part = (-(-size // workers) + 127) // 128 * 128
        state, failed = self.state.data.ptr, self.failed.data.ptr
        a_round = struct.pack("QQQQIIQII", size, INCOMING, state, failed, workers, 0, part, 0, 0)
        params = pack(self.channel.device_handle().raw, a_round, self.handles)
        return lambda: self.kernel.launch_kernel(params, 32, 1024, 0, stream)

    def close(self) -> None:
        pass


class PortPut:
    """One thread: signal, wait, put with signal, wait."""

    name = "port-put"

    def __init__(self, group: CommGroup, peer: int) -> None:
        connections = group.make_connection([peer], Transport.CudaIpc)
        # `mscclpp-bench` allocates the memory in the same way.
        self.source, memory = GpuBuffer(LARGEST, dtype=np.uint8), GpuBuffer(4096 + LARGEST + 4096, dtype=np.uint8)
        self.arrivals = memory[4096 : 4096 + LARGEST]
        self.service = mscclpp.ProxyService()
        arrivals = group.register_memory_with_proxy(self.service, self.arrivals, connections)
        source = self.service.add_memory(group.register_local_memory(self.source, connections))
        semaphore = self.service.build_and_add_semaphore(group.communicator, connections[peer])
        self.channel = self.service.port_channel(semaphore, arrivals[peer], source)
        self.service.start_proxy(blocking=True)
        self.failed = GpuBuffer(1, dtype=np.uint32)
        self.kernel = KernelBuilder("port_bench.cu", "port_put", KERNELS).get_compiled_kernel()

    def launcher(self, size: int, stream: Any) -> Callable[[], None]:
        zero, bytes_ = np.uint64(0), np.uint64(size)
        params = pack(self.channel.device_handle().raw, zero, zero, bytes_, 1) + bytes(4) + pack(self.failed)
        return lambda: self.kernel.launch_kernel(params, 1, 1, 0, stream)

    def close(self) -> None:
        self.service.stop_proxy()


def run(rank: int, address: str, rows: Any) -> None:
    import cupy

    mscclpp.set_device(rank % mscclpp.device_count())
    group, peer = CommGroup(interfaceIpPortTrio=address, rank=rank, size=2), 1 - rank
    stream = cupy.cuda.Stream(non_blocking=True)
    for workload in (MemoryPut, PortPut):
        bench = workload(group, peer)
        for size in SIZES:
            mine = np.random.default_rng().integers(0, 256, size, dtype=np.uint8)
            theirs = np.empty_like(mine)
            group.send(mine, peer, 1)
            group.recv(theirs, peer, 1)
            bench.source[:size].set(mine)
            launch, rounds = bench.launcher(size, stream), rounds_of(size)
            stream.begin_capture()
            for _ in range(rounds):
                launch()
            graph = stream.end_capture()
            times = []
            for _ in range(1 + REPEATS):
                bench.arrivals[:size].fill(0xEE)
                cupy.cuda.runtime.deviceSynchronize()
                start, end = cupy.cuda.Event(), cupy.cuda.Event()
                # Rank 0 takes the time; rank 1's work is submitted before.
                if rank == 0:
                    group.barrier()
                start.record(stream)
                graph.launch(stream)
                end.record(stream)
                if rank == 1:
                    group.barrier()
                # `end.synchronize()` would spin in the driver, and hold the lock that the proxy needs, too.
                while not end.done:
                    time.sleep(50e-6)
                times.append(1000 * cupy.cuda.get_elapsed_time(start, end) / rounds)
                assert int(bench.failed[0]) == 0, "a wait failed"
                assert (bench.arrivals[:size].get() == theirs).all(), "data is wrong"
                group.barrier()
            if rank == 0:
                rows.put((workload.name, size, statistics.median(times[1:]), min(times[1:]), max(times[1:])))
        group.barrier()
        bench.close()
        group.barrier()


def main(files: list[str]) -> None:
    rust: dict[tuple[str, int], float] = {}
    for file in files:
        with open(file, encoding="utf-8") as text:
            for row in json.load(text)["rows"]:
                rust[row["workload"], row["size"]] = row["times"]["median"]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    spawn = multiprocessing.get_context("spawn")
    rows = spawn.Queue()
    ranks = [spawn.Process(target=run, args=(rank, address, rows), daemon=True) for rank in range(2)]
    for rank in ranks:
        rank.start()
    left = 2 * len(SIZES)
    while left > 0:
        try:
            name, size, median, least, most = rows.get(timeout=1)
        except queue.Empty:
            if any(rank.exitcode for rank in ranks):
                sys.exit("a rank failed")
            continue
        left -= 1
        base = rust.get((name, size))
        beside = "" if base is None else f", Rust {base:9.3f} us: {100 * (median / base - 1):+5.1f} %"
        print(f"{name:12} {size:10} B {median:9.3f} us ({least:.3f} to {most:.3f}){beside}", flush=True)
    for rank in ranks:
        rank.join(60)


if __name__ == "__main__":
    main(sys.argv[1:])
