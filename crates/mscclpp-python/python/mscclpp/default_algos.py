"""The module of the C++ project's programs in `mscclpp.language`. It can be imported; none of them exist here."""

from typing import Any


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"mscclpp.default_algos.{name} is not there in this implementation of mscclpp; the algorithms that it has are those "
        "of mscclpp.ext.AlgorithmCollectionBuilder().build_default_algorithms()"
    )
