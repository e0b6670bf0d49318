"""Older names of the API. Each warns when it is first used."""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

from . import _mscclpp
from ._mscclpp import Communicator, EndpointConfig

_Method = TypeVar("_Method", bound=Callable[..., Any])

_warned: set[str] = set()
_lock = threading.Lock()

#: Older names of the package, and the names that replace them.
_NAMES = {
    "ProxyChannel": "PortChannel",
    "SimpleProxyChannel": "PortChannel",
    "SmChannel": "MemoryChannel",
    "SmDevice2DeviceSemaphore": "MemoryDevice2DeviceSemaphore",
}


def warn(old: str, new: str) -> None:
    """Warn once that `new` replaces `old`."""
    with _lock:
        if old in _warned:
            return
        _warned.add(old)
    warnings.warn(f"{old} is an older name; use {new}", DeprecationWarning, stacklevel=3)


def name(old: str) -> Any:
    """The class that has an older name at package level."""
    new = _NAMES.get(old)
    if new is None:
        raise AttributeError(f"module 'mscclpp' has no attribute {old!r}")
    warn(f"mscclpp.{old}", f"mscclpp.{new}")
    return getattr(_mscclpp, new)


def method(old: str, new: _Method) -> _Method:
    """The method `new` under its older name."""

    @functools.wraps(new)
    def call(*args: Any, **kwargs: Any) -> Any:
        warn(old, new.__qualname__)
        return new(*args, **kwargs)

    call.__qualname__, call.__name__ = old, old.rpartition(".")[2]
    return cast(_Method, call)


def connect_on_setup(self: Communicator, remote_rank: int, tag: int, local_config: Any) -> Any:
    """Older form of `connect`."""
    warn("Communicator.connect_on_setup", "Communicator.connect")
    return self.connect(local_config, remote_rank, tag)


def setup(self: Communicator) -> None:
    """Do nothing: `get()` of the futures waits now."""
    warn("Communicator.setup", "get() of the futures")


for _function in (
    connect_on_setup,
    method("Communicator.send_memory_on_setup", Communicator.send_memory),
    method("Communicator.recv_memory_on_setup", Communicator.recv_memory),
    setup,
):
    setattr(Communicator, _function.__name__, _function)


def _of_ib(field: str) -> property:
    def get(self: EndpointConfig) -> Any:
        return getattr(self.ib, field)

    def set(self: EndpointConfig, value: Any) -> None:
        setattr(self.ib, field, value)

    return property(get, set, doc=f"`ib.{field}` under an older name.")


for _field in (
    *("device_index", "port", "gid_index", "mode"),
    *("max_cq_size", "max_cq_poll_num", "max_send_wr", "max_recv_wr", "max_wr_per_send"),
):
    setattr(EndpointConfig, f"ib_{_field}", _of_ib(_field))
