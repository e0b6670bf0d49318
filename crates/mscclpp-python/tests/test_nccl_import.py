"""`import mscclpp.nccl` puts the package's libnccl.so.2 in NCCL's place, in this process and in its children."""

import importlib.util
import os
import pathlib
import shutil
import subprocess

import mscclpp
import pytest

import ranks

OURS = str(pathlib.Path(mscclpp.__file__).absolute().parent / "lib" / "libnccl.so.2")
pytestmark = pytest.mark.skipif(not os.path.exists(OURS), reason=f"there is no {OURS}: the package was not installed")

# What the loader takes for NCCL: the file that has the function.
WHICH = """
import ctypes

def which():
    address = ctypes.cast(ctypes.CDLL("libnccl.so.2").ncclGetVersion, ctypes.c_void_p).value
    for line in open("/proc/self/maps"):
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        if start <= address < end:
            return line.split()[5]
"""


def run(*arguments, **environment):
    return ranks.python(*arguments, cwd=environment.get("HOME"), **{"LD_PRELOAD": "", **environment})


def python(program, **environment):
    return run("-c", program, **environment)


def lines_of(run):
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout.splitlines()


@pytest.fixture
def other(tmp_path):
    """Another library with NCCL's name, in a folder of its own."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    source, library = tmp_path / "other.c", tmp_path / "nvidia" / "libnccl.so.2"
    library.parent.mkdir()
    source.write_text("int ncclGetVersion(int *version) { *version = 1; return 0; }\n")
    command = ["cc", "-shared", "-fPIC", "-Wl,-soname,libnccl.so.2", "-o", str(library), str(source)]
    subprocess.run(command, check=True, timeout=100)
    return library


def test_the_loader_takes_the_file_of_the_package():
    program = "import mscclpp.nccl\nprint(mscclpp.nccl.path())\nprint(which())\nctypes.CDLL(None).ncclGetVersion"
    assert lines_of(python(WHICH + program)) == [OURS, OURS]


def test_a_library_that_was_linked_with_nccl_gets_the_file_of_the_package(other, tmp_path):
    source, user = tmp_path / "user.c", tmp_path / "libuser.so"
    source.write_text(
        "int ncclGetVersion(int *);\nint version(void) { int version = 0; ncclGetVersion(&version); return version; }\n"
    )
    # It has a path of its own to the other library, as PyTorch has.
    command = ["cc", "-shared", "-fPIC", "-o", user, source, other, f"-Wl,-rpath,{other.parent}"]
    subprocess.run(command, check=True, timeout=100)
    program = f"import ctypes\nprint(ctypes.CDLL({str(user)!r}).version())"
    assert lines_of(python(program)) == ["1"]
    (version,) = lines_of(python("import mscclpp.nccl\n" + program))
    assert int(version) > 20000


def test_children_get_it_too_and_loading_it_does_nothing(tmp_path):
    program = f"""
import os, subprocess, sys
import mscclpp.nccl
subprocess.run([sys.executable, "-c", {WHICH + "print(which())"!r}], check=True, timeout=100)
script = "grep -c libnccl.so.2 < /proc/$$/maps > maps; ls /proc/$$/task | wc -l"
subprocess.run(["bash", "-c", script], check=True, timeout=100)
open("empty.c", "w").write("int main(void) {{ return 0; }}")
if {shutil.which("cc") is not None}:
    subprocess.run(["cc", "-o", "empty", "empty.c"], check=True, timeout=100)
    subprocess.run(["./empty"], check=True, timeout=100)
"""
    done = python(program, HOME=str(tmp_path))
    assert lines_of(done) == [OURS, "1"] and done.stderr == ""
    assert int((tmp_path / "maps").read_text()) > 0


def test_what_was_preloaded_stays_behind_it(other):
    program = "import os, mscclpp.nccl\nprint(os.environ['LD_PRELOAD'])"
    assert lines_of(python(program)) == [OURS]
    assert lines_of(python(program, LD_PRELOAD=f"libc.so.6 {OURS}")) == [f"{OURS}:libc.so.6"]


def test_too_late_names_the_file_and_the_module(other, tmp_path):
    (tmp_path / "torch.py").write_text(f"import ctypes\nctypes.CDLL({str(other)!r})\n")
    program = """
import torch, mscclpp
try: import mscclpp.nccl
except mscclpp.Error as error: print(error)
import os
print(os.environ["LD_PRELOAD"])
print("mscclpp/lib" in open("/proc/self/maps").read())
"""
    said, preload, mapped = lines_of(python(program, PYTHONPATH=str(tmp_path)))
    assert f"{other} " in said and "torch" in said and "import mscclpp.nccl first" in said
    assert (preload, mapped) == ("", "False")
    (said,) = lines_of(
        python(f"import ctypes\nctypes.CDLL({str(other)!r})\n" + program.replace("import torch, ", "import "))
    )[:1]
    assert f"{other} " in said and "torch" not in said


@pytest.mark.parametrize("words", ["-X dev -b -m mscclpp.nccl", "-Xdev -bm mscclpp.nccl", "-X dev -bmmscclpp.nccl"])
def test_a_program_is_started_with_it(words, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        WHICH + "from sys import argv, flags\nprint(which(), argv[1:], flags.dev_mode, flags.bytes_warning, __name__)\n"
    )
    expected = [f"{OURS} ['-m', 'an argument'] True 1 __main__"]
    start = words.split()
    assert lines_of(run(*start, str(program), "-m", "an argument")) == expected
    assert lines_of(run(*start, "-m", "program", "-m", "an argument", PYTHONPATH=str(tmp_path))) == expected
    assert "usage" in run(*start).stderr


@pytest.mark.parametrize(
    "module, program",
    [
        ("torch", "import torch\nprint(torch.cuda.nccl.unique_id()[:4].hex())"),
        ("cupy", "from cupy.cuda import nccl\nprint(bytes(b % 256 for b in nccl.get_unique_id()[:4]).hex())"),
    ],
)
def test_modules_call_it(module, program):
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"there is no {module}")
    alone = python(program)
    if alone.returncode != 0:
        pytest.skip(f"this {module} has no NCCL")
    unique_id = (
        "import ctypes\nid = (ctypes.c_char * 128)()\nctypes.CDLL({!r}).ncclGetUniqueId(id)\nprint(id.raw[:4].hex())"
    )
    ours = lines_of(python(unique_id.format(OURS)))
    assert lines_of(alone)[-1:] != ours
    assert lines_of(python("import mscclpp.nccl\n" + program)) == ours
    child = f"import subprocess, sys, mscclpp.nccl\nsubprocess.run([sys.executable, '-c', {program!r}], check=True)"
    assert lines_of(python(child)) == ours
    first = program.splitlines()[0]
    said = python(f"{first}\nimport mscclpp.nccl").stderr.splitlines()[-1]
    assert module in said and "import mscclpp.nccl first" in said
