"""The works of the backend of `torch.distributed`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

import torch
import torch.distributed as dist

from ._mscclpp import _Point
from ._torch_calls import Call
from ._torch_messages import current_stream

if TYPE_CHECKING:
    from ._torch_lane import Lane

_NO_TIME = timedelta(0)
#: A work whose result has at most so many numbers is kept when the program drops it, because torch's reducer may still wait
#: with it.
_FEW = 16


class Work(dist.Work):  # type: ignore[misc]
    """Several calls that were made together.

    `wait()` makes the current stream wait and does not block the host, except for a barrier, with a time, and on
    simulated devices. The tensors are kept until then.
    """

    #: The point behind the calls, in the stream of the lane. None on simulated devices.
    _point: _Point | None = None
    #: The stream that was current when the calls were made. None if there were several.
    _made_on: int | None = None
    #: The stream that has waited for the calls last.
    _held: int | None = None
    _future: Any = None
    _error: Exception | None = None
    _is_done = False
    #: The tensors of the program, kept until the program has waited, and a stream that waits has taken over. If the
    #: program does not wait, the allocator is told.
    _kept: Sequence[torch.Tensor]

    def __init__(
        self,
        lane: Lane,
        names: list[str],
        results: Any,
        tensors: Sequence[torch.Tensor],
        timeout: float,
        blocks: bool = False,
    ) -> None:
        dist.Work.__init__(self)
        self._lane, self._names, self._results, self._kept = lane, names, results, tensors
        self._timeout, self._blocks = timeout, blocks

    @classmethod
    def of(cls, lane: Lane, calls: Sequence[Call], timeout: float, blocks: bool) -> Self:
        """Returns the work of calls."""
        names = [call.name for call in calls]
        if len(calls) == 1:
            return cls(lane, names, calls[0].results, calls[0].tensors, timeout, blocks)
        results = [result for call in calls for result in call.results]
        return cls(lane, names, results, [tensor for call in calls for tensor in call.tensors], timeout, blocks)

    def wait(self, timeout: timedelta = _NO_TIME) -> bool:
        """Make later work of the current stream wait for the calls. With a time, block the host for so long."""
        if self._error is not None:
            raise self._error
        if self._point is None:
            self._complete(timeout.total_seconds())
            self._kept = ()
            return True
        lane = self._lane
        lane.check()
        current = current_stream(lane.index)
        if current != self._held:
            if current != lane.handle:
                self._point.hold(current)
            if current != self._made_on:
                self._tell_allocator(torch.cuda.current_stream(lane.device))
            self._held = current
        if self._blocks or timeout > _NO_TIME:
            self._block(timeout.total_seconds() or self._timeout)
        self._kept = ()
        return True

    def synchronize(self) -> None:
        """Make later work of the current stream wait for the calls."""
        self.wait()

    def block_current_stream(self) -> None:
        """Make later work of the current stream wait for the calls, and never block the host."""
        if self._point is None:
            self._complete()
        else:
            self._point.hold(current_stream(self._lane.index))

    def is_completed(self) -> bool:
        """Whether the calls are complete, or failed."""
        if self._error is not None or self._is_done:
            return True
        if self._point is None:
            # Work of a simulated device is complete when a thread has waited for it.
            self._complete()
            return True
        return self._point.is_complete()

    def is_success(self) -> bool:
        """Whether the calls are complete, and did not fail."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> Exception | None:
        """Return the error of the calls, if one is known."""
        if self._error is None and self._point is not None and self._point.is_complete():
            self._lane.look()
        return self._error or self._lane.tell()

    def result(self) -> Any:
        """The tensors that take the results."""
        return self._results

    def get_future(self) -> Any:
        """A future of the results, with which other streams wait."""
        if self._future is None:
            if self._point is None:
                self.wait()
                self._future = torch.futures.Future()
                self._future.set_result(self._results)
            else:
                # The future waits for the present end of the stream, which is at or after the end of these calls.
                # `torch.cuda.stream` would take longer than all the rest.
                lane, device = self._lane, torch.cuda.current_device()
                current = torch.cuda.current_stream(lane.device)
                self._future = torch.futures.Future(devices=[lane.device])
                torch.cuda.set_stream(lane.stream)
                try:
                    self._future.set_result(self._results)
                finally:
                    torch.cuda.set_stream(current)
                    if device != lane.index:
                        torch.cuda.set_device(device)
        return self._future

    def __del__(self) -> None:
        if self._kept and self._point is not None:
            self._tell_allocator(self._lane.stream)
        if self._names == ["all_reduce"] and len(self._results) == 1 and self._results[0].numel() <= _FEW:
            # The C++ part of DDP's reducer may still hold this work, and wait with it for a number of ranks. Without
            # the Python object the work never completes, and has no future.
            self._lane.let_go.append(self)

    def _tell_allocator(self, stream: Any) -> None:
        for tensor in self._kept:
            if tensor.is_cuda:
                tensor.record_stream(stream)

    def _complete(self, seconds: float = 0.0) -> None:
        if not self._is_done:
            self._lane.complete(self._names, seconds or self._timeout)
        if self._error is not None:
            raise self._error

    def _block(self, seconds: float) -> None:
        """Blocks until the calls are complete. If they are not complete in time, they are aborted."""
        assert self._point is not None
        deadline = time.monotonic() + seconds
        while not self._point.is_complete():
            if time.monotonic() > deadline:
                self._lane.give_up(self._names, seconds)
                break
            time.sleep(0.00005)
        self._lane.look()
        self._lane.check()


class InCurrent(dist.Work):  # type: ignore[misc]
    """Calls that are in the current stream, where later work is behind them."""

    def wait(self, timeout: timedelta = _NO_TIME) -> bool:
        """Do nothing."""
        return True


IN_CURRENT = InCurrent()


class OfGloo(dist.Work):  # type: ignore[misc]
    """Calls of gloo that were made between `_start_coalescing` and `_end_coalescing`."""

    def __init__(self, works: Sequence[Any]) -> None:
        super().__init__()
        self._works = works

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait for all of them."""
        return all(work.wait() if timeout <= timedelta(0) else work.wait(timeout) for work in self._works)

    def is_completed(self) -> bool:
        """Whether all are complete."""
        return all(work.is_completed() for work in self._works)

    def get_future(self) -> Any:
        """A future of all their results."""
        self.wait()
        future: Any = torch.futures.Future()
        future.set_result([tensor for work in self._works for tensor in work.result()])
        return future
