"""Puts `deep_ep` of this package into place: its folder comes first in the path of modules, here and in children."""

from __future__ import annotations

import importlib
import os
import sys

from ._errors import misuse
from ._program import start

#: The folder that has the package `deep_ep`, and nothing else.
_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_deep_ep_path")


def install() -> None:
    """Puts it into place in this process and its later children, and imports it."""
    other = sys.modules.get("deep_ep")
    if other is not None and not str(other.__file__).startswith(_FOLDER + os.sep):
        text = f"another deep_ep is already imported, from {other.__file__}: call install_deep_ep() before that"
        raise misuse(text)
    if _FOLDER not in sys.path:
        sys.path.insert(0, _FOLDER)
    _let_children_find_it()
    importlib.import_module("deep_ep")


def run() -> None:
    """Starts the program of the command line, `python -m mscclpp.ep PROGRAM ARGUMENTS`, with `deep_ep` in place."""
    start("mscclpp.ep", _prepare)


def _prepare() -> None:
    if sys.flags.ignore_environment:
        sys.exit("python -m mscclpp.ep works by the variable PYTHONPATH: start Python without -E and -I")
    _let_children_find_it()


def _let_children_find_it() -> None:
    paths = os.environ.get("PYTHONPATH", "")
    if _FOLDER in paths.split(os.pathsep):
        return
    os.environ["PYTHONPATH"] = _FOLDER + (os.pathsep + paths if paths else "")
    print("mscclpp: `import deep_ep` imports that of mscclpp, in this process and in its children", file=sys.stderr)
