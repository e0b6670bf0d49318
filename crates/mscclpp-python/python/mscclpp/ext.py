"""Collections of algorithms, under the names of the C++ project."""

import sys as _sys

from ._algorithms import AlgorithmCollectionBuilder

#: The C++ project has the class in a module of this name.
algorithm_collection_builder = _sys.modules[__name__]
_sys.modules[f"{__name__}.algorithm_collection_builder"] = algorithm_collection_builder

__all__ = ["AlgorithmCollectionBuilder"]
