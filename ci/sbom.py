#!/usr/bin/env python3
"""Lists the components in the files of a release: for each file in the form of CycloneDX 1.5, with versions, licences, origins, and
the SHA-256 of the crates.

    python3 ci/sbom.py FOLDER    writes FOLDER/NAME.cdx.json for each file of a release

The lists are made from cargo's output alone, so this needs no other program and gives the same each time. Features are those that
are on by default. Crates that only run during compilation (macros, build scripts) are left out, because they are in no file.
"""

import json
import pathlib
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[1]
TARGET = "x86_64-unknown-linux-gnu"
# The Python package, the library in place of NCCL, the benchmark program, and the crate that depends on the most others.
ROOTS = ("mscclpp-python", "mscclpp-nccl", "mscclpp-bench", "mscclpp-collectives", "mscclpp-ep")


def cargo(*arguments: str) -> str:
    command = ["cargo", *arguments, "--locked"]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


def checksums() -> dict[tuple[str, str], str]:
    locked = tomllib.loads((ROOT / "Cargo.lock").read_text(encoding="utf-8"))["package"]
    return {(package["name"], package["version"]): package["checksum"] for package in locked if "checksum" in package}


def purl(package: dict) -> str:
    return f"pkg:cargo/{package['name']}@{package['version']}"


def component(package: dict, hashes: dict[tuple[str, str], str]) -> dict:
    made = {
        "type": "library",
        "bom-ref": purl(package),
        "name": package["name"],
        "version": package["version"],
        "purl": purl(package),
        # Some licences have a slash for "or", as older versions of cargo allowed.
        "licenses": [{"expression": package["license"].replace("/", " OR ")}],
    }
    if package.get("description"):
        made["description"] = " ".join(package["description"].split())
    if checksum := hashes.get((package["name"], package["version"])):
        made["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    if package.get("repository"):
        made["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return made


def linked(root: str) -> dict[tuple[str, str], set[tuple[str, str]]]:
    """Maps the name and version of each crate that is linked into `root`, and of `root`, to the crates that it needs."""
    edges = ("--edges", "normal,no-proc-macro", "--prefix", "depth", "--format", " {p}")
    needed, above = {}, []
    for line in cargo("tree", "--package", root, "--target", TARGET, *edges).splitlines():
        # The crates that a crate needs follow its first line, one level deeper; its later lines end in a star.
        depth, name, version, *_ = line.split()
        crate = (name, version.removeprefix("v"))
        above = [*above[: int(depth)], crate]
        needed.setdefault(crate, set())
        if len(above) > 1:
            needed[above[-2]].add(crate)
    return needed


def sbom(root: str, known: dict[tuple[str, str], dict], hashes: dict[tuple[str, str], str]) -> dict:
    needed = linked(root)
    main, *others = sorted(needed, key=lambda crate: (crate[0] != root, crate))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": component(known[main], hashes)},
        "components": [component(known[crate], hashes) for crate in others],
        "dependencies": [
            {"ref": purl(known[crate]), "dependsOn": sorted(purl(known[one]) for one in needed[crate])}
            for crate in (main, *others)
        ],
    }


if len(sys.argv) != 2:
    sys.exit(__doc__)
folder = pathlib.Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
packages = json.loads(cargo("metadata", "--format-version", "1"))["packages"]
by_name = {(package["name"], package["version"]): package for package in packages}
for root in ROOTS:
    made = sbom(root, by_name, checksums())
    path = folder / f"{root}.cdx.json"
    path.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    print(f"{path}: {len(made['components'])} components")
