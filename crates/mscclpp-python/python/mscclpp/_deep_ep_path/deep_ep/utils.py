"""The events of `deep_ep`."""

from mscclpp._deep_ep import EventHandle, EventOverlap

__all__ = ["EventHandle", "EventOverlap"]
