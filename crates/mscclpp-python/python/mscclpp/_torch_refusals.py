"""Calls that one rank refuses because its arguments are wrong, and how the other ranks learn of it.

If a rank did not make a call, the others would wait until their time is up. So it takes part, with memory of its own
in place of the wrong arguments, and the call fails on all ranks, with the error of that one. The communicator can
still be used.

1. Calls have numbers, which all ranks count alike, since they make the same calls in the same order.
2. Each rank writes into the group's store what it has called, or that it refuses.
3. A rank that refuses waits until all ranks have written. If some have called, it makes their calls in place of its
own.
4. With each call goes an `all_gather` of the reasons why ranks refuse it. So when the call is complete, all ranks
know, also a rank that needs no data of the others. Then the store may go with its rank.

That takes as long as a small call, so only simulated devices do it; what the ranks wrote stays in the store until the
group is gone. On GPUs only the rank that refuses raises an error, as with NCCL.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import torch

from ._collectives import Request

#: The size of a reason, in bytes.
_WORDS = 512
#: How often a rank checks whether the others have written, in seconds.
_LOOK_EVERY = 0.001


class Refusals:
    """The exchange of refusals between the ranks of a communicator."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._number = 0

    def next(self) -> int:
        """The number of the next call."""
        self._number += 1
        return self._number

    def called(self, number: int, requests: list[Request]) -> None:
        """Writes which requests this rank has called."""
        self._say(number, {"called": [(kind, *rest) for kind, _, _, *rest in requests]})

    def refused(self, number: int, check: Callable[[], Any]) -> tuple[list[Request], torch.Tensor]:
        """Writes that this rank refuses a call. Returns the requests that it makes instead, which match the others',
        and their memory.
        """
        self._say(number, {})
        said = self._heard(number, check)
        return self._stand_in({rank: it["called"] for rank, it in enumerate(said) if it})

    def exchange(self, why: str = "") -> tuple[Request, torch.Tensor]:
        """Returns the request that goes with a call, and its memory: a reason of each rank, and this rank's at the
        end.
        """
        words = torch.zeros(self._size + 1, _WORDS, dtype=torch.uint8)
        if why:
            text = bytearray(why.encode()[: _WORDS - 1])
            words[-1, : len(text)] = torch.frombuffer(text, dtype=torch.uint8)
        return ("all_gather", words[-1].data_ptr(), words.data_ptr(), _WORDS, "uint8", "sum", 0), words

    def outcome(self, words: torch.Tensor) -> Exception | None:
        """Returns the error of a complete call, if a rank has refused it."""
        for rank, text in enumerate(bytes(row.tolist()).rstrip(b"\0").decode(errors="replace") for row in words[:-1]):
            if text:
                return ValueError(f"rank {rank} refuses the call: {text}")
        return None

    def _say(self, number: int, what: dict[str, Any]) -> None:
        self._store.set(f"{number}/{self._rank}", json.dumps(what))

    def _heard(self, number: int, check: Callable[[], Any]) -> list[dict[str, Any]]:
        """Returns what all ranks have written. Until then it calls `check` again and again, which may raise to end
        the wait.
        """
        keys = [f"{number}/{rank}" for rank in range(self._size)]
        while not self._store.check(keys):
            check()
            time.sleep(_LOOK_EVERY)
        return [json.loads(self._store.get(key)) for key in keys]

    def _stand_in(self, called: dict[int, Any]) -> tuple[list[Request], torch.Tensor]:
        """Returns this rank's requests to match the calls of the others."""
        parts: list[tuple[Any, ...]] = []
        for at, (kind, count, dtype, op, root) in enumerate(next(iter(called.values()), [])):
            if kind == "all_to_all_v":
                # Receives from each rank what that one sends to this rank. Ranks that refuse send each other nothing.
                counts = [called[rank][at][1] if rank in called else None for rank in range(self._size)]
                count = tuple([it[way][self._rank] if it else 0 for it in counts] for way in (1, 0))
            if kind not in ("send", "recv"):
                parts.append((kind, count, dtype, tuple(op) if isinstance(op, list) else op, root))
        for rank, calls in called.items():
            for kind, count, dtype, op, peer in calls:
                if kind in ("send", "recv") and peer == self._rank:
                    parts.append(("recv" if kind == "send" else "send", count, dtype, op, rank))
        # Memory for the input and output of each request, for numbers of at most 16 bytes.
        sizes = [16 * self._size * _most(count) for _, count, *_ in parts for _ in range(2)]
        room = torch.zeros(sum(sizes), dtype=torch.uint8)
        places = iter([room.data_ptr() + sum(sizes[:at]) for at in range(len(sizes))])
        return [(kind, next(places), next(places), *rest) for kind, *rest in parts], room


def _most(count: Any) -> int:
    return count if isinstance(count, int) else max((_most(each) for each in count), default=0)
