"""The types that the package declares are those that it has."""

import subprocess
import sys

import pytest


def test_the_stub_of_the_extension_module_is_right():
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy.stubtest", "mscclpp._mscclpp"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout
