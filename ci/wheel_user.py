"""Uses the installed Python package on simulated devices. ci/wheels.sh runs it in fresh environments.

python wheel_user.py without    without a compiler: all but kernels work, and a kernel is an error that says what to do
python wheel_user.py with       with a compiler: the first program of the README
"""

import importlib.metadata
import pathlib
import re
import subprocess
import sys

import mscclpp
import numpy as np
from mscclpp import GpuBuffer, TcpBootstrap
from mscclpp.utils import KernelBuilder

HERE = pathlib.Path(__file__).resolve().parent


def files_are_there() -> None:
    assert pathlib.Path(mscclpp.__file__).is_relative_to(sys.prefix), mscclpp.__file__
    assert importlib.metadata.version("mscclpp") == mscclpp.__version__
    assert (pathlib.Path(mscclpp.get_include()) / "mscclpp" / "memory_channel_device.hpp").is_file()
    names = {path.name for path in importlib.metadata.files("mscclpp") or []}
    assert {"LICENSE", "THIRD-PARTY-LICENSES", "py.typed"} <= names, names


def in_place_of_nccl() -> None:
    """Checks that the loader finds NCCL, which is not installed, in a program that the package's module starts."""
    program = "import ctypes; print(ctypes.CDLL('libnccl.so.2').ncclGetVersion(ctypes.byref(ctypes.c_int())))"
    command = [sys.executable, "-m", "mscclpp.nccl", "-c", program]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=600)
    assert done.stdout == "0\n", done


def without_compiler() -> None:
    bootstrap = TcpBootstrap.create(0, 1)
    bootstrap.initialize(TcpBootstrap.create_unique_id())
    bootstrap.barrier()
    buffer = GpuBuffer(1000, dtype=np.int32)
    buffer.set(np.arange(1000, dtype=np.int32))
    assert buffer.get().tolist() == list(range(1000))
    (HERE / "nothing.cu").write_text('extern "C" __global__ void nothing() {}\n')
    try:
        KernelBuilder("nothing.cu", "nothing", str(HERE)).get_compiled_kernel()
    except mscclpp.BaseError as error:
        assert "C++ compiler" in str(error) and "MSCCLPP_CXX" in str(error), error
        print(f"without a compiler: {str(error)[:90]} ...")
    else:
        sys.exit("a kernel was compiled where there should be no compiler")


def readme() -> str:
    """Returns the package's README, which is in its metadata."""
    description = importlib.metadata.metadata("mscclpp").get_payload()
    assert isinstance(description, str)
    return description


def first_program() -> None:
    """Checks that the program of the README, exactly as it is printed there, prints what the README says."""
    blocks = dict(re.findall(r"^```(cpp|python|text)\n(.*?)^```$", readme(), re.MULTILINE | re.DOTALL))
    for language, name in (("cpp", "ping_pong.cu"), ("python", "ping_pong.py")):
        (HERE / name).write_text(blocks[language])
    command = [sys.executable, HERE / "ping_pong.py"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=600)
    assert done.returncode == 0 and sorted(done.stdout.splitlines()) == sorted(blocks["text"].splitlines()), done


files_are_there()
in_place_of_nccl()
without_compiler() if sys.argv[1] == "without" else first_program()
