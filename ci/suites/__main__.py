"""Runs suites of others with this project's library in place of NCCL, with its backend for PyTorch, and with NCCL itself.

    suites run --folder FOLDER --ours LIBRARY [OPTION...]    runs them; the table and FILE.json say what came of it
    suites report FILE.json...                               the table of several runs together

FOLDER may have `nccl-tests`, `cupy` and `vllm`, each as a folder or as the source distribution NAME-VERSION.tar.gz; and
`wheels` with packages that the suites need. PyTorch's suite is in its wheel, and the program for JAX is here. What is not
there is skipped. The exit code is 1 if a test fails with this project's library that does not fail with NCCL.
"""

import argparse
import json
import os
import sys
from pathlib import Path

import nccl_tests
import python_suites
from cases import Case, NoTests, Runner
from places import NCCL, Places, count_gpus, find_nccl
from table import table

SUITES = {
    "nccl-tests": nccl_tests.cases,
    "torch": python_suites.torch_cases,
    "cupy": python_suites.cupy_cases,
    "jax": python_suites.jax_cases,
    "vllm": python_suites.vllm_cases,
}


def main() -> int:
    options = parsed()
    if options.command == "report":
        return show([json.loads(file.read_text()) for file in options.files])
    if options.gpus < 2:
        print("skipped  all suites: they need two GPUs, and nvidia-smi lists fewer")
        return 77
    places = Places(options.folder, options.build or options.out / "build", options.ours, options.nccl, options.gpus)
    places.build.mkdir(parents=True, exist_ok=True)
    facts = {"gpus": options.gpus, "NCCL": str(options.nccl), "skipped": places.skipped, "broken": {}}
    index, parts = options.part
    name = f"suites-{index}-of-{parts}" if parts > 1 else "suites"
    runner = Runner(options.out, options.seconds, facts, name)
    places.install_wheels()
    if not options.nccl:
        places.skipped["all with NCCL"] = "there is no libnccl.so.2 of NCCL's wheel or of the system: --nccl names one"
    for name in options.only:
        try:
            found = SUITES[name](places)
        except NoTests as error:
            facts["broken"][name] = str(error)
            continue
        if isinstance(found, str):
            places.skipped[name] = found
        else:
            cases = of_part([case for case in found if options.nccl or case.library != NCCL], options)
            jobs = min(options.jobs, nccl_tests.JOBS) if name == "nccl-tests" else options.jobs
            print(f"{name}: {len(cases)} processes, {jobs} at a time, on {options.gpus} GPUs", flush=True)
            runner.run(cases, jobs)
    runner.write()
    print(f"the results are in {runner.file}")
    return show([json.loads(runner.file.read_text())])


def of_part(cases: list[Case], options: argparse.Namespace) -> list[Case]:
    """Those tests of a suite that belong to this part, with all libraries."""
    index, parts = options.part
    names = [name for name in dict.fromkeys(case.name for case in cases) if options.tests in name]
    chosen = set(names[index - 1 :: parts])
    return [case for case in cases if case.name in chosen]


def show(files: list[dict]) -> int:
    text, fine = table(files)
    print(text)
    return 0 if fine else 1


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="suites", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("report").add_argument("files", nargs="+", type=Path)
    run = commands.add_parser("run")
    run.add_argument("--folder", type=Path, required=True, help="the sources")
    run.add_argument("--ours", type=Path, required=True, help="this project's libnccl.so")
    run.add_argument("--out", type=Path, default=Path("target/suites"), help="results and logs  [target/suites]")
    run.add_argument("--build", type=Path, help="what is built and unpacked; a later run uses it again  [OUT/build]")
    run.add_argument(
        "--nccl", type=Path, default=find_nccl(), help="NCCL's libnccl.so.2  [that of its wheel or of the system]"
    )
    run.add_argument("--gpus", type=int, default=count_gpus(), help="[all]")
    run.add_argument("--only", type=names, default=list(SUITES), help=f"some of {','.join(SUITES)}")
    run.add_argument("--tests", default="", help="only tests with this in their name")
    run.add_argument("--part", type=part, default=(1, 1), help="I/N: the I-th of N parts of each suite's tests")
    run.add_argument(
        "--seconds", type=float, default=0, help="after which no test begins; the rest counts as not run  [no limit]"
    )
    run.add_argument("--jobs", type=int, default=max(1, min(12, (os.cpu_count() or 1) // 5)), help="tests at a time")
    options = parser.parse_args()
    for name in ("folder", "ours", "out", "build", "nccl"):
        path = getattr(options, name, None)
        if path is not None:
            setattr(options, name, path.resolve() if name in ("out", "build") else path.resolve(strict=True))
    return options


def names(text: str) -> list[str]:
    for name in text.split(","):
        if name not in SUITES:
            raise argparse.ArgumentTypeError(f"there is no suite {name}, only {','.join(SUITES)}")
    return text.split(",")


def part(text: str) -> tuple[int, int]:
    index, _, parts = text.partition("/")
    if not (index.isdigit() and parts.isdigit() and 1 <= int(index) <= int(parts)):
        raise argparse.ArgumentTypeError(f"{text} is not I/N with I from 1 to N")
    return int(index), int(parts)


if __name__ == "__main__":
    sys.exit(main())
