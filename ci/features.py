#!/usr/bin/env python3
"""Every feature of a crate that is published is named where its users look: in the documentation of its library, or, for a
program, in its README.

    python3 ci/features.py
"""

import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


def documentation(package: dict) -> pathlib.Path:
    libraries = [target for target in package["targets"] if {"lib", "rlib"} & set(target["kind"])]
    if libraries:
        return pathlib.Path(libraries[0]["src_path"])
    return pathlib.Path(package["manifest_path"]).parent / "README.md"


def missing(package: dict) -> list[str]:
    page = documentation(package)
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".rs":
        text = "\n".join(line for line in text.splitlines() if line.startswith("//!"))
    if package["name"] == "mscclpp":
        text = page.read_text(encoding="utf-8").partition("ANCHOR: features")[2].partition("ANCHOR_END")[0]
    absent = [name for name in package["features"] if name != "default" and f"`{name}`" not in text]
    return [f"{page.relative_to(ROOT)} does not name the feature `{name}` of {package['name']}" for name in absent]


command = ["cargo", "metadata", "--format-version", "1", "--no-deps", "--locked"]
packages = json.loads(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout)["packages"]
published = [package for package in packages if package["publish"] != []]
problems = [line for package in published for line in missing(package)]
print("\n".join(problems) or f"all features of {len(published)} crates are documented")
sys.exit(bool(problems))
