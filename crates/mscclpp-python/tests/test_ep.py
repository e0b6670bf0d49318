"""`mscclpp.ep`, on arrays of NumPy on simulated devices and of CuPy on GPUs, beside an oracle in plain NumPy."""

import gc
import threading
import weakref

import mscclpp
import numpy
import pytest
from mscclpp.ep import Experts, HostCounts, Received, Routed

import ranks
from device import arrays, read

N, E, K, H, C = 3, 7, 3, 12, 5
LIMIT = 100
LAYOUTS = (("rank", 1), ("token", 1), ("expert", 1), ("flat", 1), ("flat", 4), ("expert", 1))


def made(group, **options):
    usual = {"experts": E, "top_k": K, "hidden": H, "capacity": C, "dtype": "float32", "timeout": LIMIT}
    return Experts(group, **usual | options)


def joined(rank, n, address, **options):
    return made(ranks.group(rank, n, address), **options)


def on_host(array):
    return numpy.asarray(array.get() if hasattr(array, "get") else array)


class Tokens:
    """The tokens of a rank: whole numbers and eighths, whose sums are exact in any order."""

    def __init__(self, rank, count, seed=0):
        random = numpy.random.default_rng((rank, count, seed))
        self.rows = random.integers(-50, 50, (count, H)).astype("float32")
        self.also = random.integers(0, 256, (count, 8)).astype("uint8")
        self.weights = random.integers(-8, 9, (count, K)).astype("float32") / 8
        self.bias = random.integers(-9, 9, (count, H)).astype("float32")
        # Some are none, and some are there twice.
        self.ids = random.integers(-1, E, (count, K))


def expert(e, rows):
    """The result of an expert."""
    return (rows * (e + 1) + e).astype("float32")


def came(all_tokens, experts):
    """The rows that come to a rank with these experts: source, number among those of the source, token."""
    rows = []
    for source, tokens in enumerate(all_tokens):
        of_source = [t for t, ids in enumerate(tokens.ids) if any(e in experts for e in ids)]
        rows += [(source, number, t) for number, t in enumerate(of_source)]
    return rows


