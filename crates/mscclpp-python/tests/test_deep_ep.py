"""`deep_ep` over `mscclpp.ep`, with CPU tensors on simulated devices, beside an oracle in plain PyTorch."""

import contextlib
import inspect
import logging
import os
import signal

import mscclpp
import mscclpp.ep
import pytest

import ranks
from device import sim_only

torch = pytest.importorskip("torch")
# On GPUs, DeepEP's own tests take their place.
pytestmark = sim_only

E, K, H = 8, 3, 640
#: The time-out of a run: importing torch takes minutes if the machine is busy.
LIMIT = 900


def joined(rank, n, address):
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://{address}", rank=rank, world_size=n)
    mscclpp.ep.install_deep_ep()
    import deep_ep

    return deep_ep, dist.group.WORLD


class Tokens:
    """The tokens of a rank: whole numbers, and weights in eighths, whose sums are exact in any order."""

    def __init__(self, rank, count, seed=0, experts=E):
        random = torch.Generator().manual_seed(1000 * seed + rank)
        self.x = torch.randint(-8, 9, (count, H), generator=random).bfloat16()
        order = torch.rand((count, experts), generator=random).argsort(1)
        # Some choices are none.
        self.ids = torch.where(torch.rand((count, K), generator=random) < 0.2, -1, order[:, :K])
        self.weights = torch.randint(1, 9, (count, K), generator=random) / 8
        self.bias = [torch.randint(-8, 9, (count, H), generator=random).bfloat16() for _ in range(2)]


