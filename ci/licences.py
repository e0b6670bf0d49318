#!/usr/bin/env python3
"""Writes the licences of the crates that are linked into the Python package, as a file of the package: each licence once.

    python3 ci/licences.py            writes crates/mscclpp-python/THIRD-PARTY-LICENSES
    python3 ci/licences.py --check    fails if the file does not agree with Cargo.lock

The texts are those in the crates' packages, in the registry's folder of cargo. If a crate offers several licences, MIT is used if
it is among them.
"""

import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
NOTICES = ROOT / "crates" / "mscclpp-python" / "THIRD-PARTY-LICENSES"
TARGETS = ("x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu")
HEAD = "The extension module of this package contains parts of the following. Each licence stands behind all that have it.\n"
LINE = "\n" + 80 * "-" + "\n\n"


def cargo(*arguments: str) -> str:
    command = ["cargo", *arguments, "--locked"]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


def linked() -> set[tuple[str, str]]:
    """Returns the names and versions of the linked crates. Macros are not linked: they only run during compilation."""
    crates = set()
    for target in TARGETS:
        edges = ("--edges", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}")
        for line in cargo("tree", "--package", "mscclpp-python", "--target", target, *edges).splitlines():
            name, version, *rest = line.split()
            if not any(word.startswith("(/") for word in rest):
                crates.add((name, version.removeprefix("v")))
    return crates


def text(package: dict) -> str:
    """Returns the licence of a crate, without blanks at the ends of lines, in which copies differ."""
    folder = pathlib.Path(package["manifest_path"]).parent
    for name in ("LICENSE-MIT", "LICENSE-MIT.md", "LICENSE-MIT.txt", "LICENSE", "LICENSE.md", "LICENSE.txt"):
        if (folder / name).is_file():
            lines = (folder / name).read_text(encoding="utf-8").strip().splitlines()
            return "\n".join(line.rstrip() for line in lines) + "\n"
    sys.exit(f"{folder} has no licence that is known here: see ci/licences.py")


def notices() -> str:
    packages = json.loads(cargo("metadata", "--format-version", "1"))["packages"]
    known = {(package["name"], package["version"]): package for package in packages}
    by_text: dict[str, list[str]] = {}
    for crate in sorted(linked()):
        package = known[crate]
        holders = by_text.setdefault(text(package), [])
        holders.append(f"{package['name']} {package['version']} ({package['license']}), {package['repository']}\n")
    # The standard library's package has no text. After the first lines, the text of all MIT licences is the same.
    permission = (ROOT / "LICENSE").read_text(encoding="utf-8").partition("Permission is")
    library = f"Copyright (c) The Rust Project Contributors\n\n{permission[1]}{permission[2].strip()}\n"
    by_text[library] = ["Rust's standard library (MIT OR Apache-2.0), https://github.com/rust-lang/rust\n"]
    return HEAD + "".join(f"{LINE}{''.join(holders)}\n{licence}" for licence, holders in by_text.items())


made = notices()
if "--check" not in sys.argv:
    NOTICES.write_text(made, encoding="utf-8")
elif not NOTICES.is_file() or NOTICES.read_text(encoding="utf-8") != made:
    sys.exit(f"{NOTICES.relative_to(ROOT)} is not that of Cargo.lock: run python3 ci/licences.py")
else:
    print(f"{NOTICES.relative_to(ROOT)} is that of Cargo.lock")
