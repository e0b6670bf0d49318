"""Calls of `mscclpp.ep` for serving engines: halves, statistics, other payloads, weights that travel back."""

import mscclpp
import numpy
import pytest
from test_ep import LIMIT, C, E, H, K, N, Tokens, came, made, of_rank, on_host, places

import ranks
from device import arrays, sim_only


@ranks.each_of(N)
def test_what_goes_along_comes_to_arrays(rank, n, address):
    library, group = arrays, ranks.group(rank, n, address)
    comm = made(group, micro_batches=2)
    mine = [e for e in range(E) if e * n // E == rank]
    everybody = [Tokens(r, count) for r, count in enumerate((5, 0, 4))]
    tokens = everybody[rank]
    counts, waits = library.full(len(mine), 3, "int32"), library.zeros(n, "int64")
    for layout, id_type in (("token", "int32"), ("expert", "int64"), ("flat", "int32")):
        n_rows = {"token": n * C, "expert": n * C * len(mine)}.get(layout, n * C * min(K, len(mine)))
        ids, weights = library.full((n_rows, K), -7, id_type), library.full((n_rows, K), -7, "float32")
        sources = library.full((n_rows, 2), -7, "int32")
        routed, receive = comm.dispatch(
            library.asarray(tokens.rows),
            library.asarray(tokens.ids.astype(id_type)),
            library.asarray(tokens.weights),
            layout=layout,
            ids_into=ids,
            weights_into=weights,
            sources_into=sources,
            counts_into=counts,
            waits_into=waits,
            hook=True,
        )
        with pytest.raises(mscclpp.Error, match="a call of micro-batch 0 before the last one has received"):
            comm.dispatch(library.asarray(tokens.rows), library.asarray(tokens.ids))
        # Another micro-batch may be under way.
        other = comm.dispatch(library.asarray(tokens.rows), library.asarray(tokens.ids), micro_batch=1)
        comm.release(other)
        receive()
        with pytest.raises(mscclpp.Error, match="this call has received"):
            receive()
        comm.synchronize()
        found = places(everybody, mine, layout, 1)
        for place, source, t, _ in found:
            of_token = everybody[source]
            assert on_host(ids)[place].tolist() == [mine.index(e) if e in mine else -1 for e in of_token.ids[t]]
            assert on_host(weights)[place].tolist() == of_token.weights[t].tolist()
            assert on_host(sources)[place].tolist() == [source, t]
            assert on_host(routed.out[0]).reshape(-1, H)[place].tolist() == of_token.rows[t].tolist()
        rest = numpy.delete(on_host(ids), [place for place, *_ in found], axis=0)
        assert (rest == -7).all()
    of_expert = [sum(e in everybody[s].ids[t] for s, _, t in came(everybody, mine)) for e in mine]
    assert on_host(counts).tolist() == [3 + 3 * rows for rows in of_expert]
    assert (on_host(waits) > 0).all()
    group.barrier()


@ranks.each_of(N)
def test_weights_of_rows_travel_back(rank, n, address):
    library, group = arrays, ranks.group(rank, n, address)
    comm = made(group)
    mine = [e for e in range(E) if e * n // E == rank]
    everybody = [Tokens(r, count) for r, count in enumerate((5, 0, 4))]
    tokens = everybody[rank]
    for number, layout in enumerate(("token", "rank")):
        routed = comm.dispatch(
            library.asarray(tokens.rows), library.asarray(tokens.ids), library.asarray(tokens.weights), layout=layout
        )
        rows = numpy.full((n * C, H), numpy.nan, "float32")
        weights = numpy.full((n * C, K), numpy.nan, "float32")
        for place, source, t, _ in places(everybody, mine, layout, 1):
            rows[place] = of_rank(everybody[source], t, mine, everybody[source].weights)
            weights[place] = numpy.arange(K) + 100 * rank + 10 * source + t
        taken, waits = library.full((len(tokens.rows), K), -7, "float32"), library.zeros(n, "int64")
        biases = (library.asarray(tokens.bias), library.asarray(2 * tokens.bias))
        given = {"row_weights": library.asarray(weights), "weights_into": taken, "waits_into": waits, "bias": biases}
        if number:
            out, receive = comm.combine(routed, library.asarray(rows), hook=True, **given)
            receive()
        else:
            out = comm.combine(routed, library.asarray(rows), **given)
        comm.synchronize()
        for t, ids in enumerate(tokens.ids):
            of = {e * n // E for e in ids if e >= 0}
            assert on_host(taken)[t].tolist() == [sum(k + 100 * r + 10 * rank + t for r in of) for k in range(K)]
        sums = sum(
            numpy.array(
                [
                    of_rank(tokens, t, [e for e in range(E) if e * n // E == r], tokens.weights)
                    for t in range(len(tokens.rows))
                ]
            )
            for r in range(n)
        )
        if len(tokens.rows):
            assert numpy.array_equal(on_host(out), sums + 3 * tokens.bias)
        assert (on_host(waits) > 0).all()
    with pytest.raises(ValueError, match="'row_weights' and 'weights_into': expected both or none"):
        comm.combine(routed, library.asarray(rows), row_weights=library.asarray(weights))
    group.barrier()


@ranks.each_of(2)
def test_one_memory_serves_several_payloads(rank, n, address):
    library, group = arrays, ranks.group(rank, n, address)
    hidden = 260
    plain = made(group, experts=2, top_k=1, hidden=hidden, capacity=2, dtype="bfloat16")
    numbers = library.asarray([[0x3F80] * hidden], "uint16")  # 1.0 of type bfloat16
    ids = library.asarray([[1 - rank]], "int32")
    routed = plain.dispatch(numbers, ids, layout="expert")
    plain.synchronize()
    assert on_host(routed.out[0]).reshape(-1, hidden)[0].tolist() == [0x3F80] * hidden
    for quantise, scale in (("e4m3", numpy.float32(1 / 448)), ("e4m3_ue8m0", 0x777777)):
        other = plain.with_payload(quantise=quantise)
        fresh = other.dispatch(numbers, ids, layout="expert", column_major=True)
        other.synchronize()
        low, scales = map(on_host, fresh.out)
        words = 3 if quantise == "e4m3" else 1
        assert (low.shape, scales.shape) == ((1, n * 2, hidden), (1, words, n * 2))
        assert (low[0, 0] == (0x7E if quantise == "e4m3" else 0x78)).all()
        assert scales[0, :, 0].tolist() == [scale] * words
        # The routing of one serves the other.
        (out,) = plain.dispatch_again(fresh, numbers)
        sums = plain.combine(fresh, out)
        plain.synchronize()
        assert on_host(sums).tolist() == [[0x3F80] * hidden]
    given = plain.with_payload(row_bytes=hidden, also=[12])
    out = (library.zeros((n * 2, hidden), "uint8"), library.zeros((3, n * 2), "float32"))
    scales = library.asarray([[1, 2, 3]], "float32")
    given.dispatch(
        library.full((1, hidden), 9, "uint8"), ids, also=[scales], layout="token", out=out, column_major=True
    )
    given.synchronize()
    assert on_host(out[1])[:, 0].tolist() == [1, 2, 3] and (on_host(out[0])[0] == 9).all()
    with pytest.raises(
        mscclpp.Error, match="a payload whose rows need [0-9]+ bytes of memory; those of the set-up have"
    ):
        plain.with_payload(also=[64])
    wrong = plain if rank else given
    extra = {} if rank else {"also": [scales]}
    wrong.dispatch(numbers if rank else library.full((1, hidden), 9, "uint8"), ids, layout="token", **extra)
    with pytest.raises(mscclpp.Error, match=f"rank {1 - rank} sent rows of another payload"):
        wrong.synchronize()
    group.barrier()


@ranks.each_of(N)
def test_ranks_go_on_without_one(rank, n, address):
    library, comm = arrays, made(ranks.group(rank, n, address), survive_loss=LIMIT)
    if rank == 2:
        return
    comm.lose([2])
    for _ in range(3):
        routed = comm.dispatch(
            library.asarray([[rank + 1] * H], "float32"), library.asarray([[0, E - 1, 3]], "int32"), layout="expert"
        )
        comm.synchronize()
        assert routed.rows_of_ranks() == [1, 1, 0]
        sums = comm.combine(routed, routed.out[0])
        comm.synchronize()
        # Expert E - 1 is one of rank 2.
        assert on_host(sums).tolist() == [[2 * (rank + 1)] * H]
    assert comm.lost() == [2] and comm.lost_choices() == 3
    with pytest.raises(mscclpp.Error, match="lose\\(\\) of rank 7, which is no other rank"):
        comm.lose([7])


@ranks.each_of(1)
def test_wrong_arguments_are_named(rank, n, address):
    library, comm = arrays, made(ranks.group(rank, n, address), timeout=LIMIT)
    tokens = library.asarray(Tokens(0, 2).rows), library.asarray([[0, 1, 2]] * 2)
    for given, kind, text in [
        ({"counts_into": library.zeros(E, "int64")}, TypeError, "'counts_into': expected numbers of type int32"),
        ({"waits_into": library.zeros(0, "int64")}, ValueError, "'waits_into': expected at least 1 numbers, got 0"),
        ({"ids_into": library.zeros((C, K), "int32")}, TypeError, "'ids_into': expected numbers of type int64"),
        ({"column_major": True}, mscclpp.Error, "is for the second tensor of layouts that copy; there is none here"),
    ]:
        with pytest.raises(kind, match=text):
            comm.dispatch(*tokens, layout="token", **given)


@sim_only
def test_results_come_to_memory_of_which_an_argument_is_a_part():
    memory, is_in_rank = numpy.array([3] + [0] * 7), numpy.zeros(2, bool)
    address = memory.ctypes.data
    counter = mscclpp._mscclpp._ChoiceCounter(0)
    counter.count(1, 1, address, 8, 8, 2, address, is_in_rank.ctypes.data, 0)
    assert memory.view("int32")[:11].tolist() == [1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0]
    assert is_in_rank.tolist() == [True, False]
