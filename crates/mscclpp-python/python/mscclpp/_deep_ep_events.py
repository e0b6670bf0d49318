"""Events of `deep_ep`, and the stream that a call goes into."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


class EventHandle:
    """A point in the current stream. On a machine without GPUs it is complete at once."""

    def __init__(self) -> None:
        self._event: Any = None
        if torch.cuda.is_available():
            self._event = torch.cuda.Event()
            self._event.record()

    def current_stream_wait(self) -> None:
        """Let the current stream wait for the work before this point."""
        if self._event is not None:
            torch.cuda.current_stream().wait_event(self._event)


class EventOverlap:
    """The end of a call, or no event. As a context manager, `with event:`, it lets the current stream wait at the end of
    the block.

    `extra_tensors` are kept as long as this object is.
    """

    def __init__(self, event: EventHandle | None = None, extra_tensors: tuple[Any, ...] | None = None) -> None:
        self.event, self.extra_tensors = event, extra_tensors

    def current_stream_wait(self) -> None:
        """Let the current stream wait for the call. Without an event there is nothing to wait for."""
        if self.event is not None:
            self.event.current_stream_wait()

    def __enter__(self) -> EventOverlap:
        return self

    def __exit__(self, *_exception: Any) -> None:
        self.current_stream_wait()


class Call:
    """A call in progress: the tensors that it made, and its event, which is set at its end."""

    def __init__(self) -> None:
        self.made: list[Any] = []
        self.event = EventOverlap()


@contextmanager
def call_in(comm: Any, previous: EventOverlap | None, is_async: bool, given: Iterable[Any]) -> Iterator[Call]:
    """Makes the stream current that a call goes into: the current one, or with `is_async` the communication stream
    `comm`, which is None on simulated devices.

    The communication stream waits for `previous`, or else for the current stream. Both streams know the tensors that the
    call is given and makes, so that the allocator of PyTorch gives none of them away too early.
    """
    call = Call()
    if comm is None or not is_async:
        if previous is not None:
            previous.current_stream_wait()
        yield call
        if is_async:
            call.event = EventOverlap(EventHandle())
        return
    current = torch.cuda.current_stream()
    if previous is None or previous.event is None:
        comm.wait_stream(current)
    with torch.cuda.stream(comm):
        if previous is not None:
            previous.current_stream_wait()
        yield call
        call.event = EventOverlap(EventHandle())
    for tensor in given:
        tensor.record_stream(comm)
    for tensor in call.made:
        tensor.record_stream(current)
