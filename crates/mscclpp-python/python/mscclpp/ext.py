"""Collections of algorithms, by the names that the C++ original has for them."""

import sys as _sys

from ._algorithms import AlgorithmCollectionBuilder

#: The module in which the original has the class.
algorithm_collection_builder = _sys.modules[__name__]
_sys.modules[f"{__name__}.algorithm_collection_builder"] = algorithm_collection_builder

__all__ = ["AlgorithmCollectionBuilder"]
