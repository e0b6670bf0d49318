"""Collectives of JAX over all devices of one process, compared with NumPy.

run_jax.py list    prints their names
run_jax.py NAME    runs one, with several types and lengths
"""

import sys
import zlib

from cases import FAILED, PASSED, SKIPPED, report

TYPES = ["float32", "bfloat16", "float16", "float64", "int8", "uint8", "int32", "uint32", "int64", "uint64"]
# Elements of each device for each device. The last is too long for kernels that XLA has of its own for small messages.
LENGTHS = [1, 1000, 1 << 18]

# Each gives what devices have afterwards, from what they had: an array with a row for each device.
EXPECTED = {
    "psum": lambda rows, n: rows.sum(0, keepdims=True).repeat(n, 0),
    "pmax": lambda rows, n: rows.max(0, keepdims=True).repeat(n, 0),
    "pmin": lambda rows, n: rows.min(0, keepdims=True).repeat(n, 0),
    "all_gather": lambda rows, n: rows.reshape(1, -1).repeat(n, 0),
    "psum_scatter": lambda rows, n: rows.sum(0).reshape(n, -1),
    "all_to_all": lambda rows, n: rows.reshape(n, n, -1).swapaxes(0, 1).reshape(n, -1),
    "ppermute": lambda rows, n: rows[[(device - 1) % n for device in range(n)]],
}


def calls(lax, n: int) -> dict:
    """The calls, of an array with one row."""
    return {
        "psum": lambda row: lax.psum(row, "x"),
        "pmax": lambda row: lax.pmax(row, "x"),
        "pmin": lambda row: lax.pmin(row, "x"),
        "all_gather": lambda row: lax.all_gather(row[0], "x", tiled=True)[None],
        "psum_scatter": lambda row: lax.psum_scatter(row[0], "x", tiled=True)[None],
        "all_to_all": lambda row: lax.all_to_all(row, "x", split_axis=1, concat_axis=1, tiled=True),
        "ppermute": lambda row: lax.ppermute(row, "x", [(device, (device + 1) % n) for device in range(n)]),
    }


def main(name: str) -> int:
    if name == "list":
        print("\n".join(EXPECTED))
        return 0
    import jax
    import numpy as np

    jax.config.update("jax_enable_x64", True)
    devices = jax.devices()
    n = len(devices)
    if n < 2:
        report(name, SKIPPED, f"{n} devices")
        return 0
    mesh = jax.sharding.Mesh(np.array(devices), ("x",))
    by_device = jax.sharding.PartitionSpec("x")
    call = jax.shard_map(calls(jax.lax, n)[name], mesh=mesh, in_specs=by_device, out_specs=by_device)
    code = 0
    for kind in TYPES:
        wrong = ""
        for length in LENGTHS:
            # Sums of these are exact in all types.
            numbers = np.random.default_rng(zlib.crc32(f"{name} {kind} {length}".encode())).integers(
                0, 8, (n, n * length)
            )
            rows, expected = numbers.astype(jax.numpy.dtype(kind)), EXPECTED[name](numbers, n)
            try:
                given = jax.device_put(rows, jax.sharding.NamedSharding(mesh, by_device))
                found = np.asarray(jax.jit(call)(given))
            except Exception as error:
                wrong = f"{length} elements: {type(error).__name__}: {str(error)[:300]}"
                break
            if found.dtype != rows.dtype or found.shape != expected.shape or (found.astype(np.int64) != expected).any():
                wrong = f"{length} elements: {found.ravel()[:4]}, not {expected.ravel()[:4]}"
                break
        report(f"{name} {kind}", FAILED if wrong else PASSED, wrong)
        code |= bool(wrong)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
