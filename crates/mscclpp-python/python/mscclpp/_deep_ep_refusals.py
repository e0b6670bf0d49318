"""Errors of this `deep_ep`: they name its arguments, and what to use in place of what it does not have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NoReturn

_NVFP4 = "tokens do not travel as nvfp4: send bf16 and quantise what comes, or use use_fp8=True"
_OVERLAP = (
    "signals between a combine and the multiplication before it are of a fork of DeepEP: turn the overlap within one "
    "batch off, and use return_recv_hook=True with two micro-batches"
)
#: What to do without arguments of forks.
_OF_FORKS = {
    "use_nvfp4": _NVFP4,
    "x_global_scale": _NVFP4,
    "overlap": _OVERLAP,
    "src_signals": _OVERLAP,
    "src_signal_expect_value": _OVERLAP,
    "packed_recv_count": _OVERLAP,
    "comp_signal": _OVERLAP,
    "block_m": _OVERLAP,
    "threshold": _OVERLAP,
    "num_sms": "a Buffer has one limit for all calls: call Buffer.set_num_sms before the first one",
}


#: The arguments of `Experts`, as they are called here.
_NAMES = {"rows": "x", "topk_ids": "topk_idx", "weights": "topk_weights"}


@contextmanager
def named(**more: str) -> Iterator[None]:
    """Makes errors of `Experts` name the arguments of this `deep_ep`."""
    try:
        yield
    except (TypeError, ValueError) as error:
        names = _NAMES | more
        text = re.sub("(?<=argument ')[^']+", lambda name: names.get(name[0], name[0]), str(error))
        if text == str(error):
            raise
        raise type(error)(text) from None


def refuse_unknown(call: str, unknown: Iterable[str]) -> None:
    """Raises an error if a call was given arguments that it does not have."""
    names = list(unknown)
    if names:
        hints = dict.fromkeys(_OF_FORKS.get(name, "leave it out") for name in names)
        raise TypeError(f"{call}() has no argument {', '.join(map(repr, names))} in mscclpp: {'; '.join(hints)}")


def refuse_internode(call: str) -> NoReturn:
    raise NotImplementedError(
        f"{call}() is for ranks on several nodes, and mscclpp.ep works within one: make the Buffer of the ranks of a "
        "node, and use dispatch() and combine()"
    )
