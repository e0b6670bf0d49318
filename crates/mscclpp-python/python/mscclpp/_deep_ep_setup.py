"""The ranks of a `Buffer`, and the experts that they have set up. DeepEP's callers say shapes with each call, and
`mscclpp.ep` takes them at the set-up: the first call with a shape sets it up.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any, NamedTuple

import torch

from . import _mscclpp
from ._collectives import Collectives
from ._errors import Error
from ._mscclpp import ErrorCode
from ._on_device import _stream_of_torch, communicator_of
from .ep import Experts

_LOG = logging.getLogger("mscclpp.ep")

#: How long the host waits for calls that wait for another rank, in seconds.
PATIENCE = 100.0
#: The most shapes for which a buffer keeps experts.
_MOST = 4
#: The steps in which the capacity of normal calls grows.
_STEP = 128
#: The scratch of the collectives, in bytes: they exchange counts only, in one block, of up to 16 ranks.
_SCRATCH = 4 << 20


class Shape(NamedTuple):
    """The settings of experts that do not grow."""

    experts: int
    top_k: int
    hidden: int
    dtype: str
    #: The most tokens of a rank in low-latency calls, whose layout depends on it. None for normal calls.
    capacity: int | None = None


class SetUp:
    """Experts of one shape, and variants of them for other rows that travel, in the same memory."""

    def __init__(self, experts: Experts) -> None:
        self.experts = experts
        self._variants: dict[Any, Experts] = {}
        self._micro_batch = 1
        #: For each micro-batch, whether a hook of it is yet to be called.
        self.is_pending = [False, False]

    def of_rows(self, quantise: str | None = None, row_bytes: int | None = None, also: tuple[int, ...] = ()) -> Experts:
        """Returns the experts for rows that are quantised on their way, or of so many bytes."""
        key = (quantise, row_bytes, also)
        if key not in self._variants:
            self._variants[key] = self.experts.with_payload(quantise=quantise, row_bytes=row_bytes, also=also)
        return self._variants[key]

    def next_micro_batch(self) -> int:
        """Returns the micro-batch of the next low-latency dispatch: the other one, unless its hook is yet to come."""
        if not self.is_pending[1 - self._micro_batch]:
            self._micro_batch = 1 - self._micro_batch
        return self._micro_batch


class Ranks:
    """The ranks of a buffer, which all make the same calls in the same order."""

    def __init__(self, group: Any, max_blocks: int | None, survives_loss: bool) -> None:
        self._group, communicator = communicator_of("group", group)
        self._bootstrap = communicator.bootstrap()
        self.rank, self.size = self._bootstrap.get_rank(), self._bootstrap.get_n_ranks()
        platform, self.device, _ = _mscclpp._current_gpu()
        self.is_simulated = platform == "sim"
        self.comm: Any = None if self.is_simulated else torch.cuda.Stream()
        self._max_blocks, self.survives_loss = max_blocks, survives_loss
        self._lost: set[int] = set()
        self._set_ups: dict[Shape, SetUp] = {}
        self._collectives: Collectives | None = None
        # Loaded here, since a capture cannot load a kernel.
        self._counter = _mscclpp._ChoiceCounter(self.device)

    def set_up(self, shape: Shape, capacity: int) -> SetUp:
        """Returns experts with room for so many tokens of each rank. All ranks call it alike, and if there are none yet,
        they make them together.
        """
        found = self._set_ups.get(shape)
        if found is not None and found.experts.capacity >= capacity:
            self._set_ups[shape] = self._set_ups.pop(shape)  # the last one is the newest
            return found
        self.expect_no_capture(
            f"experts of {shape.experts} experts, top-k {shape.top_k} and {shape.hidden} numbers a token, for {capacity} "
            f"tokens of a rank, are not set up (for {found.experts.capacity if found else 0} they are), and a capture "
            "cannot do it: make a call of this shape, with as many tokens, before the capture, on all ranks"
        )
        self.expect_all("the first call of a shape takes all ranks")
        if shape.capacity is None:
            capacity = -(-max(capacity, found.experts.capacity * 5 // 4 if found else 1) // _STEP) * _STEP
        gone = [shape] if found is not None else list(self._set_ups)[: max(0, len(self._set_ups) - _MOST + 1)]
        if gone:
            self._wait_for_all()
            for each in gone:
                # A handle that is in use keeps the memory of its experts.
                del self._set_ups[each]
        survives_loss = self.survives_loss and shape.capacity is not None
        experts = Experts(
            self._group,
            experts=shape.experts,
            top_k=shape.top_k,
            hidden=shape.hidden,
            capacity=capacity,
            dtype=shape.dtype,
            micro_batches=1 if shape.capacity is None else 2,
            max_blocks=self._max_blocks,
            device=self.device,
            timeout=None if survives_loss else PATIENCE,
            survive_loss=PATIENCE if survives_loss else None,
        )
        self._set_ups[shape] = made = SetUp(experts)
        return made

    def count_choices(self, ids: torch.Tensor, experts: int, counts: torch.Tensor, is_in_rank: torch.Tensor) -> None:
        """Counts the choices of tokens: in `counts` the tokens, those for each rank, and the choices of each expert; and
        which token goes to which rank.
        """
        if ids.dim() != 2 or ids.dtype not in (torch.int32, torch.int64):
            raise TypeError(
                f"argument 'topk_idx': expected numbers of type int32 or int64 of shape (tokens, top-k), got {ids.dtype} of "
                f"shape {tuple(ids.shape)}"
            )
        memory = ids.data_ptr(), ids.element_size(), experts, self.size, counts.data_ptr(), is_in_rank.data_ptr()
        self._counter.count(ids.shape[0], ids.shape[1], *memory, self._stream())

    def exchange(self, counts: torch.Tensor, experts: int) -> tuple[int, list[list[int]], list[int]]:
        """Returns the most tokens of a rank, how many tokens go from each rank to each, and how many rows come to each
        expert of this rank. The host waits for them.
        """
        self.expect_no_capture(
            "this call waits for counts of all ranks on the host, which a capture cannot: give num_worst_tokens"
        )
        if self._collectives is None:
            self._collectives = Collectives(self._group, self.device, scratch=_SCRATCH, max_blocks=1, timeout=PATIENCE)
        return self._collectives._made.counts_to_host(counts.data_ptr(), experts, self._stream())

    def settle(self, experts: Experts) -> None:
        """Lets later work of PyTorch read what a call writes: on simulated devices, by waiting for the call."""
        if self.is_simulated:
            self._finish(experts)

    def lost(self) -> set[int]:
        """Returns the ranks that are lost, when the low-latency calls in the current stream are complete."""
        if self.survives_loss:
            for experts in self._of_low_latency():
                self._finish(experts)
        return self._lost

    def lose(self, ranks: Collection[int]) -> None:
        """Lets low-latency calls go on without these ranks."""
        self._lost.update(ranks)
        for experts in self._of_low_latency():
            experts.lose(ranks, self._stream())

    def expect_all(self, why: str) -> None:
        """Raises an error if a rank is lost."""
        if self._lost:
            raise Error(
                int(ErrorCode.RemoteError),
                f"{why}, and ranks {sorted(self._lost)} are lost: make a new Buffer, of the ranks that are left or with "
                "others in their place",
            )

    def expect_no_capture(self, why: str) -> None:
        if self.is_capturing():
            raise RuntimeError(why)

    def is_capturing(self) -> bool:
        return not self.is_simulated and bool(torch.cuda.is_current_stream_capturing())

    def close(self) -> None:
        """Waits until all ranks have come here, and gives the memory back."""
        try:
            self._wait_for_all()
        except Error:
            # A rank that is lost does not come, and others do not wait for it.
            if not self._lost:
                raise
        finally:
            for made in self._set_ups.values():
                made.experts.close()
            self._set_ups.clear()
            if self._collectives is not None:
                self._collectives.close()

    def _of_low_latency(self) -> list[Experts]:
        return [made.experts for shape, made in self._set_ups.items() if shape.capacity is not None]

    def _wait_for_all(self) -> None:
        """Waits until the calls that all ranks have made are complete."""
        if self.is_simulated:
            for made in self._set_ups.values():
                self._finish(made.experts)
        else:
            torch.cuda.synchronize()
        self._bootstrap.barrier(PATIENCE)

    def _finish(self, experts: Experts) -> None:
        """Waits until the calls in the current stream are complete. If they have gone on without ranks that are lost, logs
        it, and tells the experts of the other shapes.
        """
        try:
            experts.synchronize(self._stream())
        except Error as error:
            lost = experts.lost()
            if error.code != ErrorCode.RemoteError or not lost:
                raise
            _LOG.warning("%s", error)
            self.lose(lost)

    def _stream(self) -> int:
        return 0 if self.is_simulated else _stream_of_torch()(self.device)
