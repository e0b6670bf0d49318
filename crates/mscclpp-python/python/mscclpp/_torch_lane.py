"""The stream that the calls of the backend of `torch.distributed` go into, and the thread that watches them."""

from __future__ import annotations

import collections
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch

from . import _threads
from ._collectives import Collectives, Op, Request
from ._errors import BaseError, Error
from ._mscclpp import ErrorCode, _Point, _Requests
from ._torch_calls import Call
from ._torch_messages import PutOff, be_relaxed_about_captures, current_stream
from ._torch_refusals import add_consequences, all_refuse, reason_in, reason_of
from ._torch_work import IN_CURRENT, InCurrent, Work

_LOG = logging.getLogger("mscclpp.torch")
#: How often the thread checks whether calls take too long, in seconds.
_WATCH_EVERY = 0.2
#: How often it looks for further calls before it ends.
_IDLE_FOR = 50


class Lane:
    """A communicator, and the stream that its calls go through, one after the other.

    A call waits for the work that the program has put into the current stream.
    """

    def __init__(
        self, collectives: Collectives, timeout: float, described: str, store: Any, forget: Callable[[Lane], None]
    ) -> None:
        self.collectives, self._made = collectives, collectives._made
        #: The place where ranks say that they refuse calls of this communicator. None if it is for messages only.
        self._store = store
        #: Makes the group form another communicator at its next call.
        self._forget = forget
        #: For each pool, by its id, the memory that peers may write into.
        self._published: dict[Any, list[Any]] = {}
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
        #: The names of the last calls on a GPU, until the thread that checks calls follows them.
        self._last: list[str] | None = None
        #: The calls on a GPU that it follows: the point behind them, the time by which they must be complete, the names,
        #: and the time-out.
        self._followed: collections.deque[tuple[_Point, float, list[str], float]] = collections.deque()
        self._changed = threading.Condition()
        #: Whether the thread runs.
        self._is_watched = False
        self._is_ending = False
        self._is_closed = False
        #: The last works with few numbers that the program has dropped.
        self.let_go: collections.deque[Work] = collections.deque(maxlen=256)
        #: The device, and its number for PyTorch; the stream, and its handle.
        self.device, self.index = torch.device("cpu"), -1
        self.stream: Any = None
        self.handle = 0
        if not collectives.is_simulated:
            self.device, self.index = torch.device("cuda", collectives.device), collectives.device
            self.stream = torch.cuda.Stream(self.device, priority=-1)
            self.handle = self.stream.cuda_stream

    def run(
        self,
        calls: Sequence[Call],
        timeout: float | None = None,
        blocks: bool = False,
        behind: Sequence[PutOff] | None = None,
        in_current: bool = False,
    ) -> Work | None:
        """Puts calls into the lane's stream, together. They wait for the current stream, or for the work that
        `behind` waits for.

        With `in_current` they go into the current stream itself, and on a GPU there is no work to wait for.
        """
        self.check()
        work = None
        try:
            if self.stream is None:
                work = Work.of(self, calls, timeout or self.timeout, blocks)
                self._run_simulated(calls, work)
                return work
            if in_current:
                self._put(calls, current_stream(self.index))
            else:
                work = Work.of(self, calls, timeout or self.timeout, blocks)
                self._put_aside(calls, work, behind)
        except Exception as error:
            self._not_made(_are_of_all(calls), error)
        self._note(work._names if work is not None else [call.name for call in calls], timeout)
        return work

    def run_one(
        self,
        kind: str,
        given: torch.Tensor,
        taken: torch.Tensor,
        parts: tuple[int, int],
        numbers: tuple[str, int, Op],
        root: int,
        timeout: float | None,
        in_current: bool,
    ) -> Work | InCurrent | None:
        """Makes a call of all ranks on a GPU in one step. Returns None for tensors that are not plain: `run` copies them, or
        says what is wrong.
        """
        self.check()
        current = current_stream(self.index)
        to = (current, None) if in_current else (self.handle, current)
        self.number += 1
        try:
            put = self._made.enqueue_tensors(kind, given, taken, parts, numbers, root, *to)
        except Exception as error:
            self._not_made(True, error)
        if put is None:
            self.number -= 1
            return None
        work: Work | InCurrent = IN_CURRENT
        names = [kind]
        if isinstance(put, _Point):
            tensors = [taken] if given is taken else [given, taken]
            work = Work(self, names, [taken], tensors, timeout or self.timeout)
            work._point, work._made_on = put, current
        self._note(names, timeout)
        return work

    def _note(self, names: list[str], timeout: float | None) -> None:
        """Notes calls for the thread that checks them."""
        self._last = names
        if timeout is not None and not self._follow(timeout):
            self.look()
        if not self._is_watched:
            self._watch()

    def _put(self, calls: Sequence[Call], stream: int) -> None:
        """Puts calls into a stream, which must be the current one if they copy."""
        requests = _requests(calls)
        if requests:
            self._made.enqueue(requests, stream)
        for call in calls:
            if call.finish is not None:
                call.finished()

    def _put_aside(self, calls: Sequence[Call], work: Work, behind: Sequence[PutOff] | None) -> None:
        """Puts calls into the lane's stream."""
        points: list[Any]
        if behind is None:
            work._made_on = current_stream(self.index)
            points = [work._made_on]
        else:
            streams = {message.stream for message in behind}
            work._made_on = streams.pop() if len(streams) == 1 else None
            points = list({message.behind: None for message in behind})
        if _copy(calls):
            self._made.enqueue_behind([], self.handle, points)
            with torch.cuda.stream(self.stream):
                self._put(calls, self.handle)
            work._point = self._made.enqueue_behind([], self.handle, [])
        else:
            # The lane's stream need not become the current stream, which would take time.
            work._point = self._made.enqueue_behind(_requests(calls), self.handle, points)

    def _run_simulated(self, calls: Sequence[Call], work: Work) -> None:
        if _copy(calls):
            # The memory that it copies may be the result of earlier calls.
            self.complete(work._names, work._timeout)
        requests = [request for call in calls for request in call.prepared()]
        if _are_of_all(calls):
            requests.append(_BARRIER)
        if requests:
            self._made.enqueue(requests, 0)
        self._simulated.append((work, calls))

    def _not_made(self, are_of_all: bool, error: Exception) -> NoReturn:
        """Raises the error of calls that were not made, which all ranks make or not."""
        if isinstance(error, BaseError) and not (isinstance(error, Error) and error.code == ErrorCode.InvalidUsage):
            if reason_in(error) is not None:
                self._fail(error)
                self.check()
        elif error is not self.error and are_of_all:
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

    def complete(self, names: list[str], seconds: float) -> None:
        """Waits until all calls on a simulated device are complete. If they are not complete in time, they are
        aborted.
        """
        with self._completing:
            waiting, self._simulated = self._simulated, []
            if not waiting:
                return
            try:
                deadline, pause = time.monotonic() + seconds, 0.00002
                # After an error of the collectives, the waits of these calls end, or have ended before.
                with contextlib.suppress(Error):
                    while not self._made.enqueue([], 0):
                        if time.monotonic() > deadline:
                            self.give_up(names, seconds)
                        self.check()
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
                    if work._error is None:
                        call.finished()
                work._is_done = True
            self.check()

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

    def give_up(self, names: list[str], seconds: float) -> None:
        """Aborts calls that have taken too long. The error names the ranks that they waited for."""
        reason = f"{self.described}: {', '.join(sorted(set(names)))} took longer than {seconds:g} s"
        self.abort(reason)
        try:
            self._synchronize()
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

    def publish(self, pool: Any, segments: Sequence[tuple[int, int]]) -> None:
        """Lets peers write into the memory of a pool. Tensors of a simulated device are copied, and need nothing."""
        if self.stream is not None:
            self._published[pool] = [self._made.publish(address, size) for address, size in segments]

    def withdraw(self, pool: Any) -> None:
        """Ends what `publish` began for a pool."""
        self._published.pop(pool, None)

    def close(self) -> None:
        """Closes the communicator, when its calls are complete or have failed."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._changed.notify()
        try:
            if self.stream is None:
                self.complete(["calls"], self.timeout)
            elif self.error is None:
                self._synchronize()
        finally:
            with self._changed:
                self._is_gone = True
            self.let_go.clear()
            self.collectives.close()
        if not self._is_told:
            # No other call will raise it.
            self.check()

    def _synchronize(self) -> None:
        """Waits until all calls are complete or have failed. Some are in streams of the program."""
        last = self._made.last_call()
        if last is not None and self.stream is not None:
            last.hold(self.handle)
        self.collectives.synchronize(self.handle)

    # Calls that take too long on GPUs, where no thread of the program waits on the host.

    def _follow(self, seconds: float) -> bool:
        """Lets the thread follow the last calls. Returns False if they are complete."""
        # The point is made after this, so it is behind the calls of other threads that are not named any more.
        names, self._last = self._last, None
        point = self._made.last_call()
        if names is None or point is None:
            return False
        self._followed.append((point, time.monotonic() + seconds, names, seconds))
        return True

    def _watch(self) -> None:
        with self._changed:
            if not self._is_watched:
                self._is_watched = _threads.start("mscclpp-torch-watch", self._watch_calls, self._end)

    def _end(self) -> None:
        """Ends the thread at the end of the program."""
        with self._changed:
            self._is_ending = True
            self._changed.notify()

    def _watch_calls(self) -> None:
        be_relaxed_about_captures()
        n_idle = 0
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._is_ending or self._is_closed, _WATCH_EVERY):
                    return
                n_idle = 0 if self._followed or self._last is not None else n_idle + 1
                if n_idle > _IDLE_FOR:
                    # The next call starts another thread. So a group that is not destroyed can be freed. A call sets
                    # `_last` and then looks whether there is a thread.
                    self._is_watched = False
                    if self._last is None:
                        return
                    self._is_watched = True
                late = self._late()
            if late is not None:
                self.give_up(*late)
                return

    def _late(self) -> tuple[list[str], float] | None:
        """Looks at the calls. Returns the names and the time-out of some that have taken too long."""
        # Calls are carried out in one order, even in several streams: when one is not complete, those behind it are not.
        has_completed = self._last is not None and not self._follow(self.timeout)
        while self._followed and self._followed[0][0].is_complete():
            self._followed.popleft()
            has_completed = True
        if has_completed:
            self.look()
        now = time.monotonic()
        return next(((names, seconds) for _, due, names, seconds in list(self._followed) if now > due), None)


def _copy(calls: Sequence[Call]) -> bool:
    for call in calls:
        if call.prepare is not None:
            return True
    return False


def _requests(calls: Sequence[Call]) -> list[Request | _Requests]:
    """Returns the requests of calls on a GPU, when the copies for them are in the current stream."""
    requests: list[Request | _Requests] = []
    are_of_a_root = False
    for call in calls:
        requests += call.prepared()
        are_of_a_root = are_of_a_root or call.name in _OF_A_ROOT
    if are_of_a_root:
        requests.append(_BARRIER)
    return requests


#: With it, a call is complete only when all ranks have made it, and a refusal fails it on all of them.
_BARRIER: Request = ("barrier", 0, 0, 0, "uint8", "sum", 0)
#: The calls in which a rank may need nothing of the others, and which rarely matter for speed.
_OF_A_ROOT = ("gather", "scatter")


def _are_of_all(calls: Sequence[Call]) -> bool:
    """Whether all ranks of the group make the calls, which are not messages alone."""
    return any(call.name not in ("send", "recv") for call in calls)
