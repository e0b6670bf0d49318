"""Older names of the API. Each warns when it is first used."""

import threading
import warnings
from typing import Any

_warned: set[str] = set()
_lock = threading.Lock()

#: Of the package, and what has taken their place.
_NAMES = {
    "ProxyChannel": "PortChannel",
    "SimpleProxyChannel": "PortChannel",
    "SmChannel": "MemoryChannel",
    "SmDevice2DeviceSemaphore": "MemoryDevice2DeviceSemaphore",
}


def warn(old: str, new: str) -> None:
    """Say once that `new` has taken the place of `old`."""
    with _lock:
        if old in _warned:
            return
        _warned.add(old)
    warnings.warn(f"{old} is an older name; use {new}", DeprecationWarning, stacklevel=3)


def name(old: str) -> Any:
    """The class that has an older name at package level."""
    from . import _mscclpp

    new = _NAMES.get(old)
    if new is None:
        raise AttributeError(f"module 'mscclpp' has no attribute {old!r}")
    warn(f"mscclpp.{old}", f"mscclpp.{new}")
    return getattr(_mscclpp, new)
