"""Uses JAX's collectives over all devices: of one process, and of processes that have one device each.

    by_jax.py RANKS [--processes]

The environment decides which NCCL is used: LD_PRELOAD=.../libnccl.so puts this project's library in front. The script runs itself as
the processes. Without GPUs (JAX_PLATFORMS=cpu) it runs on JAX's own collectives, which tests the script.
"""

import os
import socket
import subprocess
import sys

RANKS = int(sys.argv[1])
# Before JAX is imported; it is of JAX's CPU devices alone.
os.environ.setdefault("XLA_FLAGS", f"--xla_force_host_platform_device_count={1 if '--processes' in sys.argv else RANKS}")
# Ranks that are processes share the machine's memory.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def check():
    """Checks collectives and steps of a training over all devices, in this process and in others."""
    import jax
    import numpy as np
    from jax import lax
    from jax.sharding import NamedSharding, PartitionSpec

    devices = jax.devices()[:RANKS]
    assert len(devices) == RANKS, jax.devices()
    mesh, rows = jax.sharding.Mesh(np.array(devices), ("x",)), PartitionSpec("x")

    def spread(numbers):
        return jax.make_array_from_callback(numbers.shape, NamedSharding(mesh, rows), lambda index: numbers[index])

    def expect(name, call, given, expected):
        found = jax.jit(jax.shard_map(call, mesh=mesh, in_specs=rows, out_specs=rows))(spread(given))
        for part in found.addressable_shards:
            assert (np.asarray(part.data) == expected[part.index]).all(), (name, part.index, part.data)

    for length in (1, 1000, 1 << 18):
        given = np.arange(RANKS * RANKS * length, dtype=np.float32).reshape(RANKS, -1) % 1024
        parts, after = given.reshape(RANKS, RANKS, length), [(rank, (rank + 1) % RANKS) for rank in range(RANKS)]
        sums = given.sum(0)
        expect("psum", lambda row: lax.psum(row, "x"), given, np.tile(sums, (RANKS, 1)))
        expect("pmax", lambda row: lax.pmax(row, "x"), given, np.tile(given.max(0), (RANKS, 1)))
        gathered = np.tile(given.reshape(1, -1), (RANKS, 1))
        expect("all_gather", lambda row: lax.all_gather(row[0], "x", tiled=True)[None], given, gathered)
        scattered = sums.reshape(RANKS, -1)
        expect("psum_scatter", lambda row: lax.psum_scatter(row[0], "x", tiled=True)[None], given, scattered)
        swapped = parts.swapaxes(0, 1).reshape(RANKS, -1)
        expect("all_to_all", lambda row: lax.all_to_all(row, "x", 1, 1, tiled=True), given, swapped)
        expect("ppermute", lambda row: lax.ppermute(row, "x", after), given, np.roll(given, 1, 0))

    # Each device has a part of the batch, and all have the weights: gradients are summed up.
    @jax.jit
    def step(weights, batch, target):
        def loss(weights):
            return ((batch @ weights - target) ** 2).mean()

        value, gradient = jax.value_and_grad(loss)(weights)
        return weights - 0.3 * gradient, value

    random = np.random.default_rng(7)
    batch, truth = random.normal(size=(64 * RANKS, 32)).astype("f"), random.normal(size=(32, 4)).astype("f")
    given, target = spread(batch), spread(batch @ truth)
    all_of_it = NamedSharding(mesh, PartitionSpec())
    weights, losses = jax.device_put(np.zeros((32, 4), "f"), all_of_it), []
    for _ in range(200):
        weights, loss = step(weights, given, target)
        losses.append(float(loss))
    assert losses[-1] < losses[0] / 1000, (losses[0], losses[-1])


def one_of_processes(port, rank):
    import jax

    on_cpu = os.environ.get("JAX_PLATFORMS") == "cpu"
    if on_cpu:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", RANKS, rank, local_device_ids=None if on_cpu else [rank])
    check()
    jax.distributed.shutdown()


def main():
    if len(sys.argv) == 5:
        one_of_processes(int(sys.argv[3]), int(sys.argv[4]))
        return
    if "--processes" not in sys.argv:
        check()
    else:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [sys.executable, *sys.argv, str(port)]
        processes = [subprocess.Popen([*command, str(rank)]) for rank in range(RANKS)]
        try:
            codes = [process.wait(timeout=500) for process in processes]
            assert not any(codes), codes
        finally:
            for process in processes:
                process.kill()
    print(f"{RANKS} ranks: all as expected")


if __name__ == "__main__":
    main()
