"""Expert parallelism: tokens of mixture-of-experts layers go to the ranks of their experts, and come back summed."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from . import _arguments, _arrays, _mscclpp
from ._data_types import SIZES
from ._on_device import OnDevice, _Array, _handle, _item_size, _new, communicator_of

_DTYPES = ("bfloat16", "float16", "float32")
_QUANTISATIONS = ("e4m3", "e4m3_ue8m0")
_LAYOUTS = ("rank", "token", "expert", "flat")

#: The address and the size of memory.
_Memory = tuple[int, int]


class Experts(OnDevice):
    """The experts of a group of ranks, of which each has some. `dispatch` sends tokens to them, `combine` sums what
    they make of these.

    All ranks make the object together, with the same settings, from a `CommGroup`, a `Communicator`, a communicator of
    mpi4py or a group of PyTorch; it blocks until they do. Then they make the same calls in the same order. A call puts
    work into a stream, by default the current stream of the library of its arrays, and waits for no other rank.
    Arrays are those that `Collectives` take, and must live as long: until the work is complete.

    `experts` is the number of experts of all ranks, `top_k` the number of choices of a token, `hidden` the number of
    numbers of a token, of type `dtype` ("bfloat16", "float16" or "float32"), and `capacity` the most tokens of a rank
    in a call. Each rank has an equal part of the experts, in order, unless `expert_map` has the rank of each.

    With `quantise`, tokens become numbers of one byte on their way: "e4m3" with a scale of type float32 for 128
    numbers, or "e4m3_ue8m0" with powers of two, of one byte. With `row_bytes`, tokens are rows of so many bytes of any
    content; `combine` sums rows of `hidden` numbers in any case. `also` has the bytes of a row of each other tensor
    that travels with the tokens. `exact` sets up memory for exact combines, `micro_batches` is 1 or 2.

    `max_blocks` and `calls_at_once` limit how much of the device a call takes. `synchronize()` gives up after
    `timeout` seconds. `ranks` are those of the group that take part, in their order, and `tag` tells set-ups at the
    same time apart.
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
        tag: int | None = None,
        ranks: Iterable[int] | None = None,
    ) -> None:
        self._group, communicator = communicator_of("comm", comm)
        _expect_one_of("dtype", dtype, _DTYPES)
        if quantise is not None:
            _expect_one_of("quantise", quantise, _QUANTISATIONS)
        if timeout is not None:
            _arguments.check_seconds(timeout, "timeout")
        self.device = _mscclpp._current_gpu()[1] if device is None else _count("device", device)
        self.top_k, self.hidden = _count("top_k", top_k), _count("hidden", hidden)
        self.capacity = _count("capacity", capacity)
        self.dtype, self.quantise = dtype, quantise
        also = [_count("also", each) for each in also]
        self._made = _mscclpp._Experts(
            communicator,
            self.device,
            dtype,
            _count("experts", experts),
            self.top_k,
            self.hidden,
            self.capacity,
            None if expert_map is None else [_count("expert_map", rank) for rank in expert_map],
            quantise,
            _optional("row_bytes", row_bytes),
            also,
            _count("micro_batches", micro_batches),
            exact,
            _optional("max_blocks", max_blocks),
            _optional("calls_at_once", calls_at_once),
            timeout,
            _optional("tag", tag),
            None if ranks is None else [_count("ranks", rank) for rank in ranks],
        )
        self.is_simulated = self._made.is_simulated
        self._are_numbers, self._is_exact = row_bytes is None, exact
        first = self.hidden * SIZES[dtype] if row_bytes is None else row_bytes
        self._given = [first, *also]
        #: The bytes of the rows of the tensors that come.
        self._coming = self._given
        groups = -(-self.hidden // 128)
        if quantise is not None:
            self._coming = [self.hidden, 4 * groups if quantise == "e4m3" else -(-groups // 4) * 4, *also]
        #: An empty tensor if a dispatch had tensors of PyTorch, whose current stream calls without an array then use.
        self._like: Any = None

    def __repr__(self) -> str:
        return f"<mscclpp.ep.Experts, rank {self.rank} of {self.n_ranks}, device {self.device}>"

    @property
    def rank(self) -> int:
        """The number of this rank."""
        return self._made.rank

    @property
    def n_ranks(self) -> int:
        """The number of ranks."""
        return self._made.n_ranks

    @property
    def n_local(self) -> int:
        """The number of this rank's experts."""
        return self._made.n_local

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
        micro_batch: int = 0,
        zero_rest: bool = False,
        stream: Any = None,
    ) -> Routed:
        """Send each token once to every rank that has an expert of it, and put what comes into a layout.

        `rows` has a row for each token, which may be none, and `also` the other tensors of the set-up. `topk_ids`,
        [tokens, top_k] of type int32 or int64, has the choices; -1 is none. `weights`, [tokens, top_k] of type
        float32, travel with the tokens; without them, all are 1.

        R is the number of ranks, C the capacity, L the number of this rank's experts. The layout is "rank", [R, C], in
        memory of the library, see `Routed.received`; "token", a row for each token that came, by rank; "expert",
        [L, R x C], a row for each token that chose the expert; or "flat", the same rows side by side, where each
        expert begins at a multiple of `alignment`. `out` has an array for each tensor that comes, by default new ones
        that are always large enough. With `zero_rest`, rows of them that nobody sent become zero.
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
        alignment = _count("alignment", alignment, 1)
        given = self._rows_given(rows, also, tokens)
        weighed = self._weights(weights, tokens)
        out, coming, n_rows = self._rows_coming(rows, also, layout, out, self._rows_of(layout, alignment))
        made: list[_mscclpp._Routed] = []

        def enqueue(at: int) -> bool:
            routed, was_idle = self._made.dispatch(
                tokens,
                (ids.address, ids.length * id_bytes),
                id_bytes,
                weighed,
                given,
                layout,
                alignment,
                coming,
                _count("micro_batch", micro_batch),
                zero_rest,
                at,
            )
            made.append(routed)
            return was_idle

        if self._like is None and _arrays.is_torch_tensor(rows):
            self._like = _new(rows, (0,))
        self._put(enqueue, rows, stream, (rows, topk_ids, weights, also, out))
        return Routed(self, made[0], tokens, layout, out, n_rows)

    def dispatch_again(
        self, routed: Routed, rows: Any, *, also: Sequence[Any] = (), out: Any = None, stream: Any = None
    ) -> tuple[Any, ...]:
        """Send other rows the way of an earlier dispatch, into its layout. Return the arrays that they come to: `out`,
        or new ones.
        """
        _arguments.expect("routed", routed, Routed)
        given = self._rows_given(rows, also, routed.tokens)
        taken, coming, _ = self._rows_coming(rows, also, routed.layout, out, routed._n_rows)
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
        stream: Any = None,
    ) -> Any:
        """Bring the experts' rows of each token back to the token's rank, and sum them, into `out` or a new array.

        `rows` has what the experts made, where the layout of the dispatch has their tokens: `hidden` numbers of the
        type of the set-up. In the layouts "expert" and "flat" each is multiplied by the weight of its choice. In
        "rank" (here [R, C] rows side by side) and "token" a row is that of all choices of a token on this rank, and is
        summed as it is. `weights` take the place of those of the dispatch, and `bias`, a row for each token, is added
        last. With `exact`, every choice's row travels, and the sum has the bits of one device with all experts;
        without it each rank rounds its own sum. All ranks give weights, or none does; the same holds for `exact`.
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
        added = None if bias is None else self._rows_of_tokens("bias", bias, routed.tokens)
        weighed = self._weights(weights, routed.tokens)
        self._put(
            lambda at: self._made.combine(
                routed._made, (given.address, given.length * SIZES[self.dtype]), taken, weighed, added, exact, at
            ),
            rows,
            stream,
            (rows, out, weights, bias),
        )
        return out

    def release(self, routed: Routed, stream: Any = None) -> None:
        """Give the rows of a dispatch with the layout "rank" back without a combine, when the work before it in the
        stream is complete. Without effect for other layouts.
        """
        _arguments.expect("routed", routed, Routed)
        self._made.release(routed._made, self._stream(self._like, stream))

    def synchronize(self, stream: Any = None) -> None:
        """Wait until the work of a stream is complete, by default the current stream of PyTorch, if a dispatch had its
        tensors, or else of CuPy. Raises an error if a call failed.
        """
        super().synchronize(self._stream(self._like, stream))

    def _put(self, enqueue: Any, like: Any, stream: Any, arrays: Any) -> None:
        at = self._stream(like, stream)
        if self.is_simulated:
            self._keep(arrays, lambda: enqueue(at))
        else:
            enqueue(at)

    def _stream(self, like: Any, stream: Any) -> int:
        return self._current_stream(like) if stream is None else _handle(stream)

    def _numbers(self, name: str, x: Any, is_written: bool = False) -> _Array:
        """Returns the properties of an array of numbers of the set-up's type, or of their bits."""
        array = self._look(name, x, is_written)
        if array.dtype not in (self.dtype, f"uint{8 * SIZES[self.dtype]}"):
            raise TypeError(f"argument '{name}': expected numbers of type {self.dtype}, got {array.dtype}")
        return array

    def _bytes(self, name: str, x: Any, is_number: bool, is_written: bool = False) -> _Memory:
        array = self._numbers(name, x, is_written) if is_number else self._look(name, x, is_written)
        return array.address, array.length * _item_size(x)

    def _rows_given(self, rows: Any, also: Sequence[Any], tokens: int) -> list[_Memory]:
        if len(also) != len(self._given) - 1:
            raise ValueError(f"argument 'also': expected {len(self._given) - 1} arrays, got {len(also)}")
        given = []
        for n, (x, row) in enumerate(zip((rows, *also), self._given)):
            name = f"also[{n - 1}]" if n else "rows"
            memory = self._bytes(name, x, n == 0 and self._are_numbers)
            if memory[1] != tokens * row:
                raise ValueError(
                    f"argument '{name}': expected {tokens} rows of {row} bytes, one for each token, got {memory[1]} bytes"
                )
            given.append(memory)
        return given

    def _rows_of_tokens(self, name: str, x: Any, tokens: int, is_written: bool = False) -> _Memory:
        """Returns the memory of an array with a row of numbers for each token."""
        array = self._numbers(name, x, is_written)
        if array.length != tokens * self.hidden:
            raise ValueError(
                f"argument '{name}': expected {tokens} rows of {self.hidden} numbers, got {array.length} numbers"
            )
        return array.address, array.length * SIZES[self.dtype]

    def _weights(self, weights: Any, tokens: int) -> _Memory | None:
        if weights is None:
            return None
        array = self._look("weights", weights)
        if array.dtype != "float32":
            raise TypeError(f"argument 'weights': expected numbers of type float32, got {array.dtype}")
        if tuple(array.shape) != (tokens, self.top_k):
            raise ValueError(
                f"argument 'weights': expected an array of shape {(tokens, self.top_k)}, got {tuple(array.shape)}"
            )
        return array.address, 4 * array.length

    def _rows_of(self, layout: str, alignment: int) -> int:
        """Returns how many rows a layout has room for if it is always enough."""
        most, local = self.n_ranks * self.capacity, self.n_local
        if layout == "expert":
            return local * most
        return most * min(self.top_k, local) + local * (alignment - 1) if layout == "flat" else most

    def _rows_coming(
        self, rows: Any, also: Sequence[Any], layout: str, out: Any, n_rows: int
    ) -> tuple[tuple[Any, ...], list[_Memory], int]:
        """Returns the arrays of a layout, by default with so many rows, their memory, and how many rows they have."""
        if layout == "rank":
            if out is not None:
                raise ValueError("argument 'out': the layout \"rank\" copies no rows; Routed.received() has them")
            return (), [], n_rows
        if out is None:
            out = self._new_rows(
                rows, also, (self.n_local, self.n_ranks * self.capacity) if layout == "expert" else (n_rows,)
            )
        out = tuple(out) if isinstance(out, (tuple, list)) else (out,)
        if len(out) != len(self._coming):
            raise ValueError(
                f"argument 'out': expected {len(self._coming)} arrays, one for each tensor that comes, got {len(out)}"
            )
        coming, least = [], n_rows if layout == "expert" else 0
        for n, (x, row) in enumerate(zip(out, self._coming)):
            is_number = n == 0 and self._are_numbers and self.quantise is None
            memory = self._bytes(f"out[{n}]", x, is_number, is_written=True)
            if memory[1] % row or memory[1] < least * row:
                expected = f"at least {least} rows" if least else "rows"
                raise ValueError(f"argument 'out[{n}]': expected {expected} of {row} bytes, got {memory[1]} bytes")
            coming.append(memory)
        return out, coming, min(size // row for (_, size), row in zip(coming, self._coming))

    def _new_rows(self, rows: Any, also: Sequence[Any], shape: tuple[int, ...]) -> tuple[Any, ...]:
        like: list[tuple[Any, str | None]] = [(rows, None), *((x, None) for x in also)]
        if self.quantise is not None:
            numbers = "float8_e4m3fn" if _arrays.is_torch_tensor(rows) else "uint8"
            like[:1] = [(rows, numbers), (rows, "float32" if self.quantise == "e4m3" else "uint8")]
        sizes = [SIZES[dtype] if dtype else _item_size(x) for x, dtype in like]
        return tuple(_new(x, (*shape, row // size), dtype) for (x, dtype), row, size in zip(like, self._coming, sizes))


class Routed:
    """The routing of a dispatch, made by `Experts.dispatch`. It does not age: later calls may use it at any time.

    The methods are for dispatches that are complete, after `Experts.synchronize()`. They wait for the device's answer.
    A routing keeps the memory of its experts, also when these are closed.
    """

    #: The number of this rank's tokens.
    tokens: int
    #: The layout of the dispatch.
    layout: str
    #: The arrays that rows came to, one for each tensor that travels; none for the layout "rank".
    out: tuple[Any, ...]

    def __init__(
        self,
        experts: Experts,
        made: _mscclpp._Routed,
        tokens: int,
        layout: str,
        out: tuple[Any, ...],
        n_rows: int,
    ) -> None:
        self._experts, self._made, self._n_rows = experts, made, n_rows
        self.tokens, self.layout, self.out = tokens, layout, out

    def __repr__(self) -> str:
        return f"<mscclpp.ep.Routed of {self.tokens} tokens, layout {self.layout}>"

    def rows_of_ranks(self) -> list[int]:
        """Return how many rows came from each rank."""
        return self._made.rows_of_ranks()

    def rows_of_experts(self) -> list[int]:
        """Return how many rows came for each expert of this rank."""
        return self._made.rows_of_experts()

    def row(self, rank: int, n: int) -> tuple[int, list[int], list[float]]:
        """Return what came with row `n` of a rank: the number of the token there, the local expert of each choice (-1
        for those elsewhere), and the weights.
        """
        return self._made.row(_count("rank", rank), _count("n", n))

    @property
    def rows_of_experts_on_device(self) -> int:
        """The address of the numbers of `rows_of_experts()`, of type uint32, in device memory."""
        return self._made.rows_of_experts_on_device()

    @property
    def offsets_on_device(self) -> int:
        """The address of the rows at which the experts begin in the layout "flat", and at which the last one ends: one
        number more than this rank has experts, of type uint32, in device memory.
        """
        return self._made.offsets_on_device()

    def received(self, part: int = 0) -> Received:
        """Return the rows of a tensor that came in the layout "rank". They stay until the `combine` or `release`."""
        if self.layout != "rank":
            raise ValueError(f'received() is for the layout "rank", and this dispatch had "{self.layout}"')
        return Received(self, *self._made.received(_count("part", part)))


class Received:
    """Rows in the memory of the library, as an array [R, C, bytes of a row] of type uint8.

    It has the array interface of CUDA, or on simulated devices that of NumPy: `cupy.asarray(it)`,
    `torch.as_tensor(it, device="cuda")` or `numpy.asarray(it)` is an array without a copy, and a `view` of that has
    other numbers.
    """

    def __init__(self, routed: Routed, address: int, row_bytes: int, row_stride: int, rank_stride: int) -> None:
        #: The routing, which keeps the memory.
        self._routed = routed
        experts = routed._experts
        interface = {
            "shape": (experts.n_ranks, experts.capacity, row_bytes),
            "strides": (rank_stride, row_stride, 1),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }
        setattr(self, "__array_interface__" if experts.is_simulated else "__cuda_array_interface__", interface)


def _expect_one_of(name: str, value: Any, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"argument '{name}': expected {', '.join(map(repr, choices))}, got {value!r}")


def _count(name: str, value: Any, least: int = 0) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"argument '{name}': expected a whole number, got {value!r}") from None
    if not least <= number < 1 << 31:
        raise ValueError(f"argument '{name}': expected a number from {least} to {(1 << 31) - 1}, got {number}")
    return number


def _optional(name: str, value: Any) -> int | None:
    return None if value is None else _count(name, value)


__all__ = ["Experts", "Received", "Routed"]
