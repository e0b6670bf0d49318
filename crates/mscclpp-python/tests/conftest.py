"""All tests run on simulated devices, each run with a cache of compiled kernels of its own."""

import os
import tempfile

import pytest

_cache = tempfile.TemporaryDirectory(prefix="mscclpp-tests-")
os.environ["MSCCLPP_PLATFORM"] = "host"
os.environ["MSCCLPP_CACHE_DIR"] = _cache.name
# Lines of several processes stay whole.
os.environ.pop("PYTHONUNBUFFERED", None)

KERNELS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kernels")


@pytest.fixture
def compiled():
    """Compiles a kernel of `tests/kernels`."""
    from mscclpp.utils import KernelBuilder

    def compiled(file, name, **macros):
        return KernelBuilder(file, name, KERNELS, macros).get_compiled_kernel()

    return compiled
