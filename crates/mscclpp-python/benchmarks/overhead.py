"""Time of calls from Python beside the same calls from Rust, the time of importing, and the size of a wheel.

    cargo bench -p mscclpp-python --bench calls > calls.txt
    python benchmarks/overhead.py calls.txt [WHEEL]

On a GPU, or on a simulated device with `MSCCLPP_PLATFORM=sim` for both. Of many runs the best counts, as the machine does
other things, too.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable

import mscclpp
import numpy as np
from mscclpp.utils import KernelBuilder, pack

CALLS, RUNS = 1000, 30
KERNELS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "kernels")


def best(call: Callable[[], object], after: Callable[[], object] = lambda: None) -> float:
    """Returns the time of a call in ns, without that of the loop around it."""

    def run(body: Callable[[], object]) -> float:
        times = []
        for _ in range(RUNS):
            start = time.perf_counter_ns()
            for _ in range(CALLS):
                body()
            after()
            times.append((time.perf_counter_ns() - start) / CALLS)
        return min(times)

    def nothing() -> None:
        pass

    return run(call) - run(nothing)


def show(name: str, ours: float, rust: float, goal: float) -> None:
    print(f"{name:32} {ours:8.0f} ns, Rust {rust:6.0f} ns, above it {ours - rust:6.0f} ns (to reach: {goal:.0f} ns)")


def main(calls: str, wheel: str | None) -> None:
    with open(calls, encoding="utf-8") as file:
        rust = {name: float(ns) for name, ns in (line.split() for line in file if line.count(" ") == 1)}

    fifo = mscclpp.Fifo()
    show("Fifo.poll, empty", best(fifo.poll), rust["fifo_poll"], 300)
    positions = mscclpp.GpuBuffer(1, dtype=np.uint64)
    kernel = KernelBuilder("plain.cu", "push", KERNELS).get_compiled_kernel()
    kernel.launch_kernel(pack(fifo.device_handle().raw, np.uint64(1), positions), 1, 1, 0, None)
    while fifo.poll() is None:
        pass
    show("Fifo.poll, with a trigger", best(fifo.poll), rust["fifo_poll"], 300)
    fifo.pop()
    mscclpp.synchronize()

    bootstrap = mscclpp.TcpBootstrap.create(0, 1)
    bootstrap.initialize(mscclpp.TcpBootstrap.create_unique_id())
    comm = mscclpp.Communicator(bootstrap)
    connection = comm.connect(mscclpp.Transport.CudaIpc, 0).get()
    data = mscclpp.GpuBuffer(8), mscclpp.GpuBuffer(8)
    inbox, outbox = (comm.register_memory(a.data.ptr, a.nbytes, mscclpp.Transport.CudaIpc) for a in data)
    connection.write(inbox, 0, outbox, 0, 8)

    def write() -> None:
        connection.write(inbox, 0, outbox, 0, 8)

    show("Connection.write", best(write, connection.flush), rust["connection_write"], 2000)

    program = "import time; start = time.perf_counter(); import mscclpp; print(time.perf_counter() - start)"
    times = [float(subprocess.check_output([sys.executable, "-c", program])) for _ in range(10)]
    print(f"{'import':32} {1000 * min(times):8.0f} ms (to reach: 300 ms)")
    if wheel is not None:
        print(f"{'wheel':32} {os.path.getsize(wheel) / 1e6:8.1f} MB (to reach: 10 MB)")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
