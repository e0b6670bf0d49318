"""The suites that are programs in Python: PyTorch's, CuPy's, vLLM's, and collectives of JAX."""

import os
import re
import subprocess
import sys
from pathlib import Path

from cases import FAILED, HERE, PASSED, SKIPPED, Case, NoTests, Reader, ended, reported
from places import BACKEND, NCCL, OURS, Places, joined, python_has

LIST_LIMIT = 240
TORCH_LIMIT, JAX_LIMIT, PYTEST_LIMIT = 180, 180, 240
# What stands in for the compiled modules of vLLM that its Python files import without asking whether they are there. The
# tests call none of them, but on GPUs the files ask which formats matrix multiplications support.
VLLM_FORMATS = """import torch

library = torch.library.Library("_C", "FRAGMENT")
for name in ("fp4", "fp8", "block_fp8"):
    library.define(f"cutlass_scaled_mm_supports_{name}(int capability) -> bool")
    library.impl(f"cutlass_scaled_mm_supports_{name}", lambda capability: False, "CompositeImplicitAutograd")
"""
VLLM_COMPILED = {
    "_C": VLLM_FORMATS,
    "_C_stable_libtorch": "",
    "_moe_C_stable_libtorch": "",
    "vllm_flash_attn/_vllm_fa2_C": "",
}
PYTEST = ["-m", "pytest", "-p", "no:cacheprovider"]
COUNT = re.compile(r"\b(\d+) (passed|failed|skipped|errors?|xfailed|xpassed)\b")


def torch_cases(places: Places, backends: dict[str, str] | None = None) -> list[Case] | str:
    """The tests of PyTorch's suite, each as a process that starts one for each rank, of which there are at most four."""
    if not python_has("torch.distributed"):
        return f"{sys.executable} has no torch"
    if not python_has("expecttest"):
        return f"{sys.executable} has no expecttest, which PyTorch's tests import"
    if backends is None:
        backends = {OURS: "nccl", BACKEND: "mscclpp", NCCL: "nccl"}
        if not python_has("mscclpp.torch"):
            places.skipped["torch with backend"] = f"{sys.executable} cannot import mscclpp.torch"
            del backends[BACKEND]
    program, size = str(HERE / "run_torch.py"), str(min(max(places.gpus, 2), 4))
    names = listed([sys.executable, program, "list"], {"BACKEND": "gloo", "WORLD_SIZE": size})
    return [
        Case(
            "torch",
            library,
            name,
            [sys.executable, program, name],
            TORCH_LIMIT,
            reported(name),
            places.environment(library) | {"BACKEND": backend, "WORLD_SIZE": size},
        )
        for name in names
        for library, backend in backends.items()
    ]


def jax_cases(places: Places) -> list[Case] | str:
    """The program of this folder for JAX, once for each collective."""
    if not python_has("jax"):
        return f"{sys.executable} has no jax"
    program = str(HERE / "run_jax.py")
    return [
        Case(
            "jax",
            library,
            name,
            [sys.executable, program, name],
            JAX_LIMIT,
            reported(name),
            places.environment(library),
        )
        for name in listed([sys.executable, program, "list"], {})
        for library in (OURS, NCCL)
    ]


def cupy_cases(places: Places) -> list[Case] | str:
    """CuPy's tests of cupyx.distributed and cupy.cuda.nccl."""
    source = places.source("cupy")
    if source is None:
        return f"there is no {places.folder}/cupy"
    if not python_has("cupy"):
        return f"{sys.executable} has no cupy"
    # The sources have a package without compiled modules beside the tests, which must not be found.
    folder = source / "tests"
    options = [f"--rootdir={folder}"]
    return pytest_cases(
        "cupy", places, folder, ["cupyx_tests/distributed_tests", "cupy_tests/cuda_tests/test_nccl.py"], options
    )


def vllm_cases(places: Places) -> list[Case] | str:
    """The tests of vLLM's wrapper of NCCL."""
    source = places.source("vllm")
    if source is None:
        return f"there is no {places.folder}/vllm"
    for name, text in VLLM_COMPILED.items():
        if not list((source / "vllm").glob(f"{name}.*")):
            (source / "vllm" / f"{name}.py").write_text(text)
    options = [f"--rootdir={source}", "--noconftest"]
    env = {"PYTHONPATH": joined(str(source), "PYTHONPATH")}
    return pytest_cases("vllm", places, source, ["tests/distributed/test_pynccl.py"], options, env)


def pytest_cases(
    suite: str, places: Places, cwd: Path, files: list[str], options: list[str], env: dict[str, str] | None = None
) -> list[Case]:
    """Each test of some files as a process. Such tests listen on fixed ports."""
    pytest, env = [sys.executable, *PYTEST, *options], env or {}
    lines = listed([*pytest, "--collect-only", "-q", *files], places.environment(NCCL) | env, cwd)
    return [
        Case(
            suite,
            library,
            name,
            [*pytest, "-rsx", name],
            PYTEST_LIMIT,
            of_pytest(name),
            places.environment(library) | env,
            cwd,
            own_network=True,
        )
        # A test whose list of parameters is empty is listed with NOTSET, and cannot be run by that name.
        for name in (line for line in lines if "::" in line and not line.endswith("[NOTSET]"))
        for library in (OURS, NCCL)
    ]


def of_pytest(name: str) -> Reader:
    """A reader of pytest's output for one test."""

    def read(code, output):
        counts = dict((word, int(number)) for number, word in COUNT.findall("\n".join(output.splitlines()[-3:])))
        if code == 0 and counts and counts.keys() <= {"skipped"}:
            why = re.search(r"^SKIPPED \[\d+\] (.*)$", output, re.MULTILINE)
            return {name: (SKIPPED, why.group(1) if why else "")}
        if code == 0 and counts:
            return {name: (PASSED, "")}
        errors = [line.strip() for line in re.findall(r"^E\s+(\S.*)$", output, re.MULTILINE)]
        return {name: (FAILED, " | ".join([ended(code), *errors[:2]]))}

    return read


def listed(command: list[str], env: dict[str, str], cwd: Path | None = None) -> list[str]:
    """The lines that a command prints, which names tests."""
    try:
        done = subprocess.run(
            command,
            env=os.environ | env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIST_LIMIT,
        )
    except subprocess.TimeoutExpired as error:
        raise NoTests(f"{' '.join(command)} did not end within {LIST_LIMIT} s") from error
    if done.returncode != 0:
        raise NoTests(f"{' '.join(command)}: exit code {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout.split("\n")[:-1]
