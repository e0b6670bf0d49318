"""Kernels that go on with the sums of an all_reduce: an epilogue of the test's, and RMSNorm."""

import mscclpp
import numpy
import pytest
from test_collectives import joined

import ranks
from device import ON_GPU, Exported, arrays

EPILOGUE = """
// The sums times a factor, plus a bias. Output 0 has them, and output 1 the largest of each row.
template <class N>
struct Epilogue {
  using Numbers = VectorNumbers<N>;
  const void* bias;
  float factor;
  struct Kept { Bytes16 numbers; };
  __device__ void prefetch(const RowVector& at, Kept& kept) const { kept.numbers = at.ofColumn(bias); }
  __device__ void reduced(const RowVector&, const typename Numbers::Values& sums, Kept& kept) const {
    typename Numbers::Values numbers;
    Numbers::widen(kept.numbers, numbers);
    for (uint32_t i = 0; i < Numbers::Count; ++i) numbers[i] += sums[i] * factor;
    kept.numbers = Numbers::narrow(numbers);
  }
  template <class Row, uint32_t Vectors>
  __device__ void finish(const Row& row, Kept (&kept)[Vectors]) const {
    row.each(kept, [&](const RowVector& at, const Kept& mine) { row.store(0, at, mine.numbers); });
    const float largest = row.max(kept, [](const Kept& mine) {
      typename Numbers::Values numbers;
      Numbers::widen(mine.numbers, numbers);
      float most = numbers[0];
      for (uint32_t i = 1; i < Numbers::Count; ++i) most = numbers[i] > most ? numbers[i] : most;
      return most;
    });
    row.storeOfRow(1, largest);
  }
};
"""


def host(array):
    return array.get() if ON_GPU else numpy.array(array)


def values(shape, seed):
    """Halves of small whole numbers, whose sums are exact."""
    return numpy.random.default_rng(seed).integers(-8, 9, shape).astype("float32") / 2


@ranks.each_of(1, 2, 3, timeout=500)
def test_an_epilogue_goes_on_with_the_sums(rank, n, address):
    fused = mscclpp.fused_all_reduce(epilogue=EPILOGUE, parameters="const void* bias, float factor")
    comm = joined(rank, n, address)
    for dtype in ("float16", "float32"):
        fused.load(comm, dtype)
    comm._group.barrier()
    for dtype in ("float16", "float32"):
        # The 33 rows are divided among more than two ranks, in two steps.
        for rows, columns in ((1, 8), (2, 264), (33, 1096)):
            each = [values((rows, columns), r) for r in range(n)]
            x, bias = arrays.asarray(each[rank].astype(dtype)), arrays.asarray(values(columns, 99).astype(dtype))
            out, largest = arrays.zeros((rows, columns), dtype), arrays.zeros(rows, "float32")
            stored = fused(comm, x, out, largest, bias=bias, factor=0.5)
            assert stored[0] is out and stored[1] is largest
            comm.synchronize()
            expected = sum(each) * numpy.float32(0.5) + values(columns, 99)
            assert numpy.array_equal(host(out), expected.astype(dtype)), (dtype, rows, columns)
            assert numpy.array_equal(host(largest), expected.astype(dtype).max(1).astype("float32"))
            assert numpy.array_equal(host(x), each[rank].astype(dtype)), "it has changed what it was given"
    comm._group.barrier()


def normalised(sums, residual, weight, eps, rounded):
    """Residual and RMSNorm of float32 numbers, rounded where a program without the fused kernel would."""
    residual = rounded(rounded(sums) + residual)
    factor = 1 / numpy.sqrt((residual.astype("float64") ** 2).mean(-1, keepdims=True) + eps)
    return residual, residual * factor * weight


def of_bits(bits):
    """Numbers of bfloat16."""
    return (bits.astype("uint32") << 16).view("float32")


def to_bits(numbers):
    bits = numbers.astype("float32").view("uint32")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("uint16")


