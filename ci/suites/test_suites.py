"""Tests of the program that runs others' suites, with small suites that stand in for them."""

import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import cases
import nccl_tests
import pytest
import python_suites
from cases import FAILED, NOT_RUN, PASSED, SKIPPED, Case, Runner, reported
from places import NCCL, OURS, Places
from table import table

HERE = Path(__file__).resolve().parent
HEADER = "#   size  count  type  redop  root  time  algbw  busbw  #wrong  time  algbw  busbw  #wrong\n"
ROW = "{:>12} {:>13} {:>9} {:>7} {:>7} 12.34 0.00 0.00 {:>7} 12.00 0.00 0.00 {:>7}\n"
FOOTER = "# Out of bounds values : {} {}\n# Avg bus bandwidth    : 0.1 \n"


def rows(*wrong, operation="sum", root="-1", in_place=0):
    return "".join(ROW.format(8, 2, kind, operation, root, count, in_place) for kind, count in wrong)


@pytest.fixture
def places(tmp_path):
    """Places whose two libraries are harmless: they are loaded into the processes, and nothing calls them."""
    ours = tmp_path / "libours.so"
    maps = Path("/proc/self/maps").read_text().split()
    ours.write_bytes(Path(next(path for path in maps if "/libc.so" in path or "/libc-" in path)).read_bytes())
    nccl = tmp_path / "nccl/lib/libnccl.so.2"
    nccl.parent.mkdir(parents=True)
    nccl.touch()
    (tmp_path / "nccl/include").mkdir()
    (tmp_path / "nccl/include/nccl.h").touch()
    folder, build = tmp_path / "given", tmp_path / "build"
    folder.mkdir()
    build.mkdir()
    return Places(folder, build, ours, nccl, 4)


def results(tmp_path, given, seconds=0.0):
    runner = Runner(tmp_path, seconds, {"skipped": {}, "broken": {}})
    for case in given:
        for result in runner.results_of(case):
            runner.results.append(result)
    runner.write()
    return {result.test: result for result in runner.results}


def python(name, text, limit=60.0, **more):
    return Case("a suite", OURS, name, [sys.executable, "-c", text], limit, reported(name), **more)


def test_a_process_passes_fails_and_ends_badly(tmp_path):
    say = f"import sys; sys.path.insert(0, {str(HERE)!r}); from cases import report; "
    found = results(
        tmp_path,
        [
            python("good", say + "report('good', 'passed')"),
            python("two", say + "report('first', 'passed'); report('second', 'failed', 'a reason'); exit(1)"),
            python("late", say + "report('early', 'passed'); import os; os.abort()"),
            python("silent", "pass"),
        ],
    )
    assert {name: result.state for name, result in found.items()} == {
        "good": PASSED, "first": PASSED, "second": FAILED, "early": PASSED, "late": FAILED, "silent": FAILED
    }  # fmt: skip
    assert (found["second"].why, found["late"].why) == ("a reason", "ended by SIGABRT, 1 reports")


def test_what_does_not_end_is_ended_with_what_it_started(tmp_path):
    begun = tmp_path / "begun"
    child = f"import os, time; open({str(begun)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    there = f"os.path.exists({str(begun)!r}) and os.stat({str(begun)!r}).st_size"
    wait = f"import os, time\nwhile not ({there}): time.sleep(0.01)\n"
    text = f"import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', {child!r}])\n{wait}"
    found = results(tmp_path, [python("hangs", text + "time.sleep(600)", limit=10.0)])
    assert (found["hangs"].state, found["hangs"].why) == (FAILED, "it did not end in time, 0 reports")
    assert gone(int(begun.read_text()))
    begun.unlink()
    results(tmp_path, [python("leaves", text)])
    assert gone(int(begun.read_text()))


