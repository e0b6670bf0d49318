"""Which NUMA node a GPU hangs on, and binding this process to one."""

import os
import sys

from . import _mscclpp


def get_device_numa_node(device_id: int) -> int:
    """The NUMA node of a GPU, or -1 where the system knows none, as in many virtual machines."""
    node = _mscclpp._numa_node(device_id)
    return -1 if node is None else node


def numa_bind(node: int) -> None:
    """Let this thread, and those it starts, run on the CPUs of a node only. A node of -1 is unknown, and changes nothing."""
    if node == -1:
        return
    path = f"/sys/devices/system/node/node{node}/cpulist"
    try:
        with open(path, encoding="ascii") as file:
            cpus = _numbers(file.read())
    except FileNotFoundError:
        raise ValueError(f"argument 'node': there is no NUMA node {node} ({path} does not exist)") from None
    allowed = cpus & os.sched_getaffinity(0)
    if not allowed:
        raise ValueError(f"argument 'node': this process may run on no CPU of NUMA node {node}")
    os.sched_setaffinity(0, allowed)


def _numbers(text: str) -> set[int]:
    """Of a list such as `0-3,8`."""
    numbers: set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            numbers.update(range(int(first), int(last or first) + 1))
    return numbers


# Under the name that the extension module has it by.
_mscclpp.cpp_numa = sys.modules[__name__]

__all__ = ["get_device_numa_node", "numa_bind"]
