"""The types in the stubs are those of the package, and the examples use them correctly."""

import os
import pathlib
import shutil
import subprocess

import pytest
from mscclpp import _mscclpp

import ranks

HERE = pathlib.Path(__file__).resolve().parent
SETTINGS = HERE.parent / "pyproject.toml"


def check(*command):
    pytest.importorskip("mypy")
    run = ranks.python("-m", *command, cwd=HERE.parent)
    assert run.returncode == 0, run.stdout + run.stderr


def test_the_stubs_are_those_of_what_is_there():
    allowed = str(HERE / "stubtest-allowed.txt")
    # It imports `mscclpp.nccl` after modules that import PyTorch.
    stubtest = ("-m", "mypy.stubtest", "--mypy-config-file", str(SETTINGS), "--allowlist", allowed, "mscclpp")
    check("mscclpp.nccl", *stubtest)


def test_the_stubs_are_made_from_the_extension():
    extension = pathlib.Path(_mscclpp.__file__)
    if shutil.which("cargo") is None or b".symtab" not in extension.read_bytes():
        pytest.skip("there is no cargo, or the extension is stripped")
    command = ["cargo", "test", "--quiet", "--workspace", "--test", "stubs", "--", "--ignored"]
    environment = dict(os.environ, MSCCLPP_EXTENSION=str(extension))
    run = subprocess.run(command, capture_output=True, text=True, timeout=1800, cwd=HERE.parent, env=environment)
    assert run.returncode == 0, run.stdout + run.stderr


def test_the_python_layer_and_the_examples_under_a_strict_checker():
    check("mypy", "--strict", "--config-file", str(SETTINGS), "python/mscclpp", "examples", "benchmarks")


def test_a_wrong_call_is_found(tmp_path):
    program = tmp_path / "wrong.py"
    program.write_text("import mscclpp\n\nmscclpp.EndpointConfig(3)\nmscclpp.TcpBootstrap.create(0, 1).recv('x')\n")
    assert [line.split(":")[1] for line in errors_of(program)] == ["3", "4"]


def test_the_type_of_a_gpu_buffer_is_known(tmp_path):
    program = tmp_path / "arrays.py"
    program.write_text("""
import mscclpp
buffer = mscclpp.GpuBuffer((4, 4))
part: tuple[int, ...] = buffer[1:].shape
buffer.set(buffer.get())
address: int = buffer.data.ptr
result: mscclpp.GpuBuffer = buffer + 1
buffer.nonsense()
""")
    result, nonsense = errors_of(program)
    assert "arrays.py:7: error" in result and "GpuBuffer" in result and '"nonsense"' in nonsense


def errors_of(program):
    pytest.importorskip("mypy")
    run = ranks.python("-m", "mypy", "--strict", "--config-file", str(SETTINGS), str(program), cwd=HERE.parent)
    return [line for line in run.stdout.splitlines() if ": error: " in line]