def test_a_signal_ends_what_runs(tmp_path):
    begun = tmp_path / "begun"
    child = f"import os, time; open({str(begun)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    text = (
        f"import sys; sys.path.insert(0, {str(HERE)!r}); from pathlib import Path; from cases import *; "
        f"case = Case('a', 'b', 'c', [sys.executable, '-c', {child!r}], 500, reported('c')); "
        f"Runner(Path({str(tmp_path)!r}), 0, {{}}).run([case], 1)"
    )
    runner = subprocess.Popen([sys.executable, "-c", text])
    while not (begun.exists() and begun.read_text()):
        assert runner.poll() is None
        time.sleep(0.05)
    runner.terminate()
    assert runner.wait(60) == 143 and gone(int(begun.read_text()))


def gone(process):
    """Whether a process has ended, within a minute. One that nobody waits for stays as a zombie."""
    for _ in range(600):
        try:
            if ") Z " in Path(f"/proc/{process}/stat").read_text():
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.1)
    return False


def test_no_test_begins_when_the_time_is_up(tmp_path):
    found = results(tmp_path, [python("late", "pass")], seconds=1e-9)
    assert found["late"].state == NOT_RUN


@pytest.mark.skipif(not cases.networks(), reason="no network namespaces")
def test_two_listen_on_one_port(tmp_path):
    """Each has a network of its own, with a loopback device."""
    text = (
        f"import sys, socket, time; sys.path.insert(0, {str(HERE)!r}); from cases import report; "
        "server = socket.create_server(('127.0.0.1', 13333)); "
        "socket.create_connection(server.getsockname()); time.sleep(1); report(sys.argv[1], 'passed')"
    )
    runner = Runner(tmp_path, 0, {})
    two = [python(name, text, own_network=True) for name in ("a", "b")]
    for case in two:
        case.command.append(case.name)
    runner.run(two, 2)
    assert [result.state for result in runner.results] == [PASSED, PASSED], runner.results


def test_the_output_of_nccl_tests():
    good = (
        HEADER
        + rows(("float", 0), ("int8", 0))
        + rows(("int8", 0), in_place="N/A", operation="avg")
        + FOOTER.format(0, "OK")
    )
    everything = {name: (PASSED, "") for name in ("a float sum", "a int8 sum", "a int8 avg")}
    assert nccl_tests.read("a", 0, good) == everything | {"a": (PASSED, "3 rows")}
    bad = HEADER + rows(("float", 0), ("int8", 3)) + FOOTER.format(3, "FAILED")
    assert nccl_tests.read("a", 1, bad) == {
        "a float sum": (PASSED, ""), "a int8 sum": (FAILED, "3 wrong"), "a": (PASSED, "2 rows")
    }  # fmt: skip
    moved = nccl_tests.read("a", 0, rows(("float", 0), operation="none", root="0"))
    assert moved == {"a float": (PASSED, ""), "a": (PASSED, "1 rows")}
    error = "node: Test NCCL failure common.cu:1 'invalid usage / '"
    assert nccl_tests.read("a", 3, HEADER + rows(("float", 0)) + error)["a"] == (
        FAILED,
        f"exit code 3 after 1 rows | {error}",
    )
    assert nccl_tests.read("a", None, HEADER)["a"] == (FAILED, "it did not end in time after 0 rows")
    assert nccl_tests.read("a", 0, HEADER)["a"][0] == FAILED
    assert nccl_tests.read("a", -6, bad)["a"][0] == FAILED


# Builds one program, which says what a run with the library of LD_PRELOAD would.
MAKEFILE = """\
all:
\tmkdir -p $(BUILDDIR)
\tcp program $(BUILDDIR)/all_reduce_perf
"""
PROGRAM = """\
#!/bin/sh
case "$LD_PRELOAD" in
    *libours.so*) echo "NCCL version 2.28.9, by mscclpp 0" > "$(echo "$NCCL_DEBUG_FILE" | sed "s/%p/$$/")"; wrong=4 ;;
    *) [ "$NCCL_NVLS_ENABLE" = 0 ] || exit 9; wrong=0 ;;
esac
echo "$@" | grep -q -e "-g 4" || wrong=0
cat << END
{rows}
END
[ $wrong = 0 ]
"""


