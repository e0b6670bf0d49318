"""Cases: processes of a suite, each with a time limit, and what their output says about tests."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
PASSED, FAILED, SKIPPED, NOT_RUN = "passed", "failed", "skipped", "not run"
# What begins a line in which a program of this folder reports a test.
REPORT = "@result "
# The line that the library in place of NCCL writes with NCCL_DEBUG=VERSION.
OURS_SAYS = re.compile(r"NCCL version .*, by mscclpp")
MOST_OF_A_LOG = 3000


@dataclass
class Result:
    """The result of one test of a suite with one library."""

    suite: str
    library: str
    test: str
    state: str
    why: str = ""
    seconds: float = 0.0
    # The end of the output, if the test failed.
    log: str = ""
    # Whether the process called the library in place of NCCL.
    called: bool = False


# Gives states and reasons of tests, from the exit code (None: the time was up) and the output of a case.
Reader = Callable[[int | None, str], dict[str, tuple[str, str]]]


@dataclass
class Case:
    """A process that runs one test or several."""

    suite: str
    library: str
    name: str
    command: list[str]
    limit: float
    read: Reader
    env: dict[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    # Whether the program listens on a fixed port, so that two cannot run in one network.
    own_network: bool = False


class NoTests(Exception):
    """The tests of a suite could not be built or listed."""


def ended(code: int | None) -> str:
    """How a process has ended, in words."""
    if code is None:
        return "it did not end in time"
    return f"ended by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def reported(name: str) -> Reader:
    """A reader of lines that begin with REPORT. If the process ends badly or reports nothing, the test `name` fails."""

    def read(code, output):
        lines = [line.removeprefix(REPORT) for line in output.splitlines() if line.startswith(REPORT)]
        found = {test: (state, why) for test, state, why in map(json.loads, lines)}
        if not found or (code != 0 and not any(state == FAILED for state, _ in found.values())):
            found[name] = (FAILED, f"{ended(code)}, {len(found)} reports")
        return found

    return read


def report(test: str, state: str, why: str = "") -> None:
    """Prints the line for a test that `reported` reads."""
    print(f"\n{REPORT}{json.dumps([test, state, why])}", flush=True)


def networks() -> bool:
    """Whether processes can have a network of their own."""
    command = [sys.executable, str(HERE / "lone.py"), "true"]
    return subprocess.run(command, stderr=subprocess.DEVNULL, timeout=60).returncode == 0


class Runner:
    """Runs cases, several at a time, and keeps their results in a JSON file and their logs in a folder."""

    def __init__(self, out: Path, seconds: float, facts: dict, name: str = "suites"):
        self.file, self.logs = out / f"{name}.json", out / "logs" / "suites"
        self.end = time.monotonic() + seconds if seconds else float("inf")
        self.facts, self.results = facts, []
        self.running: set[subprocess.Popen] = set()
        self.lock = threading.Lock()
        self.alone = threading.Lock()
        self.networks = networks()
        self.logs.mkdir(parents=True, exist_ok=True)

    def run(self, cases: list[Case], jobs: int) -> None:
        """Runs the cases, `jobs` at a time. A signal that ends this program ends their processes, too."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.stop)
        with ThreadPoolExecutor(jobs) as pool:
            for future in [pool.submit(self.finish, case) for case in cases]:
                future.result()
        self.write()

    def stop(self, number, _frame):
        for process in list(self.running):
            kill(process)
        # Threads that wait for processes are not waited for. The results so far have been written.
        os._exit(128 + number)

    def finish(self, case: Case) -> None:
        if case.own_network and not self.networks:
            with self.alone:
                results = self.results_of(case)
        else:
            results = self.results_of(case)
        with self.lock:
            self.results += results
            self.write()
            for result in results:
                if result.state in (FAILED, NOT_RUN):
                    print(f"{result.state:8} {case.suite} with {case.library}: {result.test}: {result.why}", flush=True)

    def write(self) -> None:
        text = json.dumps(self.facts | {"results": [asdict(result) for result in self.results]}, indent=1)
        new = self.file.with_suffix(".new")
        new.write_text(text)
        new.replace(self.file)

    def results_of(self, case: Case) -> list[Result]:
        begin = time.monotonic()
        if begin >= self.end:
            return [Result(case.suite, case.library, case.name, NOT_RUN, "the time of the call was up")]
        cut = self.end + 30 - begin < case.limit
        code, output, called = self.process(case, min(case.limit, self.end + 30 - begin))
        seconds = round(time.monotonic() - begin, 1)
        if code is None and cut:
            return [Result(case.suite, case.library, case.name, NOT_RUN, "the time of the call was up", seconds)]
        return [
            Result(
                case.suite,
                case.library,
                test,
                state,
                why,
                seconds,
                output[-MOST_OF_A_LOG:] if state == FAILED else "",
                called,
            )
            for test, (state, why) in case.read(code, output).items()
        ]

    def process(self, case: Case, limit: float) -> tuple[int | None, str, bool]:
        """Runs the process of a case in a folder of its own for temporary files, and ends what it leaves behind."""
        command = case.command
        if case.own_network and self.networks:
            command = [sys.executable, str(HERE / "lone.py"), *command]
        log = self.logs / (re.sub(r"[^\w.,=+-]+", "_", f"{case.suite}-{case.library}-{case.name}")[-150:] + ".log")
        temporary = Path(tempfile.mkdtemp(prefix="suites-"))
        env = os.environ | {"NCCL_DEBUG": "VERSION", "NCCL_DEBUG_FILE": f"{temporary}/nccl.%p"} | case.env
        env |= {"TMPDIR": str(temporary), "TEMP_DIR": str(temporary)}
        try:
            with log.open("wb") as file:
                process = subprocess.Popen(
                    command,
                    env=env,
                    cwd=case.cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                self.running.add(process)
                try:
                    code = process.wait(limit)
                except subprocess.TimeoutExpired:
                    code = None
                finally:
                    kill(process)
                    process.wait()
                    self.running.discard(process)
            output = log.read_text(errors="replace")
            said = [output, *(file.read_text(errors="replace") for file in temporary.glob("nccl.*"))]
            return code, output, any(map(OURS_SAYS.search, said))
        except OSError as error:
            return 127, f"{command[0]}: {error}", False
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def kill(process: subprocess.Popen) -> None:
    """Ends all processes of the session that a process has begun."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
