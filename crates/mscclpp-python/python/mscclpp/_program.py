"""Starts the program of a command line like `python -m mscclpp.nccl PROGRAM ARGUMENTS`."""

import os
import sys
from collections.abc import Callable


def start(module: str, prepare: Callable[[], None] = lambda: None) -> None:
    """Starts Python again in this process, for the program that stands behind `-m` and this module, after `prepare()`."""
    arguments = sys.argv[1:]
    if not arguments:
        sys.exit(f"usage: python -m {module} PROGRAM [ARGUMENT...], or python -m {module} -m MODULE [ARGUMENT...]")
    prepare()
    # Options of Python stand before `-m` and the module, and are kept. `-m` may end a word of options, and begin one with
    # the module: `-um mscclpp.nccl`, `-mmscclpp.nccl`.
    options = sys.orig_argv[1 : -len(arguments)]
    if options[-1] == module:
        options.pop()
    options[-1] = options[-1].partition("m")[0]
    if options[-1] == "-":
        options.pop()
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *options, *arguments])
