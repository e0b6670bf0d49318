"""Time that a launch from Python takes in the calling thread, compared with one of CuPy's own kernels.

    python benchmarks/launches.py

On a GPU with CuPy, or on a simulated device with `MSCCLPP_PLATFORM=sim`, without CuPy's rows. Takes under a minute. Of many
runs the best and the median count; the stream is waited for after each run, so its queue is never full.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import mscclpp
import numpy as np
from mscclpp.utils import KernelBuilder, pack

CALLS, RUNS = 200, 51
#: Source of a kernel that adds `by` to a word.
SOURCE = 'extern "C" __global__ void count(unsigned long long* word, void* unused, unsigned int by) { *word += by; }'
ON_GPU = os.environ.get("MSCCLPP_PLATFORM", "cuda") == "cuda"

Launch = Callable[[Any], None]


def measure(launch: Launch, stream: Any, captured: bool) -> list[float]:
    """Returns the microseconds of a launch, for each run."""
    times = []
    for _ in range(3 + RUNS):
        if captured:
            stream.begin_capture()
        start = time.perf_counter()
        for _ in range(CALLS):
            launch(stream)
        times.append(1e6 * (time.perf_counter() - start) / CALLS)
        if captured:
            stream.end_capture().launch(stream)
            stream.synchronize()
        mscclpp.synchronize(60)
        if stream is not None:
            stream.synchronize()
    return times[3:]


def main() -> None:
    word, unused = mscclpp.GpuBuffer(1, dtype=np.uint64), mscclpp.GpuBuffer(1, dtype=np.uint64)
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "count.cu"), "w", encoding="utf-8") as file:
            file.write(SOURCE)
        kernel = KernelBuilder("count.cu", "count", folder).get_compiled_kernel()
    packed, kept = pack(word, unused, 1), (word, unused, 1)
    ways: dict[str, Launch] = {
        "bytes": lambda stream: kernel.launch_kernel(packed, 1, 1, 0, stream),
        "kept tuple": lambda stream: kernel.launch_kernel(kept, 1, 1, 0, stream),
        "new tuple": lambda stream: kernel.launch_kernel((word, unused, 1), 1, 1, 0, stream),
    }
    places: list[tuple[str, Any, bool]] = [("default stream", None, False)]
    if ON_GPU:
        import cupy

        raw, one = cupy.RawKernel(SOURCE, "count"), np.uint32(1)

        def by_cupy(stream: Any) -> None:
            raw((1,), (1,), (word, unused, one))

        theirs = cupy.cuda.Stream(non_blocking=True)
        ways = {"CuPy RawKernel": by_cupy, **ways}
        places += [("CuPy's stream", theirs, False), ("CuPy's capture", theirs, True)]
    launches = 0
    for place, stream, captured in places:
        for way, launch in ways.items():
            if way == "CuPy RawKernel" and stream is not None:
                # The `with` block makes the stream the current one of CuPy's calls.
                with stream:
                    times = measure(launch, stream, captured)
            else:
                times = measure(launch, stream, captured)
            launches += CALLS * (3 + RUNS)
            count = int(word.get()[0])
            assert count == launches, f"{way}, {place}: the kernel ran {count} times, not {launches}"
            print(f"{place:16} {way:16} {statistics.median(times):7.2f} us ({min(times):.2f} to {max(times):.2f})")


if __name__ == "__main__":
    main()
