"""Programs of `mscclpp.language` that the C++ original comes with. They can be imported, and are not there yet."""

from typing import Any

from ._later import missing


def allreduce_2nodes(*args: Any, **kwargs: Any) -> Any:
    """An allreduce between two hosts. Not there yet; `mscclpp.Collectives.all_reduce` works between hosts."""
    raise missing("default_algos.allreduce_2nodes")


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"mscclpp.default_algos.{name} is not there in this implementation of mscclpp; the algorithms that it has are those "
        "of mscclpp.ext.AlgorithmCollectionBuilder().build_default_algorithms()"
    )


__all__ = ["allreduce_2nodes"]
