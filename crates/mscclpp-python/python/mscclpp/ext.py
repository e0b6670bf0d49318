"""Collections of algorithms, which are not there yet."""

from ._later import AlgorithmCollectionBuilder

__all__ = ["AlgorithmCollectionBuilder"]
