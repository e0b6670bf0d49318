"""The options of calls, in the forms that versions of torch and programs use."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from torch.distributed import distributed_c10d as c10d


def op(opts: Any) -> Any:
    """Returns the reduction of options, or the reduction that is given in place of options."""
    return c10d.ReduceOp.SUM if opts is None else getattr(opts, "reduceOp", opts)


_NO_TIME = timedelta(0)
#: The fields of options, in the order of the arguments that may replace them, and the names of these arguments.
_FIELDS = {"rootRank": "root", "reduceOp": "op", "timeout": "timeout"}


def options(kind: Any, opts: Any, more: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Returns the options of a call, which may also be given as separate arguments: root, operation and time-out."""
    if type(opts) is kind or isinstance(opts, kind) or (opts is None and not more and not named):
        return opts
    made = kind()
    fields = {name: field for field, name in _FIELDS.items() if hasattr(made, field)}
    given = dict(zip(fields, (opts, *more))) | named
    if len(more) >= len(fields) or not given.keys() <= fields.keys():
        raise TypeError(f"expected {kind.__name__} or {', '.join(fields)}, got {[opts, *more]} and {named}")
    for name, value in given.items():
        if value is not None:
            setattr(made, fields[name], value)
    return made


def root(opts: Any) -> int:
    return int(getattr(opts, "rootRank", opts) or 0)


def seconds(opts: Any) -> float | None:
    timeout: timedelta = getattr(opts, "timeout", _NO_TIME)
    return timeout.total_seconds() if timeout > _NO_TIME else None


def coalesced(tensors: list[torch.Tensor], opts: Any) -> Any:
    """Returns the options of an all-reduce for one or several tensors, made from options for either."""
    if opts is None or (len(tensors) == 1) != isinstance(opts, c10d.AllreduceCoalescedOptions):
        return opts
    made = c10d.AllreduceOptions() if len(tensors) == 1 else c10d.AllreduceCoalescedOptions()
    made.reduceOp = op(opts)
    if seconds(opts):
        made.timeout = opts.timeout
    return made
