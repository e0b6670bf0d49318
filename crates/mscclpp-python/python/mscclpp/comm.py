"""The module of `CommGroup` in older versions."""

from ._group import CommGroup
from ._older import warn as _warn

_warn("mscclpp.comm", "mscclpp.CommGroup")

__all__ = ["CommGroup"]