def places(all_tokens, experts, layout, alignment):
    """The tokens in a layout: (place, source, token, expert). An expert of None stands for all of the rank."""
    rows = came(all_tokens, experts)
    if layout in ("rank", "token"):
        return [(s * C + n if layout == "rank" else i, s, t, None) for i, (s, n, t) in enumerate(rows)]
    found, begin = [], 0
    for local, e in enumerate(experts):
        of_expert = [(s, t) for s, _, t in rows if e in all_tokens[s].ids[t]]
        begin = local * N * C if layout == "expert" else -(-begin // alignment) * alignment
        found += [(begin + i, s, t, e) for i, (s, t) in enumerate(of_expert)]
        begin += len(of_expert)
    return found


def combined(tokens, weights, bias):
    out = numpy.zeros((len(tokens.rows), H), "float32")
    for t, ids in enumerate(tokens.ids):
        for k, e in enumerate(ids):
            if e >= 0:
                out[t] += weights[t, k] * expert(e, tokens.rows[t])
    return out + (bias if bias is not None else 0)


def of_rank(tokens, t, experts, weights):
    """The row that a rank makes of a token where one row stands for all its choices there."""
    made = numpy.zeros(H, "float32")
    for k, e in enumerate(tokens.ids[t]):
        if e in experts:
            made += (weights[t, k] if weights is not None else 1) * expert(e, tokens.rows[t])
    return made


@ranks.each_of(N)
def test_every_layout_is_that_of_the_oracle(rank, n, address):
    library, group = arrays, ranks.group(rank, n, address)
    maps = [[0, 0, 0, 1, 1, 2, 2], [2, 0, 2, 2, 0, 2, 0]]
    for expert_map in maps:
        comm = made(group, expert_map=expert_map, also=[8], exact=True)
        mine = [e for e in range(E) if expert_map[e] == rank]
        assert (comm.rank, comm.n_ranks, comm.n_local) == (rank, n, len(mine)) and comm.device_bytes > 0
        everybody = [Tokens(r, count) for r, count in enumerate((5, 0, 4))]
        again = [Tokens(r, len(tokens.rows), seed=1) for r, tokens in enumerate(everybody)]
        for t, other in zip(everybody, again):
            other.ids = t.ids
        for number, (layout, alignment) in enumerate(LAYOUTS):
            check_layout(library, comm, rank, everybody, again, mine, layout, alignment, number)
        group.barrier()  # no rank ends before the others have their sums
        comm.close()
        with pytest.raises(mscclpp.Error, match="this Experts is closed"):
            comm.check()


def check_layout(library, comm, rank, everybody, again, mine, layout, alignment, number):
    tokens = everybody[rank]
    found = places(everybody, mine, layout, alignment)
    weighed_at_dispatch = number % 2 == 0
    exact = number >= 4
    routed = comm.dispatch(
        library.asarray(tokens.rows),
        library.asarray(tokens.ids.astype("int32" if number % 2 else "int64")),
        library.asarray(tokens.weights) if weighed_at_dispatch else None,
        also=[library.asarray(tokens.also)],
        layout=layout,
        alignment=alignment,
        zero_rest=True,
    )
    comm.synchronize()
    assert isinstance(routed, Routed) and (routed.tokens, routed.layout) == (len(tokens.rows), layout)

    rows = came(everybody, mine)
    assert routed.rows_of_ranks() == [sum(source == r for source, *_ in rows) for r in range(N)]
    of_expert = [sum(e in everybody[s].ids[t] for s, _, t in rows) for e in mine]
    assert routed.rows_of_experts() == of_expert
    for address, numbers in (
        (routed.rows_of_ranks_on_device, routed.rows_of_ranks()),
        (routed.rows_of_experts_on_device, of_expert),
    ):
        assert numpy.frombuffer(read(address, 4 * len(numbers)), "uint32").tolist() == numbers
    for source, n, t in rows:
        token, local, weights = routed.row(source, n)
        assert token == t and local == [mine.index(e) if e in mine else -1 for e in everybody[source].ids[t]]
        assert weights == (everybody[source].weights[t].tolist() if weighed_at_dispatch else [1.0] * K)

    def expect(all_tokens, out):
        for part, name in enumerate(("rows", "also")):
            if layout == "rank":
                got = on_host(library.asarray(routed.received(part)))
                got = got.view(getattr(tokens, name).dtype).reshape(N * C, -1)
            else:
                got = on_host(out[part]).reshape(-1, getattr(tokens, name).shape[1])
            for place, source, t, _ in found:
                assert numpy.array_equal(got[place], getattr(all_tokens[source], name)[t]), (layout, place)
            if layout != "rank":
                rest = numpy.delete(got, [place for place, *_ in found], axis=0)
                assert not rest.any()

    expect(everybody, routed.out)
    if layout == "expert":
        assert routed.out[0].shape == (len(mine), N * C, H)

    # The experts compute.
    weights = everybody if weighed_at_dispatch else None
    made = numpy.full((routed._n_rows, H), numpy.nan, "float32")
    for place, source, t, e in found:
        its = weights[source].weights if weights else None
        made[place] = (
            expert(e, everybody[source].rows[t]) if e is not None else of_rank(everybody[source], t, mine, its)
        )
    late = None if weighed_at_dispatch or layout in ("rank", "token") else library.asarray(tokens.weights)
    bias = tokens.bias if number % 3 == 0 else None
    out = library.full((len(tokens.rows), H), 77, "float32") if number % 2 else None
    result = comm.combine(
        routed,
        library.asarray(made),
        out,
        weights=late,
        bias=None if bias is None else library.asarray(bias),
        exact=exact,
    )
    assert out is None or result is out
    comm.synchronize()
    ones = numpy.ones((len(tokens.rows), K), "float32")
    expected = combined(tokens, tokens.weights if weighed_at_dispatch or late is not None else ones, bias)
    assert numpy.array_equal(on_host(result), expected), (layout, alignment, on_host(result) - expected)

    # Other rows go the same way.
    out = comm.dispatch_again(routed, library.asarray(again[rank].rows), also=[library.asarray(again[rank].also)])
    comm.synchronize()
    if layout != "rank":
        for part, name in zip(out, ("rows", "also")):
            flat = on_host(part).reshape(-1, getattr(tokens, name).shape[1])
            for place, source, t, _ in found:
                assert numpy.array_equal(flat[place], getattr(again[source], name)[t])
    else:
        expect(again, out)
    comm.release(routed)
    comm.synchronize()


def rounding(rank, n, address):
    library, comm = arrays, joined(rank, n, address, experts=4, hidden=4, dtype="float16", exact=True)
    count = 1 - rank
    # Experts 2 and 3 are those of rank 1, whose own sum of 2049 is rounded to 2048.
    ids = library.asarray([[2, 3, 0]] * count, "int32").reshape(count, 3)
    results = []
    for exact in (False, True):
        routed = comm.dispatch(library.ones((count, 4), "float16"), ids, layout="expert")
        comm.synchronize()
        made = routed.out[0].copy()
        made[0], made[1] = (-2048, 0) if rank == 0 else (2048, 1)
        results.append(comm.combine(routed, made, exact=exact))
        comm.synchronize()
    comm._group.barrier()
    return [on_host(it).tolist() for it in results]


def test_an_exact_combine_rounds_once():
    assert ranks.run(2, rounding) == [[[[0] * 4], [[1] * 4]], [[], []]]


@ranks.each_of(2)
def test_tokens_are_quantised_on_their_way(rank, n, address):
    library, group = arrays, ranks.group(rank, n, address)
    for quantise in ("e4m3", "e4m3_ue8m0"):
        comm = made(group, hidden=132, dtype="float16", quantise=quantise, micro_batches=2)
        rows = library.full((1, 132), 448 * 2, "float16")
        routed = comm.dispatch(rows, library.asarray([[6, -1, 0]]), layout="token", micro_batch=1)
        comm.synchronize()
        group.barrier()
        numbers, scales = map(on_host, routed.out)
        came = sum(routed.rows_of_ranks())
        # 448 is 0x7e. The scale is 2, which is 2^(128 - 127).
        assert (numbers[:came] == 0x7E).all() and numbers.shape == (n * C, 132)
        expected = [[2, 2]] * came if quantise == "e4m3" else [[128, 128, 0, 0]] * came
        assert scales[:came].tolist() == expected and scales.dtype == ("float32" if quantise == "e4m3" else "uint8")


def of_torch(rank, n, address):
    import torch

    group = ranks.group(rank, n, address)
    comm = made(group, dtype="bfloat16")
    rows, ids = torch.full((2, H), 1.5, dtype=torch.bfloat16), torch.tensor([[0, 6, -1], [3, -1, -1]])
    routed = comm.dispatch(rows, ids, torch.full((2, K), 0.5), layout="flat", alignment=2)
    comm.synchronize()
    (out,) = routed.out
    assert (out.dtype, tuple(out.shape)) == (torch.bfloat16, (n * C * min(K, comm.n_local) + comm.n_local, H))
    sums = comm.combine(routed, out * 2, bias=torch.ones_like(rows))
    comm.synchronize()
    assert sums.dtype == torch.bfloat16 and sums[:, 0].tolist() == [4, 2.5]
    received = comm.dispatch(rows, ids)
    comm.synchronize()
    assert (torch.from_numpy(numpy.asarray(received.received())).view(torch.bfloat16)[0, 0] == 1.5).all()
    comm.release(received)
    # The stream of calls without an array is that of tensors that any of the objects had.
    comm = made(group, dtype="bfloat16", tag=1)
    part, streams = comm.with_payload(also=[]), []
    part.dispatch(rows, ids)
    comm._current_stream = lambda like: streams.append(like) or 0
    comm.synchronize()
    assert torch.is_tensor(streams[0])
    comm = made(group, dtype="bfloat16", quantise="e4m3")
    routed = comm.dispatch(rows, ids, layout="token")
    comm.synchronize()
    group.barrier()
    assert [it.dtype for it in routed.out] == [torch.float8_e4m3fn, torch.float32]


def test_tensors_of_torch():
    pytest.importorskip("torch")
    if arrays is not numpy:
        pytest.skip("these tensors are those of the host")
    ranks.run(2, of_torch)


@ranks.each_of(1)
def test_rows_may_be_any_bytes(rank, n, address):
    library, comm = arrays, joined(rank, n, address, row_bytes=20, max_blocks=1, calls_at_once=3)
    rows = library.arange(40, dtype="uint8").reshape(2, 20)
    out = library.zeros((N * C, 20), "uint8")
    routed = comm.dispatch(rows, library.asarray([[0, -1, -1]] * 2), layout="token", out=out)
    comm.synchronize()
    assert routed.out[0] is out and on_host(out)[:2].tolist() == on_host(rows).tolist()
    assert on_host(comm.combine(routed, library.ones((N * C, H), "float32"))).shape == (2, H)
    comm.synchronize()


@ranks.each_of(1)
def test_errors_name_the_argument(rank, n, address):
    library = arrays
    group = ranks.group(rank, n, address)
    usual = {"experts": 4, "top_k": 2, "hidden": 8, "capacity": 4}

    def refused(kind, text, call, *args, **given):
        with pytest.raises(kind, match=text):
            call(*args, **given)

    def of(**options):
        return made(group, **usual | options)

    refused(TypeError, "argument 'comm': expected a CommGroup", Experts, 3, **usual)
    refused(ValueError, "argument 'dtype': expected 'bfloat16', .*, got 'float64'", of, dtype="float64")
    refused(ValueError, "argument 'quantise': expected 'e4m3', 'e4m3_ue8m0', got 'int8'", of, quantise="int8")
    refused(ValueError, "argument 'experts': expected a number from 0 to 2147483647, got -1", of, experts=-1)
    refused(TypeError, "argument 'also': expected a whole number, got 1.5", of, also=[1.5])
    refused(mscclpp.Error, r"hidden\(6\); give a multiple of 4", of, hidden=6)
    refused(ValueError, "argument 'timeout': expected seconds", of, timeout=-1)

    comm, other = of(), of(tag=7, ranks=[0])
    assert repr(comm) == f"<mscclpp.ep.Experts, rank 0 of 1, device {comm.device}>"
    rows, ids = library.ones((2, 8), "float32"), library.asarray([[0, 1], [2, 3]], "int64")
    weights = library.ones((2, 2), "float32")
    refused(TypeError, "argument 'topk_ids': .* int32 or int64, got int16", comm.dispatch, rows, ids.astype("int16"))
    refused(ValueError, r"argument 'topk_ids': .*\(tokens, 2\), got \(4,\)", comm.dispatch, rows, ids.reshape(4))
    refused(TypeError, "argument 'rows': expected numbers of type float32", comm.dispatch, rows.astype("int32"), ids)
    refused(ValueError, "argument 'rows': expected 2 rows of 32 bytes, .* 32 bytes", comm.dispatch, rows[:1], ids)
    refused(ValueError, "argument 'rows': the array is not contiguous", comm.dispatch, rows[:, ::2], ids)
    refused(ValueError, r"argument 'weights': .*\(2, 2\), got \(1, 2\)", comm.dispatch, rows, ids, weights[:1])
    refused(TypeError, "argument 'weights': .* float32, got float64", comm.dispatch, rows, ids, weights.astype(float))
    refused(ValueError, "argument 'also': expected 0 arrays, got 1", comm.dispatch, rows, ids, also=[rows])
    refused(ValueError, "argument 'layout': expected 'rank'", comm.dispatch, rows, ids, layout="column")
    refused(ValueError, "argument 'alignment': .* from 1", comm.dispatch, rows, ids, layout="flat", alignment=0)
    refused(
        mscclpp.Error, '^the layout "flat" with an alignment', comm.dispatch, rows, ids, layout="flat", alignment=70000
    )
    refused(ValueError, "argument 'out': the layout \"rank\"", comm.dispatch, rows, ids, out=rows)
    refused(ValueError, "argument 'out': expected 1 arrays", comm.dispatch, rows, ids, layout="token", out=(rows, rows))
    refused(
        ValueError,
        r"argument 'out\[0\]': expected 16 rows",
        comm.dispatch,
        rows,
        ids,
        layout="expert",
        out=rows,
    )
    refused(ValueError, r"argument 'micro_batch'", comm.dispatch, rows, ids, micro_batch=-1)
    refused(mscclpp.Error, r"micro-batch 1 of experts", comm.dispatch, rows, ids, micro_batch=1)

    routed = comm.dispatch(rows, ids, weights, layout="token")
    refused(TypeError, "argument 'routed': expected a Routed, got int", comm.combine, 3, rows)
    refused(ValueError, "argument 'rows': expected 4 rows of 8 numbers, .* got 16 numbers", comm.combine, routed, rows)
    full = routed.out[0]
    refused(ValueError, "argument 'out': expected 2 rows of 8 numbers", comm.combine, routed, full, full)
    refused(ValueError, "argument 'bias': expected 2 rows of 8 numbers", comm.combine, routed, full, bias=full)
    refused(ValueError, "argument 'exact': expected False", comm.combine, routed, full, exact=True)
    refused(mscclpp.Error, "a routing of other experts", other.combine, routed, full)
    refused(mscclpp.Error, "a routing of other experts", other.release, routed)
    refused(ValueError, 'received\\(\\) is for the layout "rank", .* had "token"', routed.received)
    refused(mscclpp.Error, "row 4 of rank 0", routed.row, 0, 4)
    comm.combine(routed, full)
    comm.synchronize()

    comm.dispatch(rows, library.asarray([[0, 4], [1, 1]]), layout="token")
    refused(mscclpp.Error, "token 0 has a choice that is neither -1 nor one of the 4 experts", comm.synchronize)
    many = library.ones((5, 8), "float32")
    refused(mscclpp.Error, "more than 4 tokens", comm.dispatch, many, library.zeros((5, 2), "int32"), layout="token")
    comm.synchronize()
    comm.dispatch(rows, ids, layout="token", out=library.zeros((1, 8), "float32"))
    with pytest.raises(mscclpp.Error, match="more rows came than the memory of the layout holds"):
        comm.synchronize()
    comm.check()
    if library is numpy:
        fixed = numpy.zeros((4, 8), "float32")
        fixed.flags.writeable = False
        refused(ValueError, r"argument 'out\[0\]': .* read-only", comm.dispatch, rows, ids, layout="token", out=fixed)


@ranks.each_of(2)
def test_ranks_that_differ_are_told(rank, n, address):
    with pytest.raises(mscclpp.Error, match="set up experts with different capacity: "):
        joined(rank, n, address, capacity=4 + rank)


@ranks.each_of(2)
def test_a_rank_that_does_not_come_is_named(rank, n, address):
    library, comm = arrays, joined(rank, n, address, timeout=1)
    if rank == 0:
        comm.dispatch(library.ones((1, H), "float32"), library.zeros((1, K), "int32"))
        with pytest.raises(mscclpp.Error, match="rank 0 cannot be used any more.*rank 1") as error:
            comm.synchronize()
        assert error.value.code == mscclpp.ErrorCode.Aborted
    comm._group.barrier()


@ranks.each_of(2)
def test_counts_come_to_the_host_and_late_reads_are_an_error(rank, n, address):
    library, comm = arrays, joined(rank, n, address, capacity=200)
    routed = comm.dispatch(library.ones((1, H), "float32"), library.asarray([[0, -1, -1]]))
    counts = comm.counts_to_host(routed)
    comm.check_received(routed)
    comm.synchronize()
    assert isinstance(counts, HostCounts)
    assert counts.rows_of_ranks() == routed.rows_of_ranks() == [1 - rank] * n
    assert counts.rows_of_experts() == routed.rows_of_experts()
    comm.release(routed)
    comm.check_received(routed)
    with pytest.raises(mscclpp.Error, match="after a combine or a release"):
        comm.synchronize()
    with pytest.raises(TypeError, match="routed"):
        comm.counts_to_host(counts)


@ranks.each_of(1)
def test_arrays_are_kept_until_calls_are_complete(rank, n, address):
    library, comm = arrays, joined(rank, n, address)
    if library is not numpy:
        return
    rows = numpy.ones((2, H), "float32")
    gone = weakref.ref(rows)
    routed = comm.dispatch(rows, numpy.asarray([[0, 1, 2]] * 2))
    view = numpy.asarray(routed.received())
    assert isinstance(routed.received(), Received) and view.shape == (1, C, 4 * H)
    del rows
    gc.collect()
    assert gone() is not None
    comm.synchronize()
    gc.collect()
    assert gone() is None
    # The rows outlive the experts.
    comm.close()
    del comm, routed
    gc.collect()
    assert (view[0, :2].view("float32") == 1).all()


def waits(rank, n, address):
    ticks, end = [], threading.Event()

    def tick():
        while not end.wait(0.01):
            ticks.append(1)

    thread = threading.Thread(target=tick)
    thread.start()
    if rank == 1:
        group = ranks.group(rank, n, address)
        end.wait(1.0)
        comm = Experts(group, experts=2, top_k=1, hidden=4, capacity=1, timeout=LIMIT)
    else:
        comm = joined(rank, n, address, experts=2, top_k=1, hidden=4, capacity=1, dtype="bfloat16")
    end.set()
    thread.join()
    assert comm.n_ranks == 2
    return len(ticks)


def test_other_threads_run_while_the_ranks_meet():
    assert all(ticks > 3 for ticks in ranks.run(2, waits))
