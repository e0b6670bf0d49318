"""nccl-tests: how it is built and run, and what its output says."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from cases import FAILED, PASSED, Case, NoTests, ended
from places import NCCL, OURS, Places, architectures, link

SIZES = ["-b", "8", "-e", "512K", "-f", "16", "-n", "1", "-w", "0"]
LIMIT = 300
# Each run makes thousands of calls on all GPUs, and kernels of several runs on a GPU wait for each other.
JOBS = 2
BUILD_LIMIT = 540
# Size, count, type, operation, root, and two groups of time, two bandwidths and the number of wrong elements.
ROW = re.compile(r"^\s*\d+\s+\d+\s+([a-z]\w+)\s+(\w+)\s+-?\d+\s+((?:\S+\s+){7}\S+)\s*$")
ERROR = re.compile(r"failure|error|Invalid", re.IGNORECASE)


def cases(places: Places) -> list[Case] | str:
    """The runs of each program on all GPUs and on two, or why there are none."""
    source = places.source("nccl-tests")
    if source is None:
        return f"there is no {places.folder}/nccl-tests"
    nvcc = shutil.which("nvcc") or os.environ.get("CUDA_HOME", "/usr/local/cuda") + "/bin/nvcc"
    if not Path(nvcc).exists():
        return "there is no nvcc: PATH and CUDA_HOME do not lead to one"
    if places.nccl is None:
        return "there is no NCCL to build with: --nccl names its library"
    mpi = mpi_home()
    if mpi is None:
        places.skipped["nccl-tests by processes"] = (
            "there is no mpirun, or no mpi.h where it is: MPI_HOME names the place"
        )
    cuda = Path(nvcc).resolve().parent.parent
    programs = build(source, places, cuda, mpi)
    libraries = ":".join(map(str, filter(None, [cuda / "lib64", mpi and mpi / "lib"])))
    return [
        case(name, library, command, places, libraries)
        for name, command in runs(programs, places.gpus)
        for library in (OURS, NCCL)
    ]


def case(name: str, library: str, command: list[str], places: Places, libraries: str) -> Case:
    env = places.environment(library)
    env["LD_LIBRARY_PATH"] = f"{env['LD_LIBRARY_PATH']}:{libraries}"
    # Open MPI refuses to run as root, or on few cores, unless told.
    env |= {f"{word}_ALLOW_RUN_AS_ROOT{end}": "1" for word in ("OMPI", "PRTE") for end in ("", "_CONFIRM")}
    env |= {"OMPI_MCA_rmaps_base_oversubscribe": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    return Case("nccl-tests", library, name, command, LIMIT, lambda code, output: read(name, code, output), env)


def runs(programs: dict[str, Path | None], gpus: int):
    """Yields names and commands: each program by one process, by threads, and by processes if it was built with MPI."""
    options = [*SIZES, "-d", "all", "-o", "all"]
    for program in sorted(programs["plain"].glob("*_perf")):
        for count in sorted({2, gpus}, reverse=True):
            name = program.name.removesuffix("_perf")
            yield f"{name} -g {count}", [str(program), "-g", str(count), *options]
            yield f"{name} -t {count}", [str(program), "-t", str(count), "-g", "1", *options]
            if programs["mpi"]:
                run = [shutil.which("mpirun") or "mpiexec", "-n", str(count)]
                yield f"{name} mpirun -n {count}", [*run, str(programs["mpi"] / program.name), "-g", "1", *options]


def build(source: Path, places: Places, cuda: Path, mpi: Path | None) -> dict[str, Path | None]:
    """Builds the programs, twice if there is MPI, and gives their folders."""
    home = places.build / "nccl"
    link(places.nccl, home / "lib/libnccl.so")
    headers = [places.nccl.parent.parent / "include", Path("/usr/include"), Path("/usr/local/include")]
    link(next((place for place in headers if (place / "nccl.h").exists()), headers[0]), home / "include")
    code = " ".join(f"-gencode=arch=compute_{number},code=sm_{number}" for number in architectures() or ["90"])
    folders = {"plain": places.build / "nccl-tests", "mpi": places.build / "nccl-tests-mpi" if mpi else None}
    makes = []
    for name, folder in folders.items():
        if folder:
            # Both builds write nothing into the sources.
            options = [f"BUILDDIR={folder}", f"CUDA_HOME={cuda}", f"NCCL_HOME={home}", f"NVCC_GENCODE={code}"]
            options += ["MPI=1", f"MPI_HOME={mpi}"] if name == "mpi" else []
            make = ["timeout", str(BUILD_LIMIT), "make", "-C", str(source), f"-j{os.cpu_count()}", *options]
            log = folder.with_suffix(".log")
            makes.append((log, subprocess.Popen(make, stdout=log.open("w"), stderr=subprocess.STDOUT)))
    for log, make in makes:
        if make.wait() != 0:
            raise NoTests(f"make ended with {make.returncode}: {log}:\n{log.read_text()[-3000:]}")
    return folders


def mpi_home() -> Path | None:
    """The folder with MPI's `include` and `lib`, if there is a program that starts processes, too."""
    runner = shutil.which("mpirun") or shutil.which("mpiexec")
    homes = [os.environ.get("MPI_HOME"), runner and Path(runner).resolve().parent.parent]
    homes += [runner and Path(runner).parent.parent, "/usr/lib/x86_64-linux-gnu/openmpi"]
    return next((Path(home) for home in homes if runner and home and (Path(home) / "include/mpi.h").exists()), None)


def read(name: str, code: int | None, output: str) -> dict[str, tuple[str, str]]:
    """The results of each type and operation, and one of the run as a whole, which passes if it came to its end."""
    wrong, rows = {}, 0
    for row in filter(None, map(ROW.match, output.splitlines())):
        kind, operation, numbers = row.group(1), row.group(2), row.group(3).split()
        test = f"{name} {kind}" + ("" if operation == "none" else f" {operation}")
        counts = [float(number) for number in (numbers[3], numbers[7]) if number != "N/A"]
        wrong[test] = wrong.get(test, 0) + sum(counts)
        rows += 1
    found = {test: (FAILED, f"{count:g} wrong") if count else (PASSED, "") for test, count in wrong.items()}
    errors = [line.strip() for line in output.splitlines() if ERROR.search(line)]
    if code == 0 and rows and not any(wrong.values()):
        found[name] = (PASSED, f"{rows} rows")
    elif code is not None and code > 0 and any(wrong.values()) and "Out of bounds values" in output:
        # The exit code says what the rows have said.
        found[name] = (PASSED, f"{rows} rows")
    else:
        found[name] = (FAILED, " | ".join([f"{ended(code)} after {rows} rows", *errors[:2]]))
    return found
