"""Expert parallelism: tokens of mixture-of-experts layers go to the ranks of their experts, and come back summed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Self

from . import _arguments, _arrays, _mscclpp
from ._arguments import count, optional
from ._data_types import SIZES
from ._expert_rows import ExpertRows, _expect_one_of
from ._mscclpp import HostCounts
from ._on_device import _handle, _new, communicator_of
from ._routed import Received, Routed

_DTYPES = ("bfloat16", "float16", "float32")
_QUANTISATIONS = ("e4m3", "e4m3_ue8m0")
_LAYOUTS = ("rank", "token", "expert", "flat")


class Experts(ExpertRows):
    """The experts of a group of ranks, of which each has some. `dispatch` sends tokens to them, `combine` sums what
    they make of these.

    All ranks make the object together, with the same settings, from a `CommGroup`, a `Communicator`, a communicator of
    mpi4py or a group of PyTorch; it blocks until they do. Then they make the same calls in the same order. A call puts
    work into a stream, by default the current stream of the library of its arrays, and waits for no other rank.
    Arrays are those that `Collectives` take, and must live as long: until the work is complete.

    `experts` is the number of experts of all ranks, `top_k` the number of choices of a token, `hidden` the number of
    numbers of a token, of type `dtype` ("bfloat16", "float16" or "float32"), and `capacity` the most tokens of a rank
    in a call. Expert e is of rank e * ranks // experts, so that each rank has an equal part in order, unless `expert_map`
    has the rank of each.

    With `quantise`, tokens become numbers of one byte on their way: "e4m3" with a scale of type float32 for 128
    numbers, or "e4m3_ue8m0" with powers of two, of one byte. With `row_bytes`, tokens are rows of so many bytes of any
    content; `combine` sums rows of `hidden` numbers in any case. `also` has the bytes of a row of each other tensor
    that travels with the tokens. `exact` sets up memory for exact combines, `micro_batches` is 1 or 2.

    With `survive_loss`, calls go on without ranks that are lost: those that the job says are, and those for which a call
    has waited for so many seconds. `synchronize()` or `check()` then raise an error of the code RemoteError once, see
    `lost()`. Without it, the loss of a rank ends the experts of all.

    `max_blocks` and `calls_at_once` limit how much of the device a call takes. With `max_blocks`, blocks have 1024 threads
    and a multiprocessor each, for programs with other kernels beside the calls; without it, calls are spread over the
    whole device, and faster alone. `synchronize()` gives up after `timeout` seconds. `ranks` are those of the group that
    take part, in their order, and `tag` tells set-ups at the same time apart.
    """

    _made: _mscclpp._Experts
    _what = "experts"

    def __init__(
        self,
        comm: Any,
        *,
        experts: int,
        top_k: int,
        hidden: int,
        capacity: int,
        dtype: str = "bfloat16",
        expert_map: Iterable[int] | None = None,
        quantise: str | None = None,
        row_bytes: int | None = None,
        also: Iterable[int] = (),
        micro_batches: int = 1,
        exact: bool = False,
        max_blocks: int | None = None,
        calls_at_once: int | None = None,
        device: int | None = None,
        timeout: float | None = None,
        survive_loss: float | None = None,
        tag: int | None = None,
        ranks: Iterable[int] | None = None,
    ) -> None:
        self._group, communicator = communicator_of("comm", comm)
        _expect_one_of("dtype", dtype, _DTYPES)
        for name, seconds in (("timeout", timeout), ("survive_loss", survive_loss)):
            if seconds is not None:
                _arguments.check_seconds(seconds, name)
        self.device = _mscclpp._current_gpu()[1] if device is None else count("device", device)
        self.top_k, self.hidden = count("top_k", top_k), count("hidden", hidden)
        self.capacity = count("capacity", capacity)
        self.dtype, self._is_exact = dtype, exact
        self._set_payload(quantise, row_bytes, also)
        self._made = _mscclpp._Experts(
            communicator,
            self.device,
            dtype,
            count("experts", experts),
            self.top_k,
            self.hidden,
            self.capacity,
            None if expert_map is None else [count("expert_map", rank) for rank in expert_map],
            self.quantise,
            self._row_bytes,
            self._given[1:],
            count("micro_batches", micro_batches),
            exact,
            optional("max_blocks", max_blocks),
            optional("calls_at_once", calls_at_once),
            timeout,
            survive_loss,
            optional("tag", tag),
            None if ranks is None else [count("ranks", rank) for rank in ranks],
        )
        self.is_simulated = self._made.is_simulated
        self.n_ranks, self.n_local = self._made.n_ranks, self._made.n_local
        #: An empty tensor if a call had tensors of PyTorch, whose current stream calls without an array then use. The
        #: experts of `with_payload` share the list.
        self._like: list[Any] = []

    def _set_payload(self, quantise: str | None, row_bytes: int | None, also: Iterable[int]) -> None:
        """Notes which tensors travel."""
        if quantise is not None:
            _expect_one_of("quantise", quantise, _QUANTISATIONS)
        others = [count("also", each) for each in also]
        self.quantise, self._row_bytes = quantise, optional("row_bytes", row_bytes)
        self._are_numbers = row_bytes is None
        first = self.hidden * SIZES[self.dtype] if row_bytes is None else row_bytes
        self._given = [first, *others]
        #: The bytes of the rows of the tensors that come.
        self._coming = self._given
        groups = -(-self.hidden // 128)
        if quantise is not None:
            self._coming = [self.hidden, 4 * groups if quantise == "e4m3" else -(-groups // 4) * 4, *others]

    def with_payload(
        self, *, quantise: str | None = None, row_bytes: int | None = None, also: Iterable[int] = ()
    ) -> Self:
        """Return the same experts with other tensors that travel, which need no more memory than those of the set-up.

        The arguments mean the same as those of the set-up. Memory, order of calls and routings are shared: a routing is
        good for all payloads, but the layout "rank" has only rows of the payload of its dispatch. All ranks use the
        same payload in the same call; another one is an error of the next `check()` or `synchronize()`.
        """
        other = copy.copy(self)
        other._set_payload(quantise, row_bytes, also)
        other._made = self._made.with_payload(other.quantise, other._row_bytes, other._given[1:])
        return other

    def __repr__(self) -> str:
        return f"<mscclpp.ep.Experts, rank {self.rank} of {self.n_ranks}, device {self.device}>"

    @property
    def rank(self) -> int:
        """The number of this rank."""
        return self._made.rank

    @property
    def device_bytes(self) -> int:
        """The device memory that this rank took, in bytes, without the tables of routings."""
        return self._made.device_bytes

    def dispatch(
        self,
        rows: Any,
        topk_ids: Any,
        weights: Any = None,
        *,
        also: Sequence[Any] = (),
        layout: Literal["rank", "token", "expert", "flat"] = "rank",
        out: Any = None,
        alignment: int = 1,
        ids_into: Any = None,
        weights_into: Any = None,
        sources_into: Any = None,
        column_major: bool = False,
        counts_into: Any = None,
        waits_into: Any = None,
        micro_batch: int = 0,
        zero_rest: bool = False,
        mask_along: bool = False,
        hook: bool = False,
        stream: Any = None,
    ) -> Any:
        """Send each token once to every rank that has an expert of it, and put what comes into a layout. Return the
        `Routed`.

        `rows` has a row for each token, which may be none, and `also` the other tensors of the set-up. `topk_ids`,
        [tokens, top_k] of type int32 or int64, has the choices; -1 is none. `weights`, [tokens, top_k] of type
        float32, travel with the tokens; without them, all are 1.

        R is the number of ranks, C the capacity, L the number of this rank's experts. The layout is "rank", [R, C], in
        memory of the library, see `Routed.received`; "token", a row for each token that came, by rank; "expert",
        [L, R x C], a row for each token that chose the expert; or "flat", the same rows side by side, where each
        expert begins at a multiple of `alignment`. `out` has an array for each tensor that comes, by default new ones
        that are always large enough. With `zero_rest`, rows of them that nobody sent become zero. With `column_major`,
        the second tensor, such as scales, comes column by column in words of 4 bytes: [L, words of a row, R x C] in
        the layout "expert", else [words of a row, rows].

        Arrays for what goes along with each row of the layout: `ids_into`, [rows, top_k] of the type of `topk_ids`,
        gets the local experts, -1 for those of other ranks; `weights_into`, [rows, top_k] of type float32, the weights;
        `sources_into`, [rows, 2] of type int32, the rank and the number of the token there. Rows that nobody sent are
        not written. With `mask_along`, in layouts other than "rank", their ids become -1, and their weights and those
        of other ranks' experts 0. To `counts_into`, [L] of type int32, the numbers of rows of the experts are added, and to
        `waits_into`, [R] of type int64, the nanoseconds for which this rank waited for each rank.

        With `hook`, the call only sends, and returns the `Routed` and a function: `receive(stream=None)` puts the rest
        into a stream, so that other work runs while the tokens travel. No other call of the micro-batch comes between,
        and the arrays must live until the rest is complete.
        """
        ids = self._look("topk_ids", topk_ids)
        if ids.dtype not in ("int32", "int64"):
            raise TypeError(f"argument 'topk_ids': expected numbers of type int32 or int64, got {ids.dtype}")
        if len(ids.shape) != 2 or ids.shape[1] != self.top_k:
            raise ValueError(
                f"argument 'topk_ids': expected an array of shape (tokens, {self.top_k}), got {tuple(ids.shape)}"
            )
        tokens, id_bytes = ids.shape[0], SIZES[ids.dtype]
        _expect_one_of("layout", layout, _LAYOUTS)
        alignment = count("alignment", alignment, 1)
        given = self._rows_given(rows, also, tokens)
        weighed = self._weights(weights, tokens)
        out, coming, n_rows = self._rows_coming(rows, also, layout, out, self._rows_of(layout, alignment), column_major)
        along = [
            self._at_least("ids_into", ids_into, ids.dtype, n_rows * self.top_k),
            self._at_least("weights_into", weights_into, "float32", n_rows * self.top_k),
            self._at_least("sources_into", sources_into, "int32", n_rows * 2),
            self._at_least("counts_into", counts_into, "int32", self.n_local),
            self._at_least("waits_into", waits_into, "int64", self.n_ranks),
        ]
        made: list[Any] = []

        def enqueue(at: int) -> bool:
            *done, was_idle = self._made.dispatch(
                tokens,
                (ids.address, ids.length * id_bytes),
                id_bytes,
                weighed,
                given,
                layout,
                alignment,
                coming,
                along,
                count("micro_batch", micro_batch),
                zero_rest,
                mask_along,
                column_major,
                hook,
                at,
            )
            made.extend(done)
            return was_idle

        arrays = (rows, topk_ids, weights, also, out, ids_into, weights_into, sources_into, counts_into, waits_into)
        self._put(enqueue, rows, stream, arrays)
        routed = Routed(self, made[0], tokens, layout, out, n_rows, column_major)
        return (routed, self._receive(made[1], rows, arrays)) if hook else routed

    def dispatch_again(
        self, routed: Routed, rows: Any, *, also: Sequence[Any] = (), out: Any = None, stream: Any = None
    ) -> tuple[Any, ...]:
        """Send other rows the way of an earlier dispatch, into its layout. Return the arrays that they come to: `out`,
        or new ones. Rows of the layout that nobody sends are not written, whatever `zero_rest` was.
        """
        _arguments.expect("routed", routed, Routed)
        given = self._rows_given(rows, also, routed.tokens)
        column_major = routed._column_major and len(self._coming) > 1
        taken, coming, _ = self._rows_coming(rows, also, routed.layout, out, routed._n_rows, column_major)
        self._put(
            lambda at: self._made.dispatch_again(routed._made, given, coming, at), rows, stream, (rows, also, taken)
        )
        return taken

    def combine(
        self,
        routed: Routed,
        rows: Any,
        out: Any = None,
        weights: Any = None,
        bias: Any = None,
        *,
        exact: bool = False,
        row_weights: Any = None,
        weights_into: Any = None,
        waits_into: Any = None,
        hook: bool = False,
        stream: Any = None,
    ) -> Any:
        """Bring the experts' rows of each token back to the token's rank, and sum them, into `out` or a new array.

        `rows` has what the experts made, where the layout of the dispatch has their tokens: `hidden` numbers of the
        type of the set-up. In the layouts "expert" and "flat" each is multiplied by the weight of its choice. In
        "rank" (here [R, C] rows side by side) and "token" a row is that of all choices of a token on this rank, and is
        summed as it is. `weights` take the place of those of the dispatch. `bias`, a row for each token or a tuple of
        two such arrays, is added last. With `exact`, every choice's row travels, and the sum has the bits of one
        device with all experts; without it each rank rounds its own sum. All ranks give weights, or none does; the
        same holds for `exact`.

        In the layouts "rank" and "token", weights of rows can travel back: `row_weights`, [rows, top_k] of type
        float32, has some for each row of the layout, and `weights_into`, [tokens, top_k], gets the sums of those that
        the ranks gave for a token. All ranks give both, or none does. To `waits_into`, [R] of type int64, the
        nanoseconds are added for which this rank waited for each rank.

        With `hook`, the call only sends, and returns the array and a function `receive(stream=None)`, as `dispatch`
        does.
        """
        _arguments.expect("routed", routed, Routed)
        given, n = self._numbers("rows", rows), routed._n_rows * self.hidden
        if given.length < n:
            raise ValueError(
                f"argument 'rows': expected {routed._n_rows} rows of {self.hidden} numbers, as many as the layout has, "
                f"got {given.length} numbers"
            )
        if out is None:
            out = _new(rows, (routed.tokens, self.hidden))
        if exact and (routed.layout not in ("expert", "flat") or not self._is_exact):
            raise ValueError(
                'argument \'exact\': expected False: an exact combine is for the layouts "expert" and "flat", and for '
                "experts that are set up with exact=True"
            )
        taken = self._rows_of_tokens("out", out, routed.tokens, is_written=True)
        biases = () if bias is None else bias if isinstance(bias, tuple) else (bias,)
        added = [self._rows_of_tokens("bias", each, routed.tokens) for each in biases]
        weighed = self._weights(weights, routed.tokens)
        if (row_weights is None) != (weights_into is None):
            raise ValueError("arguments 'row_weights' and 'weights_into': expected both or none, got one")
        returned = self._at_least("row_weights", row_weights, "float32", routed._n_rows * self.top_k, is_written=False)
        taken_back = self._at_least("weights_into", weights_into, "float32", routed.tokens * self.top_k)
        back = (returned, taken_back) if returned and taken_back else None
        waits = self._at_least("waits_into", waits_into, "int64", self.n_ranks)
        memory, made = (given.address, given.length * SIZES[self.dtype]), []

        def enqueue(at: int) -> bool:
            half, was_idle = self._made.combine(
                routed._made, memory, taken, weighed, added, exact, back, waits, hook, at
            )
            made.append(half)
            return was_idle

        arrays = (rows, out, weights, bias, row_weights, weights_into, waits_into)
        self._put(enqueue, rows, stream, arrays)
        return (out, self._receive(made[0], rows, arrays)) if hook else out

    def release(self, routed: Routed, stream: Any = None) -> None:
        """Give the rows of a dispatch with the layout "rank" back without a combine, when the work before it in the
        stream is complete. Without effect for other layouts.
        """
        _arguments.expect("routed", routed, Routed)
        self._made.release(routed._made, self._own_stream(stream))

    def counts_to_host(self, routed: Routed, stream: Any = None) -> HostCounts:
        """Have the counts of a dispatch stored into memory of the host, behind the work in the stream. Does not block, and
        may be captured. The counts are there when that work is complete: wait for an event behind this call, for example.
        """
        _arguments.expect("routed", routed, Routed)
        return routed._made.counts_to_host(self._own_stream(stream))

    def check_received(self, routed: Routed, stream: Any = None) -> None:
        """Check on the device, behind the work in the stream, that the rows of `routed.received()` are still those of this
        dispatch. If they were given back before, or another dispatch came, the next call that checks raises an error. It
        belongs behind kernels that read the rows.
        """
        _arguments.expect("routed", routed, Routed)
        routed._made.check_received(self._own_stream(stream))

    def lost(self) -> list[int]:
        """Return the ranks that are known to be lost."""
        return self._made.lost()

    def lost_choices(self) -> int:
        """Return how many choices of tokens counted as none because the rank of the expert was lost. Waits for the
        device's answer.
        """
        return self._made.lost_choices()

    def lose(self, ranks: Iterable[int], stream: Any = None) -> None:
        """Have the calls that follow in the stream go on without these ranks, as if they were lost. Nothing brings them
        back. For experts that are set up with `survive_loss`.
        """
        self._made.lose([count("ranks", rank) for rank in ranks], self._own_stream(stream))

    def synchronize(self, stream: Any = None) -> None:
        """Wait until the work of a stream is complete, by default the current stream of PyTorch, if a dispatch had its
        tensors, or else of CuPy. Raises an error if a call failed.
        """
        super().synchronize(self._own_stream(stream))

    def _own_stream(self, stream: Any) -> int:
        return self._stream(self._like[0] if self._like else None, stream)

    def _put(self, enqueue: Any, like: Any, stream: Any, arrays: Any) -> None:
        if not self._like and _arrays.is_torch_tensor(like):
            self._like.append(_new(like, (0,)))
        at = self._stream(like, stream)
        if self.is_simulated:
            self._keep(arrays, lambda: enqueue(at))
        else:
            enqueue(at)

    def _receive(self, half: Any, like: Any, arrays: Any) -> Callable[..., None]:
        """Returns the function that puts the second half of a call into a stream. It keeps the arrays."""

        def receive(stream: Any = None) -> None:
            def enqueue(at: int) -> bool:
                half.receive(at)
                return False

            self._put(enqueue, like, stream, arrays)

        return receive

    def _stream(self, like: Any, stream: Any) -> int:
        return self._current_stream(like) if stream is None else _handle(stream)


def install_deep_ep() -> None:
    """Let `import deep_ep` import this library's, in this process and in its later children, and say so on standard
    error. Serving engines then run their expert parallelism on it. It takes PyTorch.

    `python -m mscclpp.ep PROGRAM ARGUMENTS`, or `python -m mscclpp.ep -m MODULE ARGUMENTS`, starts a program so.
    """
    from ._deep_ep_install import install

    install()


__all__ = ["Experts", "HostCounts", "Received", "Routed", "install_deep_ep"]

if __name__ == "__main__":
    from ._deep_ep_install import run

    run()