def norms(rank, n, address, shapes):
    comm = joined(rank, n, address)
    eps = 1e-5
    for shape in shapes:
        each = [values(shape, r) for r in range(n)]
        old, weight = values(shape, 50), values(shape[-1:], 51)
        half = lambda numbers: numbers.astype("float16").astype("float32")  # noqa: E731
        expected = normalised(sum(each), old, weight, eps, half)
        x, w = arrays.asarray(each[rank].astype("float16")), arrays.asarray(weight.astype("float16"))
        residual = arrays.asarray(old.astype("float16"))

        # Into new arrays, and in place of the residual.
        kept = arrays.empty(shape, "float16")
        out, residual_out = comm.all_reduce_rms_norm(x, residual, w, eps, residual_out=kept)
        comm.synchronize()
        assert residual_out is kept and out.shape == shape and numpy.array_equal(host(residual), old.astype("float16"))
        assert numpy.array_equal(host(kept), expected[0].astype("float16")), shape
        assert numpy.allclose(host(out), expected[1], rtol=2e-3, atol=1e-3), shape
        again, residual_out = comm.all_reduce_rms_norm(x, residual, w, eps, out)
        comm.synchronize()
        assert again is out and residual_out is residual and numpy.array_equal(host(residual), host(kept))
        assert numpy.allclose(host(out), expected[1], rtol=2e-3, atol=1e-3), shape

        # To fp8, with a unit for each row, and with one for all.
        quantised, units = arrays.zeros(shape, "uint8"), arrays.zeros(shape[:-1], "float32")
        residual = arrays.asarray(old.astype("float16"))
        comm.all_reduce_rms_norm(x, residual, w, eps, quantised, kept, scales=units.reshape(-1))
        comm.synchronize()
        largest = numpy.abs(expected[1]).max(-1)
        assert numpy.allclose(host(units), numpy.where(largest > 0, largest / 448, 1), rtol=1e-3)
        got = of_fp8(host(quantised)) * host(units)[..., None]
        assert numpy.allclose(got, expected[1], rtol=0.07, atol=1e-2 * largest.max() + 1e-3)
        comm.all_reduce_rms_norm(x, residual, w, eps, quantised, kept, scale=0.05)
        comm.synchronize()
        assert numpy.allclose(of_fp8(host(quantised)) * 0.05, expected[1], rtol=0.07, atol=1e-2)
    comm._group.barrier()


def of_fp8(bits):
    """Converts bits to numbers of float8_e4m3fn."""
    bits = bits.astype("int32")
    exponent, fraction = bits >> 3 & 15, (bits & 7) / 8
    magnitude = numpy.where(exponent == 0, fraction * 2.0**-6, (1 + fraction) * 2.0 ** (exponent - 7))
    return numpy.where(bits & 128, -magnitude, magnitude)


@pytest.mark.parametrize("n", [2, 3])
def test_residual_and_norm_are_those_of_numpy(n):
    ranks.run(n, norms, [(1, 64), (5, 1024), (2, 3, 256)], timeout=500)


@ranks.each_of(2, timeout=500)
def test_a_norm_of_bfloat16(rank, n, address):
    comm = joined(rank, n, address)
    shape = (4, 128)
    each = [of_bits(to_bits(values(shape, r))) for r in range(n)]
    old, weight = values(shape, 50), values(shape[-1:], 51)
    expected = normalised(sum(each), old, weight, 1e-5, lambda numbers: of_bits(to_bits(numbers)))

    def buffer(numbers):
        """The bfloat16 type of another library, which neither NumPy nor CuPy has."""
        raw = mscclpp.RawGpuBuffer(2 * numbers.size)
        raw.write(to_bits(numbers).tobytes())
        return raw, Exported(raw, "bfloat16", list(numbers.shape))

    given = [buffer(numbers) for numbers in (each[rank], old, weight, numpy.zeros(shape), numpy.zeros(shape))]
    (_, x), (_, residual), (_, w), (raw_out, out), (raw_kept, kept) = given
    comm.all_reduce_rms_norm(x, residual, w, 1e-5, out, kept)
    comm.synchronize()
    got = [of_bits(numpy.frombuffer(raw.read(), "uint16")).reshape(shape) for raw in (raw_kept, raw_out)]
    assert numpy.array_equal(got[0], expected[0])
    assert numpy.allclose(got[1], expected[1], rtol=1e-2, atol=1e-2)
    comm._group.barrier()


