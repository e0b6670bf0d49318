"""Log lines of the library as records of Python's `logging`."""

from __future__ import annotations

import threading
import traceback

from . import _mscclpp, _threads

_starting = threading.Lock()
_is_started = False


def log_to_python(level: int | str = "INFO") -> None:
    """Send the log of this library to Python's `logging`, and no longer to standard error or `MSCCLPP_LOG_FILE`.

    Lines of `level` and above go to the loggers `mscclpp.gpu`, `mscclpp.bootstrap`, `mscclpp.conn`, `mscclpp.proxy`,
    `mscclpp.wait` and `mscclpp.env`. A second call can set another level.

    One thread calls the loggers, and no other thread waits for it: if handlers are so slow that 4096 lines wait,
    further lines are lost, and a warning of `mscclpp.log` says how many. At the end of the program, lines that wait
    are still written, for up to 10 seconds. A forked child has no such thread: its lines are dropped, and this call
    raises.
    """
    import logging

    global _is_started
    number = logging.getLevelNamesMapping().get(level.upper()) if isinstance(level, str) else level
    if number is None:
        raise ValueError(
            f"argument 'level': {level!r} is no level of logging; there are DEBUG, INFO, WARNING and ERROR"
        )
    _mscclpp._log_to_queue(number)
    with _starting:
        if not _is_started:
            _is_started = _threads.start("mscclpp-log", _deliver, _end)


def _deliver() -> None:
    import logging

    while (line := _mscclpp._next_log_line()) is not None:
        name, level, text = line
        try:
            logging.getLogger(name).log(level, text)
        except Exception:
            # A handler of the program failed. It may work for the next lines.
            traceback.print_exc()


def _end() -> None:
    try:
        # Lines that proxies log when they end are delivered, too.
        _mscclpp._end_proxies()
    finally:
        _mscclpp._end_log_queue()
