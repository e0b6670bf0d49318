"""Tests run on GPUs where there are some, with CuPy; else, and with `MSCCLPP_PLATFORM=sim`, on simulated devices.

Each run has a cache of compiled kernels of its own.
"""

import importlib.util
import os
import tempfile

import mscclpp

_cache = tempfile.TemporaryDirectory(prefix="mscclpp-tests-")
os.environ["MSCCLPP_CACHE_DIR"] = _cache.name
# Lines of several processes must not mix.
os.environ.pop("PYTHONUNBUFFERED", None)
# Open MPI refuses to run as root without it. Only containers run tests as root.
os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")


def _platform():
    chosen = os.environ.get("MSCCLPP_PLATFORM")
    if chosen:
        return chosen
    try:
        mscclpp.device_count()
    except mscclpp.Error:
        return "sim"
    return "cuda" if importlib.util.find_spec("cupy") else "sim"


os.environ["MSCCLPP_PLATFORM"] = _platform()


def pytest_report_header():
    return f"mscclpp: {mscclpp.device_count()} devices of {os.environ['MSCCLPP_PLATFORM']}"
