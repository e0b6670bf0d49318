"""Messages of the backend of `torch.distributed` that torch does not gather: single calls of `isend` and `irecv`.

A stream carries out one call after the other. If each message were a call of its own, a ring in which every rank
first receives would wait for ever. Some versions of torch gather the messages of `batch_isend_irecv` only for groups
that are not of a Python class. So messages are put off, and all of them become one call, in which they are sent and
received at the same time. The call is made when the program waits for one of them or drops it, at the next call of
the group, and in any case after a short time.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from . import _threads
from ._mscclpp import _Point
from ._on_device import _stream_of_torch
from ._torch_calls import Call

#: Returns the handle of the current stream of a device.
current_stream = _stream_of_torch()
#: The time after which messages are made that no program waits for, in seconds.
_PUT_OFF_FOR = 0.02
#: How long the thread that makes them waits for further messages, in seconds.
_IDLE_FOR = 10.0


class PutOff:
    """A message that was put off, and its result."""

    work: Any = None
    error: Exception | None = None
    #: The end of the work that was in the program's stream, which the message waits for, and that stream.
    behind: _Point | None = None
    stream: int | None = None
    is_captured = False

    def __init__(self, call: Call, peer: int) -> None:
        self.call, self.peer = call, peer
        self.tensor: torch.Tensor = call.tensors[0]
        self.since = time.monotonic()

    def put_behind(self, last: PutOff | None) -> None:
        """Notes the end of the current stream. A message before this one that was in the same stream shares the point."""
        device = self.tensor.get_device()
        self.stream = current_stream(device)
        if last is None or last.behind is None or last.stream != self.stream or not last.behind.advance(self.stream):
            self.behind = _Point(device, self.stream)
        else:
            self.behind = last.behind
        self.is_captured = self.behind.is_captured


class Messages:
    """The messages of a group that were put off."""

    def __init__(self, make: Callable[[list[PutOff]], None], give_up: Callable[[str], None]) -> None:
        #: Makes calls of messages, and stores the result in each message.
        self._make = make
        #: Ends the waits of `_make` for good.
        self._give_up = give_up
        self._waiting: list[PutOff] = []
        #: Whether there are messages that are not made, or are being made.
        self.are_any = False
        #: Whether there were any since the thread that makes them has looked.
        self._were_any = False
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        #: Whether a thread makes the messages that no program waits for, and whether it waits until there is one.
        self._is_watched = self._is_asleep = False
        self._is_ending = False

    def put_off(self, call: Call, peer: int) -> Message:
        """Adds a message."""
        message = PutOff(call, peer)
        with self._lock:
            if message.tensor.is_cuda:
                message.put_behind(self._waiting[-1] if self._waiting else None)
            self._waiting.append(message)
            self.are_any = self._were_any = True
            if self._is_asleep:
                self._changed.notify()
            elif not self._is_watched and not message.is_captured:
                self._is_watched = _threads.start("mscclpp-torch-messages", self._watch, self._end)
        return Message(self, message)

    def make(self) -> None:
        """Makes all messages that were put off, together. After this call no other thread is making messages either."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            if not waiting:
                return
            try:
                self._make(waiting)
            except BaseException as error:
                for message in waiting:
                    if message.work is None:
                        message.error = error if isinstance(error, Exception) else RuntimeError(repr(error))
                raise
            finally:
                self.are_any = bool(self._waiting)

    def drop(self, reason: str) -> None:
        """Lets all messages that were put off fail."""
        with self._lock:
            for message in self._waiting:
                message.error = RuntimeError(reason)
            self._waiting, self.are_any = [], False

    def _watch(self) -> None:
        """Makes messages that have waited for long, until there have been none for a while."""
        be_relaxed_about_captures()
        with self._lock:
            while not self._is_ending:
                left = self._make_old()
                if left is not None or self._were_any:
                    self._were_any = False
                    self._changed.wait(left or _PUT_OFF_FOR)
                    continue
                # To wake this thread takes longer than to put off a message, so it sleeps only if none came for a while.
                self._is_asleep = True
                is_woken = self._changed.wait(_IDLE_FOR)
                self._is_asleep = False
                if not is_woken:
                    break
            self._is_watched = False

    def _end(self) -> None:
        """Ends the thread at the end of the program. Messages that no program waits for are not made any more."""
        self._is_ending = True
        # The thread holds the lock while it makes a communicator with other ranks, which may never come.
        if not self._changed.acquire(timeout=0.5):
            self._give_up("the program ended")
            self._changed.acquire()
        self._changed.notify()
        self._changed.release()
        self.drop("the program ended")

    def _make_old(self) -> float | None:
        """Makes messages that have waited long enough. Returns when to look again, in seconds, or None if none wait."""
        waiting = [message for message in self._waiting if not message.is_captured]
        if not waiting:
            return None
        # The time counts from the last message, since those of a long list are added one after the other. The first
        # one sets a limit, as messages may be added all the time.
        due = min(waiting[-1].since + _PUT_OFF_FOR, waiting[0].since + 10 * _PUT_OFF_FOR)
        left = due - time.monotonic()
        if left > 0:
            return left
        if len(waiting) == len(self._waiting):
            device = waiting[0].tensor.device
            if device.type == "cuda":
                # Otherwise this thread would make a context on the first device.
                torch.cuda.set_device(device)
            # The program's wait for a message raises its error.
            with contextlib.suppress(Exception):
                self.make()
        return _PUT_OFF_FOR


class Message(dist.Work):  # type: ignore[misc]
    """The work of a message, as a program gets it. It makes the message when the program asks for it."""

    def __init__(self, messages: Messages, message: PutOff) -> None:
        dist.Work.__init__(self)
        self._messages, self._message = messages, message

    def __del__(self) -> None:
        if self._message.work is None and self._message.error is None:
            self._messages.make()

    def _made(self) -> Any:
        if self._message.work is None and self._message.error is None:
            self._messages.make()
        if self._message.error is not None:
            raise self._message.error
        return self._message.work

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Make later work of the current stream wait for the message. With a time, block the host for so long."""
        return bool(self._made().wait(timeout))

    def synchronize(self) -> None:
        """Make later work of the current stream wait for the message."""
        self.wait()

    def block_current_stream(self) -> None:
        """Make later work of the current stream wait for the message, and never block the host."""
        self._made().block_current_stream()

    def is_completed(self) -> bool:
        """Whether the message is complete, or failed."""
        return bool(self._made().is_completed())

    def is_success(self) -> bool:
        """Whether the message is complete, and did not fail."""
        return bool(self._made().is_success())

    def exception(self) -> Exception | None:
        """Return the error of the message, if one is known."""
        if self._message.error is not None:
            return self._message.error
        work = self._message.work
        error: Exception | None = None if work is None else work.exception()
        return error

    def result(self) -> Any:
        """The tensor."""
        return [self._message.tensor]

    def get_future(self) -> Any:
        """A future of the tensor, with which other streams wait."""
        return self._made().get_future().then(lambda _: [self._message.tensor])


def be_relaxed_about_captures() -> None:
    """Lets this thread query events while another thread captures a graph. CUDA forbids that otherwise."""
    relaxed = ctypes.c_int(2)
    for library, name in (
        ("libcuda.so.1", "cuThreadExchangeStreamCaptureMode"),
        ("libamdhip64.so", "hipThreadExchangeStreamCaptureMode"),
    ):
        try:
            exchange = getattr(ctypes.CDLL(library), name)
        except (OSError, AttributeError):
            continue
        exchange(ctypes.byref(relaxed))
        return
