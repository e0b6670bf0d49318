"""Calls that one rank refuses because its arguments are wrong, and how the other ranks learn of it.

The other ranks would wait for a rank that does not make their call until their time is up. Ranks do not ask each other
before a call, because that takes longer than a small call. So the rank that refuses does what is needed:

1. Calls have numbers, which all ranks of a communicator count alike, since they make the same calls in the same order.
2. A rank that refuses a call counts itself in the group's store among those that refuse this number. If all ranks do so
soon, none of them waits, and the communicator goes on. A key of the store decides that once for all ranks, because a rank
may refuse the call after the patience of another one has ended.
3. Otherwise the rank aborts the communicator, with its reason. That ends all waits at once, and the errors of all ranks
have the reason in their texts.
4. Each rank raises one error: the rank that refuses raises its own, and each other one raises the reason where it learns of
it, in a wait or in its next call. After that the rank has no communicator, and its next call makes one with all ranks.

The communicator cannot go on after 3, because a call on a GPU returns before the other ranks have made theirs. When a rank
learns of a refusal, it may have put any number of later calls into its streams, and its next call would meet another one
of the rank that refused. A new communicator begins to count on all ranks.

On a GPU, a rank that needs nothing of the others, such as the root of a broadcast, may complete the call that another rank
refuses, and learns of the refusal in its next call. A barrier goes with each gather and scatter, and on simulated devices,
where programs wait for their calls on the host, with every call. So there the call itself fails on all ranks.
"""

from __future__ import annotations

import contextlib
import re
import time
from typing import Any

#: How long a rank waits for the others to refuse the same call, in seconds.
_PATIENCE = 0.5
#: How often a rank checks whether the others have refused it, in seconds.
_LOOK_EVERY = 0.002


def all_refuse(store: Any, number: int, size: int) -> bool:
    """Says that this rank refuses the call of a number, and returns whether all ranks do."""
    outcome = f"{number}/outcome"
    # Without the store, which may be gone with a rank, this rank knows of no other that refuses.
    with contextlib.suppress(Exception):
        are_all = store.add(f"{number}/ranks", 1) == size
        deadline = time.monotonic() + _PATIENCE
        while not are_all and time.monotonic() < deadline and not store.check([outcome]):
            time.sleep(_LOOK_EVERY)
        return bool(store.compare_set(outcome, "", "all" if are_all else "some") == b"all")
    return False


def reason_of(rank: int, error: Exception) -> str:
    """Returns the reason with which a rank that refuses a call aborts the communicator."""
    return f"rank {rank} refuses the call: {error}"


def reason_in(error: Exception) -> str | None:
    """Returns the reason of the rank that refused a call, if that is why the communicator was aborted."""
    found = re.search(r"rank \d+ refuses the call: .*", str(error), re.DOTALL)
    return found and found[0]


def add_consequences(error: Exception) -> None:
    """Adds to the error of a call that some ranks refused what follows from it."""
    error.add_note(
        "All calls of the group that were not complete have failed on all ranks. The next one makes another communicator. "
        "Graphs that were captured with the group's calls must be captured again."
    )
