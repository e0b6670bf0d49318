"""Threads of this package that run Python code. All of them have ended before the interpreter begins to.

A thread that comes back from a call of another library while the interpreter ends is unwound by CPython before 3.14, and
PyTorch ends the process when that happens. Why none of these threads can be inside the interpreter or such a library then:

1. All are started here, with a function that tells them to end. `os._exit` and signals end a process without the
   interpreter's end; whatever else ends it calls `_end_all` by `atexit`, when the program's own threads have been joined.
2. `_end_all` and `start` hold a lock: a thread is known to the first, or never starts.
3. What such a thread calls of other libraries waits for nobody, and where it waits in this package, `end` ends the wait. So
   `_end_all` joins it soon. Its patience is for a system that stands still, and for handlers of a program's log.
4. Threads of the extension module do not attach to the interpreter. Those of a `Proxy`, which call a program's handler, are
   ended by `_end_proxies`, in the same way.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import traceback
from collections.abc import Callable

#: How long the program's end waits for all threads, in seconds.
_PATIENCE = 10.0

_lock = threading.Lock()
#: The function that tells each thread to end, or None if the thread has returned.
_ends: dict[threading.Thread, Callable[[], None] | None] = {}
_is_ending = False


def start(name: str, run: Callable[[], None], end: Callable[[], None]) -> bool:
    """Start a thread that returns soon after `end()`. Return False, and start none, while the program ends."""

    def run_and_forget() -> None:
        try:
            run()
        finally:
            _ends[thread] = None

    thread = threading.Thread(target=run_and_forget, name=name, daemon=True)
    with _lock:
        if _is_ending:
            return False
        for other in [other for other in _ends if not other.is_alive()]:
            del _ends[other]
        if not _ends:
            # Handlers run in reverse order, so this one runs before those of other libraries, such as that of
            # `logging`.
            atexit.unregister(_end_all)
            atexit.register(_end_all)
        thread.start()
        _ends.setdefault(thread, end)
    return True


def _end_all() -> None:
    global _is_ending
    with _lock:
        _is_ending = True
    deadline = time.monotonic() + _PATIENCE
    # The latest thread ends first, so that an earlier one still writes its log lines.
    for thread, end in reversed(_ends.items()):
        try:
            if end is not None:
                end()
        except Exception:
            # The other threads must still end.
            traceback.print_exc()
        thread.join(max(0.0, deadline - time.monotonic()))


def _forget() -> None:
    """Forget the threads in a forked child, which has none of them. The lock may be held for ever there, so it is
    replaced.
    """
    global _lock
    _lock = threading.Lock()
    _ends.clear()


os.register_at_fork(after_in_child=_forget)
