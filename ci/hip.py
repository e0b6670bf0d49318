#!/usr/bin/env python3
"""Compiles the device API and the kernels for AMD GPUs, by clang alone, and checks the instructions.

Nothing here runs on a GPU. Each header is compiled by itself for one target, and all together for each target and as C++20;
each kernel with cuda/tests/hip/runtime.hpp in place of the declarations that hiprtc has, with all warnings as errors. Then the
assembly of cuda/tests/hip/orders.cu is searched for the instructions that memory order and packets need. CLANGXX names the
compiler; without it, the newest clang++ from 19 on is used.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGETS = ["gfx90a", "gfx942", "gfx1100"]
# Sources with features that only CUDA compilers have, and simulated devices imitate: HIP's warps are 64 wide, its masks 64 bits.
ONLY_CUDA = [
    "crates/mscclpp-gpu/tests/it/builtins/",
    "crates/mscclpp-gpu/tests/it/kernels.cu",
    "crates/mscclpp-gpu/tests/it/overruns.cu",
    "crates/mscclpp-gpu/tests/races/",
    "tests/kernels/plain.cu",
]

# The instructions for which orders.cu is searched.
WORDS = {
    "gfx90a": {
        "write-back": r"buffer_wbl2\b",
        "stores-done": r"s_waitcnt [^\n]*vmcnt\(0\)",
        "invalidate": r"buffer_invl2\n[^\n]*buffer_wbinvl1_vol",
        "add": r"(global|flat)_atomic_add_x2 ",
        "store8": r"(global|flat)_store_dwordx2 ",
        "store16": r"(global|flat)_store_dwordx4 ",
        "any-store": r"_store_",
        "load8": r"(global|flat)_load_dwordx2 [^\n]* glc",
    },
    "gfx942": {
        "write-back": r"buffer_wbl2 sc0 sc1",
        "stores-done": r"s_waitcnt [^\n]*vmcnt\(0\)",
        "invalidate": r"buffer_inv sc0 sc1",
        "add": r"(global|flat)_atomic_add_x2 [^\n]* sc1",
        "store8": r"(global|flat)_store_dwordx2 [^\n]* sc0 sc1",
        "store16": r"(global|flat)_store_dwordx4 [^\n]* sc0 sc1",
        "any-store": r"_store_",
        "load8": r"(global|flat)_load_dwordx2 [^\n]* sc0 sc1",
    },
    "gfx1100": {
        # The L2 cache of this GPU is coherent with the system: nothing is written back, and only stores are waited for.
        "write-back": r"",
        "stores-done": r"s_waitcnt_vscnt null, 0x0",
        "invalidate": r"buffer_gl1_inv\n[^\n]*buffer_gl0_inv",
        "add": r"(global|flat)_atomic_add_u64 ",
        "store8": r"(global|flat)_store_b64 ",
        "store16": r"(global|flat)_store_b128 ",
        "any-store": r"_store_",
        "load8": r"(global|flat)_load_b64 [^\n]* glc",
    },
}
# The instructions that each kernel must have, in this order.
EXPECTED = {
    "release_add": ["any-store", "write-back", "stores-done", "add"],
    "release_store": ["any-store", "write-back", "stores-done", "store8"],
    "release_trigger": ["any-store", "store8", "write-back", "stores-done", "store8"],
    "system_fence": ["any-store", "write-back", "stores-done", "invalidate", "store8"],
    "acquire_load": ["load8", "loads-done", "invalidate"],
    "acquire_pair": ["load8", "invalidate", "load8", "invalidate"],
    "store_ll8": ["store8"],
    "store_ll16": ["store16"],
    "load_ll8": ["load8"],
}
# The number of all stores in these kernels.
STORES = {"store_ll8": 1, "store_ll16": 1}


def find_compiler():
    if os.environ.get("CLANGXX"):
        return os.environ["CLANGXX"]
    for version in range(29, 18, -1):
        if shutil.which(f"clang++-{version}"):
            return f"clang++-{version}"
    sys.exit("no clang++ from 19 on: install clang-19, or set CLANGXX")


def command(compiler, target, source, out, standard="17", options=()):
    return [
        compiler, "-x", "hip", "--cuda-device-only", "-nogpuinc", "-nogpulib", f"--offload-arch={target}",
        f"-std=c++{standard}", "-O3", "-Wall", "-Wextra", "-Werror", "-I", str(ROOT / "cuda/include"),
        "-I", str(ROOT / "cuda/c_headers"), "-I", str(ROOT / "cuda/tests/hip"),
        *(["-include", "runtime.hpp"] if source.suffix == ".cu" else []),
        *options, "-S", "-o", str(out), str(source),
    ]  # fmt: skip


def body_of(assembly, kernel):
    """The instructions of a kernel."""
    start = re.search(rf"^{kernel}:", assembly, re.M)
    if not start:
        raise ValueError(f"no kernel {kernel} in the assembly")
    rest = assembly[start.end() :]
    return rest[: rest.index("s_endpgm")]


def look(target, assembly):
    """Returns what is wrong with the instructions for this target, as lines."""
    words = {**WORDS[target], "loads-done": r"s_waitcnt [^\n]*vmcnt\(0\)"}
    wrong = []
    for kernel, sequence in EXPECTED.items():
        body = body_of(assembly, kernel)
        at = 0
        for word in sequence:
            found = re.search(words[word], body[at:])
            if not found:
                wrong.append(f"{target}: {kernel}: no {word} ({words[word]}) behind the ones before it in\n{body}")
                break
            at += found.end()
        stores = len(re.findall(words["any-store"], body))
        if STORES.get(kernel, stores) != stores:
            wrong.append(f"{target}: {kernel}: {stores} stores instead of {STORES[kernel]} in\n{body}")
    return wrong


def main():
    compiler = find_compiler()
    print(subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0])
    listed = subprocess.run(["git", "ls-files", "*.cu"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    kernels = [ROOT / name for name in listed.split() if not any(part in name for part in ONLY_CUDA)]
    kernels = [kernel for kernel in kernels if not kernel.is_symlink()]
    headers = sorted((ROOT / "cuda/include/mscclpp").glob("*.hpp"))
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        jobs = []
        for header in headers:
            # The header is compiled through a file that includes only it: it must include everything that it needs.
            unit = folder / f"{header.stem}.hip"
            unit.write_text(f'#include "mscclpp/{header.name}"\n')
            jobs.append((TARGETS[0], unit, "17"))
        together = folder / "together.hip"
        together.write_text("".join(f'#include "mscclpp/{header.name}"\n' for header in headers))
        jobs += [(target, together, standard) for target in TARGETS for standard in ("17", "20")]
        jobs += [(target, source, "17") for target in TARGETS for source in kernels]
        # hiprtc of ROCm 6 has some types itself.
        jobs.append((TARGETS[0], together, "17", "-DMSCCLPP_HIPRTC_HAS_TYPES", "-include", "runtime.hpp"))

        def compile_one(job):
            target, source, standard, *options = job
            out = folder / f"{source.stem}-{abs(hash(source))}.{target}.{standard}.{len(options)}.s"
            run = subprocess.run(
                command(compiler, target, source, out, standard, options), capture_output=True, text=True, timeout=300
            )
            return job, run, out

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for (target, source, standard, *options), run, out in pool.map(compile_one, jobs):
                if run.returncode != 0:
                    failures.append(f"{source} for {target}, C++{standard} {options}:\n{run.stderr}")
                elif source.name == "orders.cu":
                    failures += look(target, out.read_text())
    print(f"{len(headers)} headers and {len(kernels)} kernels for {', '.join(TARGETS)}")
    for failure in failures:
        print(failure)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
