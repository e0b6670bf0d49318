"""Calls of all ranks that one of them refuses, since its arguments are wrong, and how the others hear of it.

Of a call that a rank did not make the others would wait until their time is up. So it takes part, with memory of its own in
place of what is wrong, and the call fails on all ranks, with what is wrong on that one. The communicator goes on.

1. Calls have numbers, which the ranks count alike, since they make the same calls in the same order.
2. A rank says in the group's store what it has called, or that it refuses.
3. Who refuses waits until all have said something. If some have called, it makes their calls, whatever it was told to make.
4. With each call goes an `all_gather` of why ranks refuse it. So the call is complete when all know, also on a rank that
   needs nothing of the others for it, and then the store may go with its rank.

That costs as much as a small call. So it is done on simulated devices alone; what was said stays in the store until the
group is gone. On GPUs only the rank that refuses raises, as with NCCL.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import torch

from ._collectives import Request

#: How long what a rank says of a call may be, in bytes.
_WORDS = 512
#: How often a rank looks whether others have said something, in seconds.
_LOOK_EVERY = 0.001


class Refusals:
    """What the ranks of a communicator say of their calls."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._number = 0

    def next(self) -> int:
        """The number of the next call."""
        self._number += 1
        return self._number

    def called(self, number: int, requests: list[Request]) -> None:
        """Says what this rank has called."""
        self._say(number, {"called": [(kind, *rest) for kind, _, _, *rest in requests]})

    def refused(self, number: int, check: Callable[[], Any]) -> tuple[list[Request], torch.Tensor]:
        """Says that this rank refuses a call. Returns what it calls instead, which others have called, and its memory."""
        self._say(number, {})
        said = self._heard(number, check)
        return self._stand_in({rank: it["called"] for rank, it in enumerate(said) if it})

    def exchange(self, why: str = "") -> tuple[Request, torch.Tensor]:
        """The request that goes with a call, and its memory: what each rank has said, and behind it what this one says."""
        words = torch.zeros(self._size + 1, _WORDS, dtype=torch.uint8)
        if why:
            text = bytearray(why.encode()[: _WORDS - 1])
            words[-1, : len(text)] = torch.frombuffer(text, dtype=torch.uint8)
        return ("all_gather", words[-1].data_ptr(), words.data_ptr(), _WORDS, "uint8", "sum", 0), words

    def outcome(self, words: torch.Tensor) -> Exception | None:
        """Why a complete call has failed on all ranks, if one has refused it."""
        for rank, text in enumerate(bytes(row.tolist()).rstrip(b"\0").decode(errors="replace") for row in words[:-1]):
            if text:
                return ValueError(f"rank {rank} refuses the call: {text}")
        return None

    def _say(self, number: int, what: dict[str, Any]) -> None:
        self._store.set(f"{number}/{self._rank}", json.dumps(what))

    def _heard(self, number: int, check: Callable[[], Any]) -> list[dict[str, Any]]:
        """What all ranks have said. `check` is called again and again until they have, and raises to end that."""
        keys = [f"{number}/{rank}" for rank in range(self._size)]
        while not self._store.check(keys):
            check()
            time.sleep(_LOOK_EVERY)
        return [json.loads(self._store.get(key)) for key in keys]

    def _stand_in(self, called: dict[int, Any]) -> tuple[list[Request], torch.Tensor]:
        """The part of this rank in what the others call."""
        parts: list[tuple[Any, ...]] = []
        for at, (kind, count, dtype, op, root) in enumerate(next(iter(called.values()), [])):
            if kind == "all_to_all_v":
                # From each as much as that one gives to this rank. Those that refuse give each other nothing.
                counts = [called[rank][at][1] if rank in called else None for rank in range(self._size)]
                count = tuple([it[way][self._rank] if it else 0 for it in counts] for way in (1, 0))
            if kind not in ("send", "recv"):
                parts.append((kind, count, dtype, tuple(op) if isinstance(op, list) else op, root))
        for rank, calls in called.items():
            for kind, count, dtype, op, peer in calls:
                if kind in ("send", "recv") and peer == self._rank:
                    parts.append(("recv" if kind == "send" else "send", count, dtype, op, rank))
        # Of each call room for what is given and for what is taken, of numbers of 16 bytes at most.
        sizes = [16 * self._size * _most(count) for _, count, *_ in parts for _ in range(2)]
        room = torch.zeros(sum(sizes), dtype=torch.uint8)
        places = iter([room.data_ptr() + sum(sizes[:at]) for at in range(len(sizes))])
        return [(kind, next(places), next(places), *rest) for kind, *rest in parts], room


def _most(count: Any) -> int:
    return count if isinstance(count, int) else max((_most(each) for each in count), default=0)