def test_a_whole_run(places, tmp_path):
    """Sums of ints by one process on all GPUs are wrong with this project's library, and nothing else is."""
    source = places.folder / "nccl-tests"
    source.mkdir()
    (source / "Makefile").write_text(MAKEFILE)
    text = HEADER + rows(("float", 0), ("int8", "$wrong")) + FOOTER.format("$wrong", "?")
    (source / "program").write_text(PROGRAM.replace("{rows}", text))
    (source / "program").chmod(0o755)
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "nvcc").touch(mode=0o755)
    (tools / "mpirun").write_text('#!/bin/sh\nshift 2\nexec "$@"\n')
    (tools / "mpirun").chmod(0o755)
    (tmp_path / "include").mkdir()
    (tmp_path / "include/mpi.h").touch()
    run = [sys.executable, HERE, "run", "--folder", places.folder, "--ours", places.ours, "--nccl", places.nccl]
    run += ["--gpus", "4", "--out", tmp_path / "out", "--only", "nccl-tests,vllm", "--seconds", "300"]
    env = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}", "MPI_HOME": str(tmp_path)}
    codes = []
    for part in ("1/2", "2/2"):
        done = subprocess.run([*run, "--part", part], env=env, capture_output=True, text=True, timeout=300)
        codes.append(done.returncode)
    files = sorted((tmp_path / "out").glob("suites-*.json"))
    assert (codes, len(files)) == ([1, 0], 2), done.stdout + done.stderr
    done = subprocess.run([sys.executable, HERE, "report", *files], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done.stderr
    for line in (
        "| nccl-tests | ours | 17 | 1 | 0 | 0 |",
        "| nccl-tests | NCCL | 18 | 0 | 0 | 0 |",
        f"| vllm | | skipped: there is no {places.folder}/vllm | | | |",
        "- nccl-tests with ours: all_reduce -g 4 int8 sum (NCCL: passed): 4 wrong",
    ):
        assert line in done.stdout.splitlines(), done.stdout


def test_wheels_are_installed_with_their_data(places, monkeypatch):
    """Packages, programs and libraries of a wheel's data have the places where a prefix has them."""
    (places.folder / "wheels").mkdir()
    files = {
        "a_package.py": "place = __file__",
        "a_package-1.data/data/bin/a_program": "#!/bin/sh",
        "a_package-1.data/data/lib/liba.so": "",
        "a_package-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: a_package\nVersion: 1\n",
        "a_package-1.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "a_package-1.dist-info/RECORD"
    with zipfile.ZipFile(places.folder / "wheels/a_package-1-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
        wheel.writestr(record, "".join(f"{name},,\n" for name in [*files, record]))
    for name in ("PATH", "PYTHONPATH"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    places.install_wheels()
    assert (places.build / "site/lib/liba.so").exists() and (places.build / "site/bin/a_program").exists()
    assert python_suites.python_has("a_package")
    places.install_wheels()


def test_what_could_not_be_built(places, monkeypatch, tmp_path):
    (places.folder / "nccl-tests").mkdir()
    (places.folder / "nccl-tests/Makefile").write_text("all:\n\t@echo no such compiler; exit 3\n")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (tmp_path / "nvcc").touch(mode=0o755)
    with pytest.raises(cases.NoTests, match="no such compiler"):
        nccl_tests.cases(places)


TESTS = """\
import sys
import pytest

def test_good(): pass
def test_bad(): assert 1 + 1 == 3
@pytest.mark.skip(reason="no time")
def test_left_out(): pass
@pytest.mark.xfail(strict=True)
def test_known(): assert False
@pytest.mark.parametrize("a", [1, 2])
def test_each(a): assert a == 1
@pytest.mark.parametrize("a", [])
def test_without_parameters(a): pass
def test_ends(): import os; os._exit(7)
"""


def test_each_test_of_pytest_is_a_process(places, tmp_path):
    (places.folder / "test_it.py").write_text(TESTS)
    given = python_suites.pytest_cases("a suite", places, places.folder, ["test_it.py"], [f"--rootdir={places.folder}"])
    found = results(tmp_path, [case for case in given if case.library == NCCL])
    states = {name.removeprefix("test_it.py::test_"): (result.state, result.why) for name, result in found.items()}
    assert states == {
        "good": (PASSED, ""),
        "bad": (FAILED, "exit code 1 | assert (1 + 1) == 3"),
        "left_out": (SKIPPED, "test_it.py:6: no time"),
        "known": (PASSED, ""),
        "each[1]": (PASSED, ""),
        "each[2]": (FAILED, "exit code 1 | assert 2 == 1"),
        "ends": (FAILED, "exit code 7"),
    }
    with pytest.raises(cases.NoTests, match="no_such_file"):
        python_suites.pytest_cases("a suite", places, places.folder, ["no_such_file.py"], [])


def result(suite, library, test, state, called=True):
    return {"suite": suite, "library": library, "test": test, "state": state, "why": "a reason", "called": called}


def test_the_table_compares_with_nccl():
    both = [result("A", library, "both", FAILED, library == OURS) for library in (OURS, NCCL)]
    only = [result("A", OURS, "only", FAILED), result("A", NCCL, "only", PASSED, False)]
    first = {"skipped": {"B": "not given"}, "broken": {}, "results": both + only}
    text, fine = table([first])
    assert (
        not fine and "1 fail here and not with NCCL:" in text and "- A with ours: only (NCCL: passed): a reason" in text
    )
    assert "1 fail here and with NCCL:\n- A with ours: both" in text and "| B | | skipped: not given | | | |" in text
    mended = {
        "skipped": {},
        "broken": {},
        "results": [result("A", OURS, "only", PASSED), result("A", OURS, "both", NOT_RUN)],
    }
    text, fine = table([first, mended])
    assert fine and "| A | ours | 1 | 1 | 0 | 0 |" in text
    text, fine = table([{"skipped": {}, "broken": {}, "results": [result("A", OURS, "only", PASSED, called=False)]}])
    assert not fine and "No test of A called this project's library" in text
    text, fine = table([{"skipped": {}, "broken": {}, "results": [result("A", NCCL, "only", PASSED, called=True)]}])
    assert not fine and "NCCL's run of A called this project's library" in text
    assert not table([{"skipped": {}, "broken": {"A": "an error"}, "results": []}])[1]


@pytest.mark.skipif(not python_suites.python_has("torch.distributed, expecttest"), reason="no torch")
def test_two_tests_of_pytorch_with_gloo(places, tmp_path):
    places.gpus, places.nccl = 2, None
    given = python_suites.torch_cases(places, {NCCL: "gloo"})
    chosen = [case for case in given if case.name in ("test_all_reduce_sum", "test_nccl_backend_bool_allgather")]
    found = results(tmp_path, chosen)
    assert len(given) > 200
    assert {name: result.state for name, result in found.items()} == {
        "test_all_reduce_sum": PASSED, "test_nccl_backend_bool_allgather": SKIPPED
    }, found  # fmt: skip


@pytest.mark.skipif("LIBNCCL" not in os.environ, reason="LIBNCCL names no library")
def test_which_library_is_called(places, tmp_path):
    """A client of NCCL on simulated devices, with the real library in place of NCCL."""
    places.ours = Path(os.environ["LIBNCCL"]).resolve()
    client = HERE.parent.parent / "crates/mscclpp-nccl/tests/clients/by_ctypes.py"
    text = (
        f"import subprocess, sys; sys.path.insert(0, {str(HERE)!r}); from cases import report; "
        f"subprocess.run([sys.executable, {str(client)!r}, 'libnccl.so.2', '2'], check=True); report('client', 'passed')"
    )
    env = places.environment(OURS) | {"MSCCLPP_PLATFORM": "sim"}
    found = results(tmp_path, [python("client", text, limit=300.0, env=env)])
    assert (found["client"].state, found["client"].called) == (PASSED, True), found
