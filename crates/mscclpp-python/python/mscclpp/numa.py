"""The NUMA node of a GPU, and binding a process to a NUMA node."""

import sys

from . import _mscclpp


def get_device_numa_node(device_id: int) -> int:
    """The NUMA node of a GPU, or -1 where the system knows none, as in many virtual machines."""
    node = _mscclpp._numa_node(device_id)
    return -1 if node is None else node


def numa_bind(node: int) -> None:
    """Keep this thread, and those that it starts, on the CPUs of a NUMA node. If the node is -1, nothing changes."""
    if node != -1:
        _mscclpp._bind_to_node(node)


# The name that the extension module has for this module.
_mscclpp.cpp_numa = sys.modules[__name__]

__all__ = ["get_device_numa_node", "numa_bind"]
