"""Puts this package's `libnccl.so.2` in NCCL's place, in this process and in its children, when it is imported.

Import it before PyTorch, JAX, CuPy or nccl4py: `import mscclpp.nccl`. Or leave the program as it is, and start it by
`python -m mscclpp.nccl train.py ARGUMENTS`, or `python -m mscclpp.nccl -m MODULE ARGUMENTS`.
"""

import ctypes
import os
import re
import sys

from ._errors import misuse
from ._program import start

__all__ = ["path"]

#: The name by which programs ask the system for NCCL.
_SONAME = "libnccl.so.2"
#: The packages that load NCCL.
_USERS = ("cupy", "jax", "nccl", "tensorflow", "torch")


def path() -> str:
    """The path of the package's `libnccl.so.2`, for variables such as `VLLM_NCCL_SO_PATH`."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib", _SONAME)


def _loaded() -> str | None:
    """The file that this process has loaded under NCCL's name. None if there is none."""
    try:
        library = ctypes.CDLL(_SONAME, mode=os.RTLD_NOLOAD)
    except OSError:
        return None
    address = ctypes.cast(library.ncclGetVersion, ctypes.c_void_p).value or 0
    with open("/proc/self/maps") as lines:
        for line in lines:
            start, end = (int(part, 16) for part in line.split(maxsplit=1)[0].split("-"))
            if start <= address < end:
                return line.split(maxsplit=5)[5].rstrip("\n")
    return None


def _take_its_place() -> None:
    """Loads the package's file for all libraries that come later, and lets children load it first."""
    ours = path()
    if not os.path.exists(ours):
        raise ImportError(
            f"there is no {ours}: install the package by pip, or by maturin develop, which build this file"
        )
    if re.search(r"[\s:]", ours):
        raise ImportError(f"{ours} cannot be in LD_PRELOAD, for its spaces or colons: install the package elsewhere")
    loaded = _loaded()
    if loaded is not None and not (os.path.exists(loaded) and os.path.samefile(loaded, ours)):
        users = [name for name in sys.modules if name in _USERS]
        by = f"{' or '.join(users)}, imported before" if users else "LD_PRELOAD, or a module imported before"
        text = f"NCCL is already loaded from {loaded} (by {by}): in a new process, import mscclpp.nccl first"
        raise misuse(text)
    ctypes.CDLL(ours, mode=ctypes.RTLD_GLOBAL)
    others = [name for name in re.split(r"[\s:]+", os.environ.get("LD_PRELOAD", "")) if name and name != ours]
    os.environ["LD_PRELOAD"] = ":".join([ours, *others])


_take_its_place()

if __name__ == "__main__":
    start("mscclpp.nccl")
