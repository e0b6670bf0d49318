"""`deep_ep` of mscclpp, which is in the path of modules after `mscclpp.ep.install_deep_ep()`."""

from mscclpp._deep_ep import Buffer, Config, EventHandle, EventOverlap, topk_idx_t

from . import utils

__all__ = ["Buffer", "Config", "EventHandle", "EventOverlap", "topk_idx_t", "utils"]
