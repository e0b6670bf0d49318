"""The places of libraries, tools and sources: what was given, and what the machine has."""

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass, field
from pathlib import Path

OURS, BACKEND, NCCL = "ours", "backend", "NCCL"


@dataclass
class Places:
    """The things that the suites need: the user's folder, one for builds, both libraries, and the number of GPUs."""

    folder: Path
    build: Path
    ours: Path
    nccl: Path | None
    gpus: int
    # Parts of suites that are skipped, and why.
    skipped: dict[str, str] = field(default_factory=dict)

    def environment(self, library: str) -> dict[str, str]:
        """The variables with which a program calls a library."""
        env = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "PYTHONUNBUFFERED": "1"}
        if library == OURS:
            links = self.build / "ours"
            link(self.ours, links / "libnccl.so.2")
            env |= {"LD_PRELOAD": joined(str(self.ours), "LD_PRELOAD"), "VLLM_NCCL_SO_PATH": str(self.ours)}
            env |= {"LD_LIBRARY_PATH": joined(str(links), "LD_LIBRARY_PATH")}
        elif library == NCCL:
            env |= {"NCCL_NVLS_ENABLE": "0"}
            if self.nccl:
                env |= {"VLLM_NCCL_SO_PATH": str(self.nccl)}
                env |= {"LD_LIBRARY_PATH": joined(str(self.nccl.parent), "LD_LIBRARY_PATH")}
        return env

    def source(self, name: str) -> Path | None:
        """The folder `name`, or what the source distribution `name-*.tar.gz` has in it, unpacked."""
        if (self.folder / name).is_dir():
            return self.folder / name
        for archive in sorted(self.folder.glob(f"{name}-*.tar.gz")):
            unpacked = self.build / archive.name.removesuffix(".tar.gz")
            if not unpacked.exists():
                with tarfile.open(archive) as tar:
                    tar.extractall(self.build, filter="data")
            return unpacked
        return None

    def install_wheels(self) -> None:
        """Installs the wheels of the user's folder for the processes of this program, and makes their programs known."""
        wheels, site = sorted((self.folder / "wheels").glob("*.whl")), self.build / "site"
        if not wheels:
            return
        if not site.exists():
            new = site.with_suffix(".new")
            shutil.rmtree(new, ignore_errors=True)
            # With --target, pip leaves out the folder `lib` of a wheel's data, in which that of MPICH has its library.
            install = [
                sys.executable,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--no-index",
                "--no-deps",
                "--ignore-installed",
            ]
            subprocess.run([*install, "--prefix", new, *wheels], check=True, timeout=300)
            new.rename(site)
        for folder in [*site.glob("**/site-packages"), *site.glob("**/dist-packages")]:
            os.environ["PYTHONPATH"] = joined(str(folder), "PYTHONPATH")
        os.environ["PATH"] = joined(str(site / "bin"), "PATH")


def joined(first: str, variable: str) -> str:
    """A path in front of those that a variable has."""
    return ":".join(filter(None, [first, os.environ.get(variable)]))


def link(target: Path, place: Path) -> None:
    """Makes a symbolic link, in place of an earlier one."""
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    place.symlink_to(target)


def find_nccl() -> Path | None:
    """NCCL's own library: that of its wheel, which torch brings, or of the system."""
    found = importlib.util.find_spec("nvidia")
    folders = [Path(place) / "nccl/lib" for place in (found and found.submodule_search_locations) or ()]
    folders += [Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib64"), Path("/usr/local/lib")]
    return next((folder / "libnccl.so.2" for folder in folders if (folder / "libnccl.so.2").exists()), None)


def count_gpus() -> int:
    """The number of GPUs that nvidia-smi lists."""
    return len([line for line in nvidia_smi("-L") if line.startswith("GPU ")])


def architectures() -> list[str]:
    """The architectures of the GPUs, such as 90."""
    return sorted(
        {line.strip().replace(".", "") for line in nvidia_smi("--query-gpu=compute_cap", "--format=csv,noheader")}
    )


def nvidia_smi(*arguments: str) -> list[str]:
    try:
        done = subprocess.run(["nvidia-smi", *arguments], stdout=subprocess.PIPE, text=True, timeout=60)
        return done.stdout.splitlines() if done.returncode == 0 else []
    except (OSError, subprocess.TimeoutExpired):
        return []


def python_has(module: str) -> bool:
    """Whether a process of this Python can import a module."""
    return subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True, timeout=300).returncode == 0
