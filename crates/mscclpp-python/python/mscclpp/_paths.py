"""Where the package has its files."""

import os

_HERE = os.path.dirname(os.path.abspath(__file__))


def get_include() -> str:
    """The folder for a compiler's `-I`, in which `mscclpp/*.hpp` are."""
    return os.path.join(_HERE, "include")


def get_lib() -> str:
    """The folder of the extension module, which is the whole library."""
    return _HERE