def norm_of_torch(rank, n, address):
    import torch

    device = f"cuda:{torch.cuda.current_device()}" if ON_GPU else "cpu"
    comm = joined(rank, n, address)

    def tensor(numbers, dtype=torch.bfloat16):
        return torch.from_numpy(numbers).to(device, dtype)

    shape = (4, 128)
    each = [values(shape, r) for r in range(n)]
    old, weight = values(shape, 50), values(shape[-1:], 51)
    expected = normalised(sum(each), old, weight, 1e-5, lambda numbers: of_bits(to_bits(numbers)))
    x, residual, w = tensor(each[rank]), tensor(old), tensor(weight)
    out, kept = comm.all_reduce_rms_norm(x, residual, w, 1e-5)
    comm.synchronize(None if device == "cpu" else torch.cuda.current_stream())
    assert kept is residual and (out.dtype, out.shape) == (torch.bfloat16, shape)
    assert numpy.array_equal(kept.float().cpu().numpy(), expected[0])
    assert numpy.allclose(out.float().cpu().numpy(), expected[1], rtol=1e-2, atol=1e-2)
    quantised = torch.zeros(shape, dtype=torch.float8_e4m3fn, device=device)
    comm.all_reduce_rms_norm(x, tensor(old), w, 1e-5, quantised, scale=0.05)
    comm.synchronize(None if device == "cpu" else torch.cuda.current_stream())
    assert numpy.allclose(quantised.float().cpu().numpy() * 0.05, expected[1], rtol=0.07, atol=2e-2)
    comm._group.barrier()


def test_a_norm_of_tensors():
    torch = pytest.importorskip("torch")
    if ON_GPU and not torch.cuda.is_available():
        pytest.skip("PyTorch has no GPU")
    ranks.run(2, norm_of_torch, timeout=500)


