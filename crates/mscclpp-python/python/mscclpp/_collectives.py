"""`Collectives`: operations of all ranks together, on arrays of any library."""

from __future__ import annotations

import math
import operator
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

from . import _arrays, _mscclpp
from ._arguments import check_seconds, count, optional
from ._data_types import SIZES
from ._errors import misuse
from ._group import CommGroup
from ._on_device import OnDevice, _Array, _handle, _new, communicator_of

#: An operation: "sum", "prod", "max", "min", "avg", or ("premul_sum", factor). Averages are computed as NCCL does:
#: for integers, the sum (which wraps) is divided and rounded towards zero; for float32 and float64, each number is
#: multiplied by 1/N before they are summed.
Op = str | tuple[str, float]
#: A request: kind, address of the input, address of the output, count or counts, type, operation, root or peer.
Request = tuple[str, int, int, Any, str, Op, int]

#: The calls that compute; the others move numbers of any type.
_REDUCTIONS = {"all_reduce", "reduce_scatter", "reduce"}


class _OfThread(threading.local):
    """The calls that a thread has gathered in a `group()`, with their streams and arrays."""

    gathered: list[tuple[int, Request, Any]] | None = None


class Collectives(OnDevice):
    """Collectives of the ranks of a job, each with a GPU: `all_reduce`, `all_gather` and so on.

    All ranks make the object together, from a `CommGroup`, a `Communicator`, a communicator of mpi4py or a group of
    PyTorch, and then make the same calls in the same order. A call puts work into a stream, by default the current
    stream of the library of its array, and waits for no other rank. It can be captured in a graph. Arrays (CuPy,
    PyTorch, DLPack, NumPy on simulated devices) are contiguous, in C's order, and must live until the work is
    complete; on simulated devices they are kept until `synchronize()`. Calls that only move data take elements of any type.

    `device` is the number of this rank's GPU, by default the current one. `synchronize()` gives up after `timeout`
    seconds, if given. With `check_calls`, or else `MSCCLPP_CHECK_CALLS=1` on all ranks, calls that do not match are an
    error. The other arguments are those of the crate's builder: `max_blocks` and `calls_at_once` limit how much of the
    device a call takes, `scratch` is the size of its memory in bytes, and `overlap` is for calls that run beside
    matrix multiplications.
    """

    #: The number of this rank, and the number of ranks.
    rank: int
    size: int
    _made: _mscclpp._Collectives
    _what = "collectives"

    def __init__(
        self,
        group: Any,
        device: int | None = None,
        *,
        timeout: float | None = None,
        max_blocks: int | None = None,
        scratch: int | None = None,
        calls_at_once: int | None = None,
        check_calls: bool | None = None,
        overlap: bool = False,
    ) -> None:
        self._group, communicator = communicator_of("group", group)
        if timeout is not None:
            check_seconds(timeout, "timeout")
        self._take(
            _mscclpp._Collectives(
                communicator,
                _mscclpp._current_gpu()[1] if device is None else count("device", device),
                optional("max_blocks", max_blocks),
                optional("scratch", scratch, (1 << 63) - 1),
                optional("calls_at_once", calls_at_once),
                timeout,
                check_calls,
                overlap,
            )
        )

    def _take(self, made: _mscclpp._Collectives) -> None:
        self._made = made
        self.rank, self.size, self.device, self.is_simulated = made.rank, made.size, made.device, made.is_simulated
        self._of_thread = _OfThread()
        #: The registered arrays. They are kept even if the program drops them, because peers write into them.
        self._registered: dict[_mscclpp._Registered, Any] = {}

    @classmethod
    def from_env(cls, device: int | None = None, **options: Any) -> Self:
        """Make the collectives of the job that a launcher has started this process for: see `CommGroup.from_env()`.

        Without `device`, each rank of a node has a GPU of its own: that of its number on the node, which becomes the current
        one. If the program has made another GPU than 0 the current one, that is used.
        """
        group = CommGroup.from_env()
        if device is None and group._local_rank is not None and _mscclpp._current_gpu()[1] == 0:
            _mscclpp.set_device(group._local_rank % _mscclpp.device_count())
        return cls(group, device, **options)

    def __repr__(self) -> str:
        return f"<mscclpp.Collectives, rank {self.rank} of {self.size}, device {self.device}>"

    def all_reduce(self, x: Any, op: Op = "sum", out: Any = None, stream: Any = None) -> Any:
        """Reduce `x` of all ranks; every rank gets the result, in `out` or in `x` itself."""
        if out is None:
            # Most calls take this shorter way.
            if _arrays.is_torch_tensor(x):
                address, length, dtype = self._look_at_torch("x", x)
            else:
                address, length, dtype, *_ = self._look("x", x, is_written=True)
            return self._ask("all_reduce", address, address, length, dtype, op, 0, x, x, stream)
        given, taken, out = self._pair(x, out, lambda array: array.shape)
        return self._call("all_reduce", given, taken, given.length, op, 0, x, out, stream)

    def all_reduce_rms_norm(
        self,
        x: Any,
        residual: Any,
        weight: Any,
        eps: float = 1e-6,
        out: Any = None,
        residual_out: Any = None,
        *,
        scale: float | None = None,
        scales: Any = None,
        stream: Any = None,
    ) -> tuple[Any, Any]:
        """Reduce `x` of all ranks, add `residual`, and normalise each row (RMSNorm), in one launch.

        `residual_out`, by default `residual` itself, gets the sum. `out`, by default a new array, gets the sum
        divided by the root of the mean of its squares plus `eps`, times `weight`. A row is the last dimension of `x`,
        of float16 or bfloat16. With `scale`, `out` is fp8 (float8_e4m3fn, or its bits as uint8) in units of `scale`;
        with an array `scales` of float32, each row has its own unit, which is stored there. Returns `out` and
        `residual_out`. The first call on a device loads the kernels, which waits for kernels that run there.
        """
        from ._fused import all_reduce_rms_norm

        return all_reduce_rms_norm(self, x, residual, weight, eps, out, residual_out, scale, scales, stream)

    def reduce(self, x: Any, root: int, op: Op = "sum", out: Any = None, stream: Any = None) -> Any:
        """Reduce `x` of all ranks; rank `root` gets the result, in `out` or in `x` itself."""
        root = self._rank("root", root)
        given, taken, out = self._pair(x, out, lambda array: array.shape, in_place=True, is_stored=self.rank == root)
        return self._call("reduce", given, taken, given.length, op, root, x, out, stream)

    def broadcast(self, x: Any, root: int, stream: Any = None) -> Any:
        """Copy `x` of rank `root` into `x` of every rank."""
        array = self._look("x", x, is_written=True)
        return self._call("broadcast", array, array, array.length, "sum", self._rank("root", root), x, x, stream)

    def all_gather(self, x: Any, out: Any = None, stream: Any = None) -> Any:
        """Give every rank the arrays `x` of all ranks, in their order: in `out`, or a new array with one more
        dimension.
        """
        given, taken, out = self._pair(x, out, lambda array: (self.size, *array.shape))
        return self._call("all_gather", given, taken, given.length, "sum", 0, x, out, stream)

    def reduce_scatter(self, x: Any, op: Op = "sum", out: Any = None, stream: Any = None) -> Any:
        """Reduce `x` of all ranks, and give each rank its part of the result, along the first dimension."""
        given, taken, out = self._pair(x, out, self._part)
        return self._call("reduce_scatter", given, taken, taken.length, op, 0, x, out, stream)

    def all_to_all(self, x: Any, out: Any = None, stream: Any = None) -> Any:
        """Send each rank its part of `x`, along the first dimension, and receive a part from each."""
        given, taken, out = self._pair(x, out, lambda array: array.shape)
        self._part(given)
        return self._call("all_to_all", given, taken, given.length // self.size, "sum", 0, x, out, stream)

    def gather(self, x: Any, root: int, out: Any = None, stream: Any = None) -> Any:
        """Give rank `root` the arrays `x` of all ranks, in their order. On the other ranks, `out` is ignored and the
        result is None.
        """
        if self.rank == self._rank("root", root):
            given, taken, out = self._pair(x, out, lambda array: (self.size, *array.shape))
        else:
            given = taken = self._look("x", x)
            out = None
        return self._call("gather", given, taken, given.length, "sum", root, x, out, stream)

    def scatter(self, x: Any, root: int, out: Any, stream: Any = None) -> Any:
        """Give each rank, in `out`, its part of `x` of rank `root`, along the first dimension. On the other ranks, `x`
        is ignored.
        """
        taken = given = self._look("out", out, is_written=True)
        if self.rank == self._rank("root", root):
            given = self._look("x", x)
            self._expect_like(taken, given, "out", self._part(given))
        else:
            x = None
        return self._call("scatter", given, taken, taken.length, "sum", root, x, out, stream)

    def send(self, x: Any, peer: int, stream: Any = None) -> None:
        """Send `x` to a rank, which receives an array of the same length. Messages in one `group()` are sent at the
        same time.
        """
        array = self._look("x", x)
        self._call("send", array, array, array.length, "sum", self._rank("peer", peer), x, None, stream)

    def recv(self, x: Any, peer: int, stream: Any = None) -> Any:
        """Receive the array that a rank sends, in `x`."""
        array = self._look("x", x, is_written=True)
        return self._call("recv", array, array, array.length, "sum", self._rank("peer", peer), x, x, stream)

    def barrier(self, stream: Any = 0) -> None:
        """Hold the stream until the streams of all ranks have come to this call."""
        self._put(("barrier", 0, 0, 0, "uint8", "sum", 0), _handle(stream), None)

    @contextmanager
    def group(self) -> Iterator[None]:
        """Collect the calls that this thread makes in the `with` block, and make them together at its end. If the block
        raises, none is made.

        No call may read the output of another one. Calls that only move data take one launch, and those that reduce by
        one type and operation take another, unless they are large.
        If the calls name several streams, all go into the first one. They wait for earlier work of the other streams,
        and later work of the other streams waits for them.
        """
        if self._of_thread.gathered is not None:
            raise misuse("this thread has begun a group() already: end it before another one")
        gathered = self._of_thread.gathered = []
        try:
            yield
        finally:
            self._of_thread.gathered = None
        # All go into the first of the streams, because messages of one stream may wait for those of another. Each
        # capture is separate.
        streams = dict.fromkeys(stream for stream, _, _ in gathered)
        captures: dict[int | None, list[int]] = {}
        for stream in streams:
            captures.setdefault(self._made.capture_of(stream) if len(streams) > 1 else None, []).append(stream)
        for named in captures.values():
            # The calls keep their order, which is that of the other ranks, too. Their streams may differ.
            calls = [(request, arrays) for stream, request, arrays in gathered if stream in named]
            self._enqueue([request for request, _ in calls], named[0], [arrays for _, arrays in calls], named[1:])

    def enqueue(self, requests: list[Request], stream: int = 0) -> None:
        """Put collectives into a stream together, by addresses: for other libraries.

        A request is a tuple of kind, address of the input, address of the output, count, type, operation, and root or
        peer. Kinds are the names of the methods, and "all_gather_v", with a list of a count for each rank, and
        "all_to_all_v", with a pair of lists. A count is a number of elements: those of the input; for
        "reduce_scatter" and "scatter", those of the output; for "all_to_all", those for each rank. A type is a name
        of NumPy's, or "bfloat16", "float8_e4m3fn" or "float8_e5m2".
        """
        self._made.enqueue(requests, stream)

    def abort(self, reason: str = "aborted by the program") -> None:
        """End the calls of all ranks, and give up the job: the `CommGroup` and all that was made of it, also by `split`,
        cannot be used any more.
        """
        self._made.abort(reason)

    def split(self, color: int | None, key: int = 0) -> Collectives | None:
        """Make collectives of the ranks that give the same color, in the order of their keys. All ranks call it."""
        part = self._made.split(optional("color", color, (1 << 32) - 1), count("key", key, -(1 << 31)))
        if part is None:
            return None
        collectives = Collectives.__new__(type(self))
        collectives._group = self._group
        collectives._take(part)
        return collectives

    def register(self, x: Any, *, symmetric: bool = False) -> Registration:
        """Let the other ranks write directly into `x` in large calls that move data and do not reduce, and in large ones of
        `all_reduce` among more than two ranks.

        All ranks call it, each with an array of its own in device memory. `symmetric` promises that in each call all
        ranks receive at the same offset of the arrays that they registered together; then copy engines carry out the
        largest calls. The array stays registered, and is kept, until the ranks close the returned object, or the
        collectives are gone.
        """
        array = self._look("x", x)
        size = _arrays.locate(x, "argument 'x'")[1]
        registered = self._made.register(array.address, size, symmetric)
        self._registered[registered] = x
        return Registration(self, registered)

    def _call(self, kind: str, given: _Array, taken: _Array, count: int, *rest: Any) -> Any:
        return self._ask(kind, given.address, taken.address, count, given.dtype, *rest)

    def _ask(
        self,
        kind: str,
        given: int,
        taken: int,
        count: int,
        dtype: str,
        op: Op,
        root: int,
        x: Any,
        out: Any,
        stream: Any,
    ) -> Any:
        if dtype not in SIZES:
            name, array = ("out", out) if kind == "scatter" else ("x", x)
            size = self._look(name, array).size
            if kind in _REDUCTIONS or not size:
                how = "there are no collectives of" if not size else "there are no reductions of"
                raise misuse(f"argument '{name}': {how} numbers of type {dtype}")
            # What is only moved is bytes.
            count, dtype = count * size, "uint8"
        if stream is None:
            stream = self._current_stream(x if x is not None else out)
        elif type(stream) is not int or stream < 0:
            stream = _handle(stream)
        request = (kind, given, taken, count, dtype, op, root)
        if self._of_thread.gathered is None and not self.is_simulated:
            self._made.enqueue([request], stream)
        else:
            self._put(request, stream, (x, out))
        return out

    def _put(self, request: Request, stream: int, arrays: Any) -> None:
        gathered = self._of_thread.gathered
        if gathered is None:
            return self._enqueue([request], stream, arrays)
        # Kept until the end of the group: an array that the program drops now must not become another array's memory.
        gathered.append((stream, request, arrays))

    def _enqueue(self, requests: list[Request], stream: int, arrays: Any, others: Sequence[int] = ()) -> None:
        if self.is_simulated:
            self._keep(arrays, lambda: self._made.enqueue(requests, stream))
        elif others:
            self._made.enqueue(requests, stream, others=list(others))
        else:
            self._made.enqueue(requests, stream)

    def _put_rows(self, kernel: Any, args: Any, rows: Any, outputs: Any, stream: int, kept: Any) -> None:
        """Enqueues an all_reduce with a kernel of its own: see `_fused.py`."""
        if self._of_thread.gathered is not None:
            raise misuse("an all_reduce of rows was called inside a group()")
        if self.is_simulated:
            self._keep(kept, lambda: self._made.all_reduce_rows(kernel, args, rows, outputs, stream))
        else:
            self._made.all_reduce_rows(kernel, args, rows, outputs, stream)

    def _pair(
        self, x: Any, out: Any, shape: Any, in_place: bool = False, is_stored: bool = True
    ) -> tuple[_Array, _Array, Any]:
        """Returns the properties of the input and of the output, and the output array. `is_stored` says whether this rank
        stores to it.
        """
        given = self._look("x", x, is_written=in_place and out is None and is_stored)
        if out is None:
            out = x if in_place else _new(x, shape(given))
            return given, given if in_place else self._look("out", out), out
        taken = self._look("out", out, is_written=is_stored)
        self._expect_like(taken, given, "out", shape(given))
        return given, taken, out

    def _part(self, array: _Array) -> tuple[int, ...]:
        first, *rest = array.shape or (1,)
        if first % self.size != 0:
            raise ValueError(f"argument 'x': its first dimension, {first}, does not divide into {self.size} parts")
        return (first // self.size, *rest)

    def _expect_like(self, array: _Array, other: _Array, name: str, shape: Sequence[int]) -> None:
        if array.dtype != other.dtype:
            raise TypeError(f"argument '{name}': expected numbers of type {other.dtype}, got {array.dtype}")
        if array.length != math.prod(shape):
            raise ValueError(f"argument '{name}': expected {math.prod(shape)} numbers, got {array.length}")

    def _rank(self, name: str, rank: int) -> int:
        try:
            rank = operator.index(rank)
        except TypeError:
            raise TypeError(f"argument '{name}': expected the number of a rank, got {rank!r}") from None
        if not 0 <= rank < self.size:
            raise ValueError(f"argument '{name}': there are ranks 0 to {self.size - 1}, not {rank}")
        return rank


class Registration:
    """An array that `Collectives.register` has registered, until all ranks close this together.

    Dropping it changes nothing: peers do not know that this rank has dropped it, and may still write into the array.
    """

    def __init__(self, collectives: Collectives, registered: _mscclpp._Registered) -> None:
        self._collectives, self._registered = collectives, registered

    def close(self) -> None:
        """End the registration. All ranks call it, and it blocks until they do."""
        self._collectives._made.deregister(self._registered)
        del self._collectives._registered[self._registered]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: Any) -> None:
        self.close()
