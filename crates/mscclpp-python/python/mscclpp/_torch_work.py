"""The works of the backend of `torch.distributed`, and the stream that their calls go into."""

from __future__ import annotations

import collections
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from . import _threads
from ._collectives import Collectives
from ._errors import Error
from ._mscclpp import ErrorCode
from ._torch_calls import Call
from ._torch_messages import PutOff, be_relaxed_about_captures
from ._torch_refusals import add_consequences, all_refuse, reason_in, reason_of

_LOG = logging.getLogger("mscclpp.torch")
#: How often the thread checks whether calls take too long, in seconds.
_WATCH_EVERY = 0.2
#: How long the thread waits for further calls, in seconds.
_IDLE_FOR = 10.0
_NO_TIME = timedelta(0)
#: The most numbers that the tensors of a work may have that is kept for torch.
_FEW = 16
#: Returns the handle of the current stream of a device, which is cheaper than a stream object. Some versions of torch
#: do not have it.
_current_handle: Callable[[int], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)


class Work(dist.Work):  # type: ignore[misc]
    """Several calls that were made together.

    `wait()` makes the current stream wait and does not block the host, except for a barrier, with a time, and on
    simulated devices. The tensors are kept until then.
    """

    _event: torch.cuda.Event | None = None
    #: The stream that was current when the calls were made, and the stream that the calls are in.
    _made_on: Any = None
    _stream: Any = None
    _future: Any = None
    _error: Exception | None = None
    _is_done = False
    #: The tensors of the program, kept until the program has waited, and a stream that waits has taken over. If the
    #: program does not wait, the allocator is told.
    _kept: Sequence[torch.Tensor]

    def __init__(self, lane: Lane, calls: Sequence[Call], blocks: bool, timeout: float) -> None:
        super().__init__()
        self._lane, self._blocks, self._timeout = lane, blocks, timeout
        if len(calls) == 1:
            call = calls[0]
            self._names, self._results, self._kept = call.name, call.results, call.tensors
        else:
            self._names = ", ".join(sorted({call.name for call in calls}))
            self._results = [result for call in calls for result in call.results]
            self._kept = [tensor for call in calls for tensor in call.tensors]

    def wait(self, timeout: timedelta = _NO_TIME) -> bool:
        """Make later work of the current stream wait for the calls. With a time, block the host for so long."""
        if self._error is not None:
            raise self._error
        if self._event is None:
            self._complete(timeout.total_seconds())
            self._kept = ()
            return True
        self._lane.check()
        current = self._lane.current_stream()
        if current is not self._stream and current != self._stream:
            current.wait_event(self._event)
        if current is not self._made_on and current != self._made_on:
            self._tell_allocator(current)
        if self._blocks or timeout > _NO_TIME:
            self._block(timeout.total_seconds() or self._timeout)
        self._kept = ()
        return True

    def synchronize(self) -> None:
        """Make later work of the current stream wait for the calls."""
        self.wait()

    def block_current_stream(self) -> None:
        """Make later work of the current stream wait for the calls, and never block the host."""
        if self._event is None:
            self._complete()
        else:
            self._lane.current_stream().wait_event(self._event)

    def is_completed(self) -> bool:
        """Whether the calls are complete, or failed."""
        if self._error is not None or self._is_done:
            return True
        if self._event is None:
            # Work of a simulated device is complete when a thread has waited for it.
            self._complete()
            return True
        return bool(self._event.query())

    def is_success(self) -> bool:
        """Whether the calls are complete, and did not fail."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> Exception | None:
        """Return the error of the calls, if one is known."""
        if self._error is None and self._event is not None and self._event.query():
            self._lane.look()
        return self._error or self._lane.tell()

    def result(self) -> Any:
        """The tensors that take the results."""
        return self._results

    def get_future(self) -> Any:
        """A future of the results, with which other streams wait."""
        if self._future is None:
            if self._event is None:
                self.wait()
                self._future = torch.futures.Future()
                self._future.set_result(self._results)
            else:
                # The future waits for the present end of the stream, which is at or after the end of these calls.
                self._future = torch.futures.Future(devices=[self._lane.device])
                with torch.cuda.stream(self._stream):
                    self._future.set_result(self._results)
        return self._future

    def __del__(self) -> None:
        if self._kept and self._event is not None:
            self._tell_allocator(self._stream)
        if self._names == "all_reduce" and len(self._results) == 1 and self._results[0].numel() <= _FEW:
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
        assert self._event is not None
        deadline = time.monotonic() + seconds
        while not self._event.query():
            if time.monotonic() > deadline:
                self._lane.give_up(self._names, seconds)
                break
            time.sleep(0.00005)
        self._lane.look()
        self._lane.check()


class Lane:
    """A communicator, and the stream that its calls go through, one after the other.

    A call waits for the work that the program has put into the current stream.
    """

    def __init__(
        self, collectives: Collectives, timeout: float, described: str, store: Any, forget: Callable[[Lane], None]
    ) -> None:
        self.collectives = collectives
        #: The place where ranks say that they refuse calls of this communicator. None if it is for messages only.
        self._store = store
        #: Makes the group form another communicator at its next call.
        self._forget = forget
        #: The number of calls that all ranks make, so far, including those that this rank has refused.
        self.number = 0
        #: Whether a refused call has ended the communicator.
        self._is_refused = False
        #: The name of the group in time-outs and errors.
        self.described = described
        self.timeout = timeout
        self.error: Exception | None = None
        #: Whether the program has been told about the error.
        self._is_told = False
        #: Whether the communicator was closed.
        self._is_gone = False
        #: The works on a simulated device that the program has not waited for, with calls that are finished then.
        self._simulated: list[tuple[Work, Sequence[Call]]] = []
        self._completing = threading.RLock()
        #: The works on a GPU: the event, the time by which it must be complete, the names, and the time-out.
        self._followed: collections.deque[tuple[torch.cuda.Event, float, str, float]] = collections.deque()
        self._changed = threading.Condition()
        #: Whether a thread checks these.
        self._is_watched = False
        self._is_ending = False
        self._is_closed = False
        self._current: tuple[int | None, Any] = (None, None)
        #: The last works with few numbers that the program has dropped.
        self.let_go: collections.deque[Work] = collections.deque(maxlen=256)
        if collectives.is_simulated:
            self.device, self.stream = torch.device("cpu"), None
        else:
            self.device = torch.device("cuda", collectives.device)
            self.stream = torch.cuda.Stream(self.device, priority=-1)

    def run(
        self,
        calls: Sequence[Call],
        timeout: float | None = None,
        blocks: bool = False,
        behind: Sequence[PutOff] | None = None,
        in_current: bool = False,
    ) -> Work:
        """Puts calls into the lane's stream, together. They wait for the current stream, or for the work that
        `behind` waits for.

        With `in_current` they go into the current stream itself. It is for calls that the program waits for at once,
        and takes less time.
        """
        self.check()
        work = Work(self, calls, blocks, timeout or self.timeout)
        try:
            if self.stream is None:
                self._run_simulated(calls, work)
                return work
            is_here = torch.cuda.current_device() == self.device.index
            if in_current and is_here:
                work._made_on = self.current_stream()
                self._put(calls, work, work._made_on)
                return work
            if behind is None:
                work._made_on = self.current_stream()
                self.stream.wait_stream(work._made_on)
                if is_here and not _copy(calls):
                    # The lane's stream need not become the current stream, which would take time. It is captured if
                    # the current stream is.
                    self._put(calls, work, self.stream)
                    return work
            else:
                streams = {message.stream for message in behind}
                work._made_on = streams.pop() if len(streams) == 1 else None
                for message in behind:
                    self.stream.wait_event(message.behind)
            with torch.cuda.stream(self.stream):
                self._put(calls, work, self.stream)
            return work
        except Exception as error:
            self._not_made(calls, error)

    def current_stream(self) -> Any:
        """The program's current stream of the device. As long as it does not change, it is the same object."""
        if _current_handle is None:
            return torch.cuda.current_stream(self.device)
        handle, stream = self._current
        if handle != (handle := _current_handle(self.device.index)):
            stream = torch.cuda.current_stream(self.device)
            self._current = handle, stream
        return stream

    def _put(self, calls: Sequence[Call], work: Work, stream: Any) -> None:
        """Puts calls into a stream, which must be the current one if they copy."""
        if len(calls) == 1 and not calls[0].copies and calls[0].name not in _OF_A_ROOT:
            requests = calls[0].requests()
            if requests:
                self.collectives.enqueue(requests, stream.cuda_stream)
        else:
            self._put_several(calls, stream)
        work._stream = stream
        work._event = stream.record_event()
        if not torch.cuda.is_current_stream_capturing():
            self._follow(work)

    def _put_several(self, calls: Sequence[Call], stream: Any) -> None:
        with torch.no_grad() if _copy(calls) else contextlib.nullcontext():
            requests = [request for call in calls for request in call.requests()]
            if self._store is not None and any(call.name in _OF_A_ROOT for call in calls):
                requests.append(_BARRIER)
            if requests:
                self.collectives.enqueue(requests, stream.cuda_stream)
            for call in calls:
                if call.finish is not None:
                    call.finish()

    def _run_simulated(self, calls: Sequence[Call], work: Work) -> None:
        if _copy(calls):
            # The memory that it copies may be the result of earlier calls.
            self.complete(work._names, work._timeout)
        with torch.no_grad():
            requests = [request for call in calls for request in call.requests()]
        if self._store is not None and _are_of_all(calls):
            requests.append(_BARRIER)
        if requests:
            self.collectives.enqueue(requests, 0)
        self._simulated.append((work, calls))

    def _not_made(self, calls: Sequence[Call], error: Exception) -> NoReturn:
        """Raises the error of calls that were not made."""
        if isinstance(error, Error) and error.code != ErrorCode.InvalidUsage:
            if reason_in(error) is not None:
                self._fail(error)
                self.check()
        elif error is not self.error and _are_of_all(calls):
            self._refuse(error)
        raise error

    def refuse_next(self, error: Exception) -> NoReturn:
        """Raises an error in the arguments of the next call. If other ranks make the call, it fails there, too."""
        self.number += 1
        self._refuse(error)

    def _refuse(self, error: Exception) -> NoReturn:
        self.check()
        if self._store is not None and not all_refuse(self._store, self.number, self.collectives.size):
            self._is_refused = True
            self.abort(reason_of(self.collectives.rank, error))
            self._note_told()
            add_consequences(error)
        raise error

    def complete(self, names: str, seconds: float) -> None:
        """Waits until all calls on a simulated device are complete. If they are not complete in time, they are
        aborted.
        """
        with self._completing:
            waiting, self._simulated = self._simulated, []
            if not waiting:
                return
            try:
                check = self._patience(names, seconds)
                pause = 0.00002
                # After an error of the collectives, the waits of these calls end, or have ended before.
                with contextlib.suppress(Error):
                    while not self.collectives._made.enqueue([], 0):
                        check()
                        time.sleep(pause)
                        pause = min(1.5 * pause, 0.002)
                self.collectives.synchronize(0)
            except Exception as error:
                self._fail(error)
            except BaseException:
                # Ctrl-C: the calls go on, and the program may wait for them again.
                self._simulated[:0] = waiting
                raise
            for work, calls in waiting:
                work._error = self.error
                for call in calls:
                    if call.finish is not None and work._error is None:
                        with torch.no_grad():
                            call.finish()
                work._is_done = True
            self.check()

    def _patience(self, names: str, seconds: float) -> Callable[[], None]:
        """Returns a function that aborts calls when their time is up, and raises their error."""
        deadline = time.monotonic() + seconds

        def check() -> None:
            if time.monotonic() > deadline:
                self.give_up(names, seconds)
            self.check()

        return check

    def check(self) -> None:
        """Raises the error of earlier calls, if they failed."""
        if self.error is not None:
            self._note_told()
            raise self.error

    def _note_told(self) -> None:
        """Notes that the program has been told about the error."""
        self._is_told = True
        if self._is_refused:
            self._forget(self)

    def _fail(self, error: Exception) -> None:
        """Stores the error of calls, if it is the first. If another rank has refused a call, its reason is the error."""
        reason = reason_in(error) if self._store is not None else None
        if self.error is None and reason is not None:
            self._is_refused = True
            error = ValueError(reason)
            add_consequences(error)
        self.error = self.error or error

    def look(self) -> None:
        """Stores and logs the error of complete calls on a GPU, if they failed."""
        with self._changed:
            if self.error is not None or self._is_gone:
                return
            try:
                self.collectives.check()
            except Exception as error:
                self._fail(error)
                _LOG.error("%s: %s", self.described, self.error)

    def tell(self) -> Exception | None:
        """Returns the error, and notes that the program has been told about it."""
        if self.error is not None:
            self._note_told()
        return self.error

    def give_up(self, names: str, seconds: float) -> None:
        """Aborts calls that have taken too long. The error names the ranks that they waited for."""
        reason = f"{self.described}: {names} took longer than {seconds:g} s"
        self.abort(reason)
        try:
            self.collectives.synchronize(self.stream.cuda_stream if self.stream is not None else 0)
            error: Exception = RuntimeError(reason)
        except Exception as why:
            why.add_note(reason)
            error = why
        self.error = error
        _LOG.error("%s: %s", reason, error)

    def abort(self, reason: str) -> None:
        """Ends the waits of all calls, here and on the other ranks. Calls that the program has not waited for fail."""
        self.error = self.error or RuntimeError(reason)
        self.collectives.abort(reason)

    def close(self) -> None:
        """Closes the communicator, when its calls are complete or have failed."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._changed.notify()
        try:
            if self.stream is None:
                self.complete("calls", self.timeout)
            elif self.error is None:
                # Some calls are in streams of the program.
                for event, *_ in list(self._followed):
                    self.stream.wait_event(event)
                self.collectives.synchronize(self.stream.cuda_stream)
        finally:
            with self._changed:
                self._is_gone = True
            self.let_go.clear()
            self.collectives.close()
        if not self._is_told:
            # No other call will raise it.
            self.check()

    # Calls that take too long on GPUs, where no thread of the program waits on the host.

    def _follow(self, work: Work) -> None:
        assert work._event is not None
        # The thread goes on to later works by itself, so it is notified of the first one only.
        self._followed.append((work._event, time.monotonic() + work._timeout, work._names, work._timeout))
        if self._is_watched and len(self._followed) > 1:
            return
        with self._changed:
            if self._is_watched:
                self._changed.notify()
            else:
                self._is_watched = _threads.start("mscclpp-torch-watch", self._watch_calls, self._end)

    def _end(self) -> None:
        """Ends the thread at the end of the program."""
        with self._changed:
            self._is_ending = True
            self._changed.notify()

    def _watch_calls(self) -> None:
        be_relaxed_about_captures()
        torch.cuda.set_device(self.device)
        while True:
            with self._changed:
                if not self._followed and not self._is_closed and not self._is_ending:
                    self._changed.wait(_IDLE_FOR)
                if not self._followed or self._is_ending:
                    # The next call starts another thread. So a group that is not destroyed can be freed.
                    self._is_watched = False
                    return
            # Calls are carried out in one order, even in several streams: when one is complete, those before it are.
            n = len(self._followed)
            while n > 0 and not self._followed[n - 1][0].query():
                n //= 2
            for _ in range(n):
                self._followed.popleft()
            if n > 0:
                self.look()
            if n == 0 and time.monotonic() > self._followed[0][1]:
                _, _, names, seconds = self._followed[0]
                self.give_up(names, seconds)
                return
            with self._changed:
                if not self._is_ending:
                    self._changed.wait(_WATCH_EVERY)


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


def _copy(calls: Sequence[Call]) -> bool:
    return any(call.copies for call in calls)


#: With it, a call is complete only when all ranks have made it, and a refusal fails it on all of them.
_BARRIER = ("barrier", 0, 0, 0, "uint8", "sum", 0)
#: The calls in which a rank may need nothing of the others, and which rarely matter for speed.
_OF_A_ROOT = ("gather", "scatter")


def _are_of_all(calls: Sequence[Call]) -> bool:
    """Whether all ranks of the group make the calls, which are not messages alone."""
    return any(call.name not in ("send", "recv") for call in calls)