def came(everybody, rank):
    """The tokens that come to a rank: source and number there."""
    local = E // len(everybody)
    return [
        (source, t)
        for source, tokens in enumerate(everybody)
        for t, ids in enumerate(tokens.ids.tolist())
        if any(e // local == rank for e in ids if e >= 0)
    ]


def rows_of(everybody, found, name="x"):
    rows = [getattr(everybody[source], name)[t] for source, t in found]
    return torch.stack(rows) if rows else getattr(everybody[0], name)[:0]


def local_ids(everybody, found, rank):
    """Local experts and weights of the rows that come."""
    local = E // len(everybody)
    ids, weights = rows_of(everybody, found, "ids"), rows_of(everybody, found, "weights")
    is_here = (ids >= 0) & (ids // local == rank)
    return torch.where(is_here, ids - rank * local, -1), torch.where(is_here, weights, 0)


def cast(x):
    """Numbers of one byte, and a scale for 128 of them."""
    groups = x.float().view(-1, H // 128, 128)
    scales = groups.abs().amax(2).clamp(1e-4) / 448
    return (groups / scales[..., None]).to(torch.float8_e4m3fn).view(x.shape), scales


def bits(x):
    return x.contiguous().view(torch.uint8)


def refused(kind, text, call, *args, **given):
    with pytest.raises(kind, match=text):
        call(*args, **given)


def equal(x, y):
    return x.dtype == y.dtype and x.shape == y.shape and torch.equal(bits(x), bits(y))


# Normal mode


def arguments(buffer, tokens, with_topk=True):
    of_ranks, none, of_experts, of_tokens, event = buffer.get_dispatch_layout(
        topk_idx=tokens.ids, num_experts=E, previous_event=None, async_finish=False, allocate_on_comm_stream=False
    )
    assert none is None and event.event is None
    given = {"num_tokens_per_rank": of_ranks, "is_token_in_rank": of_tokens, "num_tokens_per_expert": of_experts}
    return given | ({"topk_idx": tokens.ids, "topk_weights": tokens.weights} if with_topk else {})


def check_layout(given, tokens, n):
    local = E // n
    in_rank = torch.stack([((tokens.ids >= 0) & (tokens.ids // local == r)).any(1) for r in range(n)], 1)
    assert equal(given["is_token_in_rank"], in_rank)
    assert equal(given["num_tokens_per_rank"], in_rank.sum(0).int())
    assert equal(given["num_tokens_per_expert"], torch.stack([(tokens.ids == e).sum() for e in range(E)]).int())


@ranks.each_of(2, 4, timeout=LIMIT)
def test_normal_mode_is_that_of_the_oracle(rank, n, address):
    deep_ep, group = joined(rank, n, address)
    buffer = deep_ep.Buffer(
        group,
        num_nvl_bytes=1 << 20,
        num_rdma_bytes=0,
        low_latency_mode=False,
        num_qps_per_rank=1,
        allow_nvlink_for_low_latency_mode=True,
        allow_mnnvl=False,
        use_fabric=False,
        explicitly_destroy=True,
        enable_shrink=False,
    )
    assert (buffer.rank, buffer.group_size, buffer.group) == (rank, n, group)
    # The third time, the capacity grows, with handles alive.
    handles = []
    for seed, counts in enumerate([(5, 0, 7, 1), (0, 9, 3, 4), (150, 2, 0, 6)]):
        everybody = [Tokens(r, count, seed) for r, count in enumerate(counts[:n])]
        for number, kind in enumerate(("bfloat16", "e4m3", "by column")):
            with_topk, is_async = (seed + number) % 2 == 0, number != 1
            handle = one_way(deep_ep, buffer, rank, everybody, kind, with_topk, is_async)
            handles.append((handle, everybody, with_topk))
    for given in handles:
        there_and_back(buffer, rank, *given)
    buffer.destroy()
    with pytest.raises(RuntimeError, match="has been destroyed"):
        buffer.get_dispatch_layout(everybody[rank].ids, E)


def one_way(deep_ep, buffer, rank, everybody, kind, with_topk, is_async):
    tokens, n = everybody[rank], len(everybody)
    found = came(everybody, rank)
    given = arguments(buffer, tokens, with_topk)
    check_layout(given, tokens, n)
    given |= {
        "handle": None,
        "num_tokens_per_rdma_rank": None,
        "config": deep_ep.Buffer.get_dispatch_config(n),
        "previous_event": buffer.capture() if is_async else None,
        "async_finish": is_async,
        "allocate_on_comm_stream": is_async,
    }
    x = [tokens.x] if kind == "bfloat16" else list(cast(tokens.x))
    if kind == "by column":
        x[1] = x[1].T.contiguous().T
    given["x"] = x[0] if len(x) == 1 else tuple(x)
    rows = rows_of(everybody, found)
    expected = [rows] if len(x) == 1 else list(cast(rows))
    ids, weights = local_ids(everybody, found, rank)
    of_expert = [sum((t.ids == e).sum().item() for t in everybody) for e in range(E)][rank * E // n :][: E // n]

    came_x, came_ids, came_weights, counts, handle, event = buffer.dispatch(**given, expert_alignment=16)
    assert isinstance(event, deep_ep.EventOverlap) and (event.event is not None) == is_async
    with event:
        pass
    for got, wanted in zip(came_x if len(x) > 1 else [came_x], expected, strict=True):
        assert equal(got, wanted)
    assert counts == [-(-each // 16) * 16 for each in of_expert]
    prefix = torch.tensor([[len([s for s, _ in came(everybody, r) if s <= i]) for r in range(n)] for i in range(n)])
    assert equal(handle[0], prefix.int())
    if with_topk:
        assert equal(came_ids, ids) and equal(came_weights, weights)
    else:
        assert came_ids is None and came_weights is None

    # Without a wait for the host, into as many rows as there can be.
    worst = n * max(len(each.x) for each in everybody)
    came_x, came_ids, came_weights, none, worst_handle, event = buffer.dispatch(**given, num_worst_tokens=worst)
    event.current_stream_wait()
    assert none == [] and worst_handle[0] is None
    for got, wanted in zip(came_x if len(x) > 1 else [came_x], expected, strict=True):
        assert len(got) == worst and equal(got[: len(found)], wanted)
    if with_topk:
        assert len(came_ids) == worst == len(came_weights)
        assert equal(came_ids[: len(found)], ids) and equal(came_weights[: len(found)], weights)
        assert (came_ids[len(found) :] == -1).all()
    padded = torch.cat([rows, torch.full((worst - len(found), H), torch.nan, dtype=rows.dtype)])
    combined, none, _ = buffer.combine(padded, worst_handle)
    assert none is None
    check_sums(combined, everybody, rank, lambda r: 1)
    return handle


def check_sums(combined, everybody, rank, factor, bias=()):
    """Compares with sums in float32, in the order of the ranks, which are rounded once."""
    tokens = everybody[rank]
    sums = torch.zeros(tokens.x.shape)
    for r in range(len(everybody)):
        for source, t in came(everybody, r):
            if source == rank:
                sums[t] += tokens.x[t].float() * factor(r)
    for each in bias:
        sums += each.float()
    assert equal(combined, sums.bfloat16())


def there_and_back(buffer, rank, handle, everybody, with_topk):
    """Other rows take the way of a handle, and come back as one sum, with weights and biases."""
    tokens, found = everybody[rank], came(everybody, rank)
    for x in (tokens.x + 1, cast(tokens.x + 1)):
        got, *nones, same, _event = buffer.dispatch(x, handle=handle, async_finish=True)
        assert nones == [None] * 3 and same is handle
        rows = rows_of(everybody, found) + 1
        expected = cast(rows) if isinstance(x, tuple) else (rows,)
        for each, wanted in zip(got if isinstance(got, tuple) else (got,), expected, strict=True):
            assert equal(each, wanted)
    y = rows_of(everybody, found) * (rank + 1)
    weights = torch.arange(len(found) * K, dtype=torch.float32).view(-1, K) + rank
    for bias in (None, tokens.bias[0], tuple(tokens.bias)):
        combined, combined_weights, _ = buffer.combine(
            y,
            handle,
            topk_weights=None if bias is None or not with_topk else weights,
            bias=bias,
            config=buffer.get_combine_config(len(everybody)),
            previous_event=buffer.capture(),
            async_finish=True,
            allocate_on_comm_stream=True,
        )
        biases = () if bias is None else bias if isinstance(bias, tuple) else (bias,)
        check_sums(combined, everybody, rank, lambda r: r + 1, biases)
        if bias is None or not with_topk:
            assert combined_weights is None
            continue
        sums = torch.zeros(tokens.weights.shape)
        for r in range(len(everybody)):
            for place, (source, t) in enumerate(came(everybody, r)):
                if source == rank:
                    sums[t] += torch.arange(place * K, (place + 1) * K) + r
        assert equal(combined_weights, sums)


# Low-latency mode

M = 6
KINDS = [
    {"use_fp8": False},
    {"use_fp8": True},
    {"use_fp8": True, "round_scale": True},
    {"use_fp8": True, "round_scale": True, "use_ue8m0": True},
]
ENDS = [{"return_recv_hook": True}, {"async_finish": True}, {}]


def of_experts(everybody, rank):
    """The tokens of each expert of a rank: source and number there."""
    local = E // len(everybody)
    return [
        [(s, t) for s, tokens in enumerate(everybody) for t in range(len(tokens.x)) if e in tokens.ids[t].tolist()]
        for e in range(rank * local, (rank + 1) * local)
    ]


@ranks.each_of(2, 4, timeout=LIMIT)
def test_low_latency_mode_is_that_of_the_oracle(rank, n, address):
    deep_ep, group = joined(rank, n, address)
    size = deep_ep.Buffer.get_low_latency_rdma_size_hint(M, H, n, E)
    buffer = deep_ep.Buffer(group, num_rdma_bytes=size, low_latency_mode=True, num_qps_per_rank=E // n)
    buffer.clean_low_latency_buffer(M, H, E)
    for seed, counts in enumerate([(5, 0, 6, 1), (1, 6, 3, 4), (0, 1, 2, 6)]):
        everybody = [Tokens(r, count, seed) for r, count in enumerate(counts[:n])]
        for number, kind in enumerate(KINDS):
            a_layer(buffer, rank, everybody, kind, ENDS[(number + seed) % 3], zero_copy=number % 2 == 1)
    two_at_once(buffer, rank, [everybody, [Tokens(r, M, 7) for r in range(n)]])
    mask = torch.ones(n, dtype=torch.int32)
    buffer.low_latency_query_mask_buffer(mask)
    assert not mask.any()
    buffer.low_latency_update_mask_buffer(n - 1, False)
    refused(ValueError, "made with enable_shrink=True", buffer.low_latency_update_mask_buffer, (rank + 1) % n, True)
    buffer.low_latency_clean_mask_buffer()
    local = buffer.get_local_buffer_tensor(torch.int32, size=(2, 3), offset=4, use_rdma_buffer=True)
    assert (local.dtype, local.shape) == (torch.int32, (2, 3)) and buffer.get_local_buffer_tensor(
        torch.int8
    ).numel() == 0
    assert buffer.get_local_buffer_tensor(torch.int8, use_rdma_buffer=True).zero_().numel() == size
    buffer.destroy()


def end(ends, event, hook):
    if "return_recv_hook" in ends:
        assert event.event is None
        hook()
    elif "async_finish" in ends:
        event.event.current_stream_wait()
    else:
        assert event.event is None
        hook()  # without effect


def a_layer(buffer, rank, everybody, kind, ends, zero_copy, lost=()):
    n, tokens = len(everybody), everybody[rank]
    stats, waits = torch.full((E // n,), 100, dtype=torch.int32), torch.zeros(n, dtype=torch.int64)
    x, counts, handle, event, hook = buffer.low_latency_dispatch(
        tokens.x,
        tokens.ids,
        M,
        E,
        cumulative_local_expert_recv_stats=stats,
        dispatch_wait_recv_cost_stats=waits,
        **kind,
        **ends,
    )
    end(ends, event, hook)
    found = of_experts(everybody, rank)
    assert counts.dtype == torch.int32 and counts.tolist() == [len(each) for each in found]
    assert stats.tolist() == [100 + len(each) for each in found] and (waits >= 0).all()
    rows = check_rows(x, everybody, found, kind)

    sources, ranges, *rest = handle
    assert rest == [M, H, E] and len(handle) == 5 and equal(handle[0], sources)
    assert sources.shape == (E // n, n * M) and ranges.shape == (E // n, n)
    for e, of_expert in enumerate(found):
        assert sources[e, : len(of_expert)].tolist() == [t for _, t in of_expert]
        for r in range(n):
            before = sum(s < r for s, _ in of_expert)
            assert ranges[e, r].item() == before << 32 | sum(s == r for s, _ in of_expert)

    # Numbers behind those that came are not to be read.
    y = torch.full((E // n, n * M, H), torch.nan, dtype=torch.bfloat16)
    for e, of_expert in enumerate(found):
        y[e, : len(of_expert)] = rows[e] * (rank * (E // n) + e + 1)
    if zero_copy:
        buffer.get_next_low_latency_combine_buffer(handle)[:, :, :] = y
        y = torch.full_like(y, torch.nan)
    waits = torch.zeros(n, dtype=torch.int64)
    out = torch.full_like(tokens.x, torch.nan) if zero_copy else None
    combined, event, hook = buffer.low_latency_combine(
        y,
        tokens.ids,
        tokens.weights,
        handle,
        use_logfmt=zero_copy,
        zero_copy=zero_copy,
        out=out,
        combine_wait_recv_cost_stats=waits,
        **ends,
    )
    end(ends, event, hook)
    assert out is None or combined is out
    expected = sums_of_experts(tokens, n, lambda e, t: tokens.x[t].float() * (e + 1), lost)
    if kind["use_fp8"]:
        torch.testing.assert_close(combined, expected, rtol=0.07, atol=0.5)
    else:
        assert equal(combined, expected)


def sums_of_experts(tokens, n, made, lost=()):
    """Each rank rounds the weighted sum of its experts, then their sum is rounded. Ranks that are lost have no part."""
    sums = torch.zeros(tokens.x.shape)
    for t, (ids, weights) in enumerate(zip(tokens.ids.tolist(), tokens.weights.tolist())):
        for r in sorted({*range(n)} - {*lost}):
            of_rank = torch.zeros(H)
            for e, w in zip(ids, weights):
                if e >= 0 and e // (E // n) == r:
                    of_rank += w * made(e, t)
            sums[t] += of_rank.bfloat16().float()
    return sums.bfloat16()


def check_rows(x, everybody, found, kind):
    """Compares what came with what was sent, and returns it as bf16."""
    n = len(everybody)
    numbers, scales = x if kind["use_fp8"] else (x, None)
    assert numbers.shape == (len(found), n * M, H)
    rows = []
    for e, of_expert in enumerate(found):
        sent, got = rows_of(everybody, of_expert), numbers[e, : len(of_expert)]
        if scales is None:
            assert equal(got, sent)
            rows.append(got)
            continue
        expected = cast(sent)[1]
        its = scales[e, : len(of_expert)]
        if kind.get("round_scale"):
            expected = 2 ** expected.log2().ceil()
        if kind.get("use_ue8m0"):
            assert scales.dtype == torch.int32 and scales.shape == (len(found), n * M, -(-H // 512))
            exponents = its.clone(memory_format=torch.contiguous_format).view(torch.uint8)
            assert not exponents[:, H // 128 :].any()
            its = 2 ** (exponents[:, : H // 128].float() - 127)
        assert its.shape == expected.shape and scales.stride()[1] == 1, "column-major in the last two"
        torch.testing.assert_close(its, expected)
        back = got.float().view(-1, H // 128, 128) * its[..., None]
        back = back.view(sent.shape)
        torch.testing.assert_close(back, sent.float(), rtol=0.07, atol=0.02)
        rows.append(back.bfloat16())
    return rows


def two_at_once(buffer, rank, batches):
    """Two micro-batches send before the first of them receives."""
    for _ in range(3):
        sent = [
            buffer.low_latency_dispatch(batch[rank].x, batch[rank].ids, M, E, use_fp8=False, return_recv_hook=True)
            for batch in batches
        ]
        hooks, results = [], []
        for batch, (x, _counts, handle, _event, hook) in zip(batches, sent):
            hook()
            tokens = batch[rank]
            result = buffer.low_latency_combine(x * 2, tokens.ids, tokens.weights, handle, return_recv_hook=True)
            results.append(result[0])
            hooks.append(result[2])
        for hook in hooks:
            hook()
        for batch, result in zip(batches, results):
            tokens = batch[rank]
            assert equal(result, sums_of_experts(tokens, len(batch), lambda e, t: tokens.x[t].float() * 2))


# Ranks that are lost


def shrinking(rank, n, address):
    """Rank 3 dies, and rank 2 ends later. The others go on."""
    from mscclpp import _deep_ep_setup

    # No wait ends by itself: the job says that rank 3 is lost, and rank 2 is masked.
    _deep_ep_setup.PATIENCE = 2 * LIMIT
    said, handler = [], logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("mscclpp.ep").addHandler(handler)
    deep_ep, group = joined(rank, n, address)
    buffer = deep_ep.Buffer(group, low_latency_mode=True, enable_shrink=True)
    everybody = [Tokens(r, count) for r, count in enumerate((5, 3, 6, 2))]
    tokens, mask = everybody[rank], torch.ones(n, dtype=torch.int32)

    def layers(lost):
        them = [Tokens(r, 0) if r in lost else its for r, its in enumerate(everybody)]
        for number, kind in enumerate(KINDS):
            a_layer(buffer, rank, them, kind, ENDS[number % 3], number % 2 == 1, lost)
        # Another shape.
        buffer.low_latency_dispatch(tokens.x, tokens.ids, M + 1, E)
        expect_masks(lost)

    def expect_masks(lost):
        buffer.low_latency_query_mask_buffer(mask)
        assert mask.tolist() == [int(r in lost) for r in range(n)]

    layers([])
    buffer.low_latency_clean_mask_buffer()
    if rank == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    # What comes with this call may be wrong.
    buffer.low_latency_dispatch(tokens.x, tokens.ids, M, E)
    expect_masks([3])
    layers([3])
    assert len(said) == 1 and "ranks [3] are lost" in said[0]
    if rank == 2:
        return
    buffer.low_latency_update_mask_buffer(2, True)
    layers([2, 3])
    assert len(said) == 1

    update, dispatch = buffer.low_latency_update_mask_buffer, buffer.low_latency_dispatch
    update(1 - rank, False)
    text = r" brings no rank back, and ranks \[2, 3\] are lost: make a new Buffer"
    refused(mscclpp.Error, r"update_mask_buffer\(3, False\)" + text, update, 3, False)
    refused(mscclpp.Error, r"clean_mask_buffer\(\)" + text, buffer.low_latency_clean_mask_buffer)
    text = r" takes all ranks, and ranks \[2, 3\] are lost"
    refused(mscclpp.Error, "the first call of a shape" + text, dispatch, tokens.x, tokens.ids, M + 2, E)
    refused(mscclpp.Error, r"dispatch\(\)" + text, buffer.dispatch, tokens.x, **arguments(buffer, tokens))
    buffer.destroy()


def test_ranks_go_on_without_those_that_are_lost():
    with ranks.Ranks(4, shrinking) as them:
        for rank in range(3):
            them.outcome(rank, LIMIT)


def left_alone(rank, n, address, how, is_done):
    """Rank 1 makes one call. Then it ends, or makes no other one until rank 0 has its error."""
    from mscclpp import _deep_ep_setup

    if how == "is silent":
        _deep_ep_setup.PATIENCE = 20
    deep_ep, group = joined(rank, n, address)
    buffer, tokens = deep_ep.Buffer(group), Tokens(rank, 4)
    given = arguments(buffer, tokens)
    buffer.dispatch(tokens.x, **given)
    if rank == 0:
        refused(mscclpp.Error, "rank 1", buffer.dispatch, tokens.x, **given)
        is_done.set()
    elif how == "is silent":
        assert is_done.wait(LIMIT)


@pytest.mark.parametrize("how", ["ends", "is silent"])
def test_a_rank_that_is_gone_is_named(how):
    ranks.run(2, left_alone, how, ranks.SPAWN.Event(), timeout=LIMIT)


# A layer as engines play it


class Layer:
    """Experts of two multiplications each."""

    def __init__(self):
        random = torch.Generator().manual_seed(3)
        self.up = torch.randn((E, H, 64), generator=random) / 16
        self.down = torch.randn((E, 64, H), generator=random) / 8

    def __call__(self, e, rows):
        return (torch.nn.functional.silu(rows.float() @ self.up[e]) @ self.down[e]).bfloat16()

    def of_rows(self, rows, ids, weights):
        """The weighted sums of the experts of each row, where -1 is none."""
        out = torch.zeros(rows.shape)
        for row, (of_row, its) in enumerate(zip(ids.tolist(), weights.tolist())):
            for e, w in zip(of_row, its):
                if e >= 0:
                    out[row] += w * self(e, rows[row : row + 1])[0].float()
        return out

    def of_experts(self, rows, counts, first):
        out = torch.full_like(rows, torch.nan)
        for e, n in enumerate(counts.tolist()):
            out[e, :n] = torch.cat([self(first + e, row[None]) for row in rows[e, :n]]) if n else rows[e, :0]
        return out


def prefill(buffer, layer, tokens, n, rank):
    """The order of the calls of an engine's high-throughput path."""
    of_ranks, of_rdma, of_experts, of_tokens, _ = buffer.get_dispatch_layout(tokens.ids, E, previous_event=None)
    x, ids, weights, counts, handle, event = buffer.dispatch(
        x=tokens.x,
        handle=None,
        num_tokens_per_rank=of_ranks,
        num_tokens_per_rdma_rank=of_rdma,
        is_token_in_rank=of_tokens,
        num_tokens_per_expert=of_experts,
        topk_idx=tokens.ids,
        topk_weights=tokens.weights,
        expert_alignment=1,
        config=buffer.get_dispatch_config(n),
        async_finish=True,
    )
    if event.event is not None:
        event.current_stream_wait()
    assert [(ids == e).sum().item() for e in range(E // n)] == counts
    made = layer.of_rows(x, torch.where(ids == -1, -1, ids + rank * (E // n)), weights).bfloat16()
    combined, _, event = buffer.combine(
        made, handle, topk_weights=None, config=buffer.get_combine_config(n), async_finish=True
    )
    event.current_stream_wait()
    return combined


def decode(buffer, layer, tokens, n, rank):
    """The order of the calls of an engine's low-latency path."""
    x, counts, handle, _, hook = buffer.low_latency_dispatch(
        tokens.x, tokens.ids, M, E, use_fp8=False, async_finish=False, return_recv_hook=True
    )
    hook()
    out = torch.empty_like(tokens.x)
    made = layer.of_experts(x, counts, rank * (E // n))
    _, _, hook = buffer.low_latency_combine(
        made, tokens.ids, tokens.weights, handle, async_finish=False, zero_copy=False, return_recv_hook=True, out=out
    )
    hook()
    return out


@ranks.each_of(2, 4, timeout=LIMIT)
def test_a_layer_is_that_of_one_rank_and_of_mscclpp_ep(rank, n, address):
    deep_ep, group = joined(rank, n, address)
    buffer = deep_ep.Buffer(group, 1 << 20, deep_ep.Buffer.get_low_latency_rdma_size_hint(M, H, n, E), True)
    experts = mscclpp.ep.Experts(group, experts=E, top_k=K, hidden=H, capacity=M)
    layer = Layer()
    for seed in range(2):
        # Numbers that are rounded.
        tokens = Tokens(rank, M - rank, seed)
        tokens.x = (tokens.x * 0.37).bfloat16()
        tokens.weights = tokens.weights * 0.77
        reference = layer.of_rows(tokens.x, tokens.ids, tokens.weights)
        results = []

        results.append(prefill(buffer, layer, tokens, n, rank))
        ids, weights = torch.full((n * M, K), -1), torch.zeros((n * M, K))
        routed = experts.dispatch(
            tokens.x, tokens.ids, tokens.weights, layout="token", ids_into=ids, weights_into=weights
        )
        experts.synchronize()
        of_row = torch.where(ids == -1, -1, ids + rank * (E // n))
        sums = experts.combine(routed, layer.of_rows(routed.out[0], of_row, weights).bfloat16())
        experts.synchronize()
        results.append(sums)

        results.append(decode(buffer, layer, tokens, n, rank))
        routed = experts.dispatch(tokens.x, tokens.ids, layout="expert")
        experts.synchronize()
        counts = torch.tensor(routed.rows_of_experts())
        made = layer.of_experts(routed.out[0], counts, rank * (E // n))
        sums = experts.combine(routed, made, weights=tokens.weights)
        experts.synchronize()
        results.append(sums)

        assert equal(results[0], results[1]) and equal(results[2], results[3]), "those of mscclpp.ep"
        for result in results:
            torch.testing.assert_close(result.float(), reference, rtol=0.02, atol=0.02)
        group_barrier(group)
    buffer.destroy()


def group_barrier(group):
    import torch.distributed as dist

    dist.barrier(group)


# Streams, of which simulated devices have one


class Stream:
    """A stream, or a tensor or event in one, that notes what it is asked to do."""

    def __init__(self, name, log):
        self.name, self.log = name, log

    def __getattr__(self, call):
        return lambda *others: self.log.append(" ".join([self.name, call, *(other.name for other in others)]))


def test_a_call_goes_into_the_stream_that_its_arguments_ask_for(monkeypatch):
    from mscclpp._deep_ep_events import EventHandle, EventOverlap, call_in

    log = []
    current = [Stream("current", log)]
    comm, given, made = (Stream(name, log) for name in ("comm", "given", "made"))

    @contextlib.contextmanager
    def stream(it):
        current.append(it)
        yield
        current.pop()

    for name, value in {
        "is_available": lambda: True,
        "current_stream": lambda: current[-1],
        "stream": stream,
        "Event": lambda: Stream(f"event in {current[-1].name}", log),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)

    def steps(previous, is_async):
        log.clear()
        with call_in(comm, previous, is_async, [given]) as call:
            call.made = [made]
            log.append(f"in {current[-1].name}")
        assert (call.event.event is not None) == is_async
        return [*log]

    recorded = ["event in comm record", "given record_stream comm", "made record_stream current"]
    assert steps(None, False) == ["in current"]
    assert steps(EventOverlap(), True) == ["comm wait_stream current", "in comm", *recorded]
    assert steps(None, True) == ["comm wait_stream current", "in comm", *recorded]
    previous = EventOverlap(EventHandle())
    assert steps(previous, True) == ["comm wait_event event in current", "in comm", *recorded]
    assert steps(previous, False) == ["current wait_event event in current", "in current"]


# Wrong arguments


class OneRank:
    """A communicator of one rank, with the methods of mpi4py's."""

    def Get_rank(self):
        return 0

    def Get_size(self):
        return 1

    def bcast(self, value, _root):
        return value


@ranks.each_of(1, timeout=LIMIT)
def test_errors_say_what_to_do(rank, n, address):
    deep_ep, group = joined(rank, n, address)
    Buffer = deep_ep.Buffer
    refused(TypeError, "takes one of 'group'", Buffer)
    refused(TypeError, "takes one of 'group'", Buffer, group, comm=OneRank())
    refused(TypeError, r"Buffer\(\) has no argument 'overlap' in mscclpp: ", Buffer, group, overlap=True)
    refused(ValueError, "'num_nvl_bytes': expected a number from 0 to [0-9]+, got -1", Buffer, group, -1)
    refused(TypeError, "'num_sms': expected a whole number, got 1.5", deep_ep.Config, 1.5)
    config = deep_ep.Config(
        num_sms=24,
        num_max_nvl_chunked_send_tokens=8,
        num_max_nvl_chunked_recv_tokens=16,
        num_max_rdma_chunked_send_tokens=8,
        num_max_rdma_chunked_recv_tokens=32,
    )
    assert (config.get_nvl_buffer_size_hint(100, 2), config.get_rdma_buffer_size_hint(100, 2)) == (3200, 0)
    assert Buffer.num_sms == 20 == Buffer.get_dispatch_config(2).num_sms and Buffer.is_sm90_compiled()
    Buffer.set_num_sms(4)
    assert Buffer.num_sms == 4 == Buffer.get_combine_config(2).num_sms

    buffer = Buffer(comm=OneRank())
    assert buffer.get_comm_stream() is not None
    text = r"\(\) is for ranks on several nodes"
    refused(NotImplementedError, "internode_dispatch" + text, buffer.internode_dispatch, 1, x=2)
    refused(NotImplementedError, "internode_combine" + text, buffer.internode_combine)
    update, text = buffer.low_latency_update_mask_buffer, "another one of the ranks 0 to 0, got "
    refused(ValueError, text + "0", update, 0, True)
    refused(ValueError, text + "3", update, 3)
    query, text = buffer.low_latency_query_mask_buffer, "'mask_status': expected a number for each of 1"
    refused(ValueError, text, query, torch.ones(2))

    tokens = Tokens(0, 4)
    given, send = arguments(buffer, tokens), (buffer.dispatch, tokens.x)
    refused(ValueError, "dispatch\\(\\) without a handle takes", *send)
    refused(TypeError, "dispatch\\(\\) has no argument 'num_sms' .* Buffer.set_num_sms", *send, num_sms=3)
    refused(NotImplementedError, "several nodes", *send, num_tokens_per_rdma_rank=tokens.ids)
    refused(ValueError, "'num_worst_tokens': expected at least 1 ranks x 4", *send, **given, num_worst_tokens=3)
    refused(ValueError, r"'x': expected rows of shape \(tokens, hidden\)", buffer.dispatch, tokens.x[0], **given)
    scales = torch.ones((4, 2), dtype=torch.float16)
    refused(TypeError, "expected scales of 4 bytes, got torch.float16", buffer.dispatch, (tokens.x, scales), **given)
    wrong = given | {"is_token_in_rank": torch.ones((3, 1), dtype=torch.bool)}
    refused(ValueError, r"'is_token_in_rank': .*\(4, 1\), got \(3, 1\)", *send, **wrong)
    x, _, weights, _, handle, _ = buffer.dispatch(tokens.x, **given)
    refused(ValueError, "argument 'x': expected 4 rows", buffer.dispatch, tokens.x[:2], handle)
    refused(ValueError, "'topk_weights': expected weights of", buffer.combine, x, handle, weights[:1])
    refused(
        TypeError, r"combine\(\) has no argument 'a', 'b' in mscclpp: leave it out", buffer.combine, x, handle, a=1, b=2
    )
    refused(TypeError, "get_dispatch_layout\\(\\) has no argument", buffer.get_dispatch_layout, tokens.ids, E, x=1)

    dispatch, combine = buffer.low_latency_dispatch, buffer.low_latency_combine
    send_few = (dispatch, tokens.x, tokens.ids)
    text = "'use_nvfp4', 'x_global_scale' .*: tokens do not travel as nvfp4"
    refused(TypeError, text, *send_few, M, E, use_nvfp4=True, x_global_scale=1)
    refused(mscclpp.Error, "more than 2 tokens, which is the capacity", *send_few, 2, E)
    refused(ValueError, "'use_ue8m0': it takes", *send_few, M, E, use_ue8m0=True)
    refused(ValueError, "not both", *send_few, M, E, async_finish=True, return_recv_hook=True)
    x, _, handle, _, _ = dispatch(tokens.x, tokens.ids, M, E, use_fp8=False)
    bring = (combine, x, tokens.ids, tokens.weights, handle)
    refused(TypeError, "'overlap', 'comp_signal' .*: signals between", *bring, overlap=True, comp_signal=0)
    refused(ValueError, "write the rows to get_next_low", *bring, zero_copy=True)
    refused(ValueError, "'topk_idx': expected that of the dispatch", combine, x, tokens.ids[:1], tokens.weights, handle)
    text = "argument 'topk_weights': expected numbers of type float32, got float64"
    refused(TypeError, text, combine, x, tokens.ids, tokens.weights.double(), handle)
    refused(ValueError, "argument 'x': expected", combine, x[:, :1], tokens.ids, tokens.weights, handle)
    text, waits = (
        "argument 'combine_wait_recv_cost_stats': expected numbers of type int64",
        torch.zeros(1, dtype=torch.int32),
    )
    refused(TypeError, text, *bring, combine_wait_recv_cost_stats=waits)
    text = text.replace("combine", "dispatch")
    refused(TypeError, text, *send_few, M, E, dispatch_wait_recv_cost_stats=waits)

    # What a capture cannot do. Simulated devices capture nothing.
    buffer._made.is_capturing = lambda: True
    refused(RuntimeError, "waits for counts of all ranks on the host", *send, **given)
    refused(
        RuntimeError, "for 300 tokens of a rank, are not set up .for 128 they are", *send, **given, num_worst_tokens=300
    )
    refused(RuntimeError, "for 7 tokens of a rank, are not set up .for 0 they are", *send_few, 7, E)
    dispatch(tokens.x, tokens.ids, M, E, use_fp8=False)
    buffer._made.is_capturing = lambda: False

    # Any multiple of 4 is a hidden size; the last scale may be of less than 128 numbers.
    for hidden in (16, 132):
        rows = torch.full((4, hidden), 1.5, dtype=torch.bfloat16)
        got, *_, other, _ = buffer.dispatch(rows, **given)
        assert (got == 1.5).all() and (buffer.combine(got, other)[0][(tokens.ids >= 0).any(1)] == 1.5).all()
        (numbers, scales), counts, *_ = dispatch(rows, tokens.ids, M, E)
        assert scales.shape == (E, M, -(-hidden // 128)) and counts.any()
        for e, n in enumerate(counts.tolist()):
            assert (numbers[e, :n] == 448).all() and torch.allclose(scales[e, :n], torch.tensor(1.5 / 448))

    # More shapes than are kept.
    for most in range(M + 1, M + 6):
        dispatch(tokens.x, tokens.ids, most, E)
    assert len(buffer._made._set_ups) == 4
    combine(x, tokens.ids, tokens.weights, handle)
    buffer.destroy()
    buffer.destroy()
    refused(ValueError, "8 experts do not divide into 3 equal parts", layout_of_three, tokens)


def layout_of_three(tokens):
    from types import SimpleNamespace

    from mscclpp import _deep_ep_normal

    _deep_ep_normal.layout(SimpleNamespace(size=3), tokens.ids, E)


# Putting it into place


def python(*arguments, **environment):
    run = ranks.python(*arguments, timeout=LIMIT, **environment)
    return run.returncode, run.stdout, run.stderr


def test_it_is_put_into_place_for_children(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import subprocess, sys, importlib.util\n"
        "from deep_ep import Buffer, Config, topk_idx_t\n"
        "from deep_ep.utils import EventHandle, EventOverlap\n"
        "print(Buffer.__module__, sys.argv[1:], importlib.util.find_spec('deep_ep').name)\n"
        "if len(sys.argv) < 3:\n"
        "    subprocess.run([sys.executable, __file__, *sys.argv[1:], 'child'], check=True)\n"
    )
    code, out, err = python("-m", "mscclpp.ep", str(program), "--first")
    assert code == 0, err
    lines = ["mscclpp._deep_ep ['--first'] deep_ep", "mscclpp._deep_ep ['--first', 'child'] deep_ep"]
    assert sorted(out.splitlines()) == sorted(lines)
    assert err.count("`import deep_ep` imports that of mscclpp") == 1

    in_process = "import mscclpp.ep\nmscclpp.ep.install_deep_ep()\nmscclpp.ep.install_deep_ep()\n" + program.read_text()
    (tmp_path / "other.py").write_text(in_process)
    code, out, err = python(str(tmp_path / "other.py"), "--first")
    assert code == 0 and sorted(out.splitlines()) == sorted(lines), err
    assert err.count("`import deep_ep` imports that of mscclpp") == 1


def test_another_deep_ep_is_not_replaced(tmp_path):
    (tmp_path / "deep_ep.py").write_text("")
    program = "import deep_ep, mscclpp.ep\nmscclpp.ep.install_deep_ep()"
    code, _, err = python("-c", program, PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    assert code != 0 and f"another deep_ep is already imported, from {tmp_path}/deep_ep.py" in err
    code, _, err = python("-m", "mscclpp.ep")
    assert code != 0 and "usage: python -m mscclpp.ep PROGRAM" in err


def test_every_argument_is_tested():
    from mscclpp._deep_ep import Buffer, Config

    with open(__file__) as file:
        text = file.read()
    for method in [Config, Buffer, *(each for name, each in vars(Buffer).items() if not name.startswith("_"))]:
        method = getattr(method, "__func__", method)
        if not callable(method):
            continue
        assert method.__name__ in text, method
        for name, parameter in inspect.signature(method).parameters.items():
            is_keyword = parameter.default is not inspect.Parameter.empty
            assert not is_keyword or name in text, (method.__name__, name)