@ranks.each_of(2, timeout=500)
def test_wrong_arguments_are_named(rank, n, address):
    comm = joined(rank, n, address)
    new = lambda shape, dtype="float16": arrays.zeros(shape, dtype)  # noqa: E731
    x, residual, weight = new((4, 64)), new((4, 64)), new(64)

    def norm(*given, **more):
        return lambda: comm.all_reduce_rms_norm(*given, **more)

    fused = mscclpp.fused_all_reduce(EPILOGUE, "const void* bias, float factor")
    right = dict(bias=weight, factor=1.0)
    for error, text, call in [
        (
            TypeError,
            "'x': expected numbers of type float16 or bfloat16 or float32, got int32",
            norm(new(64, "int32"), residual, weight),
        ),
        (
            TypeError,
            "'x': expected numbers of type float16 or bfloat16, got float32",
            norm(new(64, "float32"), residual, weight),
        ),
        (
            ValueError,
            "'x': its rows of 3 numbers of float16 have 6 bytes; expected a multiple of 16",
            norm(new((2, 3)), 0, 0),
        ),
        (ValueError, "'x': its rows of 32776 numbers", norm(new((1, 32776)), 0, 0)),
        (ValueError, "'x': it has no dimension", norm(new(()), 0, 0)),
        (ValueError, "'x': it begins at 0x.*, which is no multiple of 16", norm(new(65)[1:], residual, weight)),
        (ValueError, "'x': the array is not contiguous", norm(new((64, 4)).T, residual, weight)),
        (TypeError, "argument 'x': expected an array", norm([1], residual, weight)),
        (ValueError, r"'residual': expected an array of shape \(4, 64\), got \(4, 32\)", norm(x, new((4, 32)), weight)),
        (TypeError, "'weight': expected numbers of type float16, got float32", norm(x, residual, new(64, "float32"))),
        (ValueError, r"'weight': expected an array of shape \(64,\), got \(63,\)", norm(x, residual, new(63))),
        (ValueError, "'out': it overlaps 'x'", norm(x, residual, weight, 1e-5, x)),
        (ValueError, "'residual_out': expected an array of shape", norm(x, residual, weight, 1e-5, None, new(64))),
        (
            TypeError,
            "'out': expected numbers of type float8_e4m3fn or uint8",
            norm(x, residual, weight, 1e-5, new((4, 64)), scale=1.0),
        ),
        (TypeError, "'out': give an array of fp8", norm(x, residual, weight, scale=1.0)),
        (TypeError, "one of 'scale' and 'scales'", norm(x, residual, weight, scale=1.0, scales=new(4, "float32"))),
        (
            ValueError,
            "'scale': expected a number above 0, got 0",
            norm(x, residual, weight, 1e-5, new((4, 64), "uint8"), scale=0),
        ),
        (
            ValueError,
            r"'scales': expected an array of shape \(4,\)",
            norm(x, residual, weight, 1e-5, new((4, 64), "uint8"), scales=new(3, "float32")),
        ),
        (
            TypeError,
            r"arguments \(const void\* bias, float factor\), got \(bias\)",
            lambda: fused(comm, x, new((4, 64)), bias=weight),
        ),
        (
            TypeError,
            "'factor': expected a number for a parameter of type float, got 'a'",
            lambda: fused(comm, x, **(right | {"factor": "a"})),
        ),
        (TypeError, "argument 'bias': expected an array", lambda: fused(comm, x, **(right | {"bias": 3}))),
        (
            ValueError,
            r"'outputs\[1\]': expected 256 numbers of 2 or 1 bytes, or one of 4 bytes for each of 4 rows, got 5",
            lambda: fused(comm, x, new((4, 64)), new(5, "float32"), **right),
        ),
        (
            ValueError,
            r"'outputs\[4\]': there can be 4 outputs",
            lambda: fused(comm, x, *(new((4, 64)) for _ in range(5)), **right),
        ),
        (TypeError, "'dtype': expected numbers of type float16 or", lambda: fused.load(comm, "int8")),
        (
            ValueError,
            "does not define `template <class N> struct Epilogue`",
            lambda: mscclpp.fused_all_reduce("int x;"),
        ),
        (ValueError, "'parameters': 'half\\* x' is no pointer", lambda: mscclpp.fused_all_reduce(EPILOGUE, "half* x")),
        (
            ValueError,
            "'parameters': 'half bias' is no pointer",
            lambda: mscclpp.fused_all_reduce(EPILOGUE, "half bias"),
        ),
        (
            mscclpp.Error,
            "no_such_name",
            lambda: mscclpp.fused_all_reduce("template <class N> struct Epilogue { no_such_name a; };").load(
                comm, "float16"
            ),
        ),
    ]:
        with pytest.raises(error, match=text):
            call()
    with pytest.raises(mscclpp.Error, match="inside a group"), comm.group():
        comm.all_reduce_rms_norm(x, residual, weight)
    if mscclpp.device_count() > n:
        mscclpp.set_device(n)
        with pytest.raises(
            mscclpp.Error, match=rf"on device {n}, the current one, for collectives on device {comm.device}"
        ):
            fused.load(comm, "float16")
        mscclpp.set_device(comm.device)
    # The calls that failed have changed nothing.
    out, _ = comm.all_reduce_rms_norm(x, residual, weight)
    comm.synchronize()
    assert (host(out) == 0).all() and "const void* bias, float factor" in repr(fused)
    comm._group.barrier()
