#!/usr/bin/env python3
"""Writes the files from which the book's figures are drawn, with values of the tables of docs/performance.md and its pages.

    python3 docs/figures/make.py           reads the tables, and writes the files
    python3 docs/figures/make.py --check   fails if a file has something else than its tables, and changes nothing

Bandwidths in the tables become times by the size. `cargo xtask site --figures` draws the pictures, with `mscclpp-bench plot`.
"""

import json
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
SIZE = re.compile(r"(\d+) (B|KiB|MiB|GiB)")


def size(cell):
    """The bytes of a cell that is a size, or None."""
    match = SIZE.fullmatch(cell)
    return match and int(match[1]) * UNITS[match[2]]


def microseconds(cell, bytes):
    """The mean of the times in a cell, or the time of its bandwidth; None if the cell is empty."""
    times, _, in_brackets = cell.replace("*", "").replace("\\", "").partition(" (")
    bandwidth = re.search(r"([\d.]+) GB/s", in_brackets or times)
    if bandwidth:
        return round(bytes / float(bandwidth[1]) / 1e3, 2)
    runs = [float(run) for run in times.split(", ") if run]
    return round(sum(runs) / len(runs), 3) if runs else None


def table(page, heading, title):
    """The rows of the table below a heading whose first row of cells begins with the title."""
    text = (DOCS / page).read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()]
        if rows[0][: len(title)] == title:
            return [rows[0], *rows[2:]]
    sys.exit(f"docs/{page} has no table that begins with {title} below {heading}")


def by_size(page, heading, title, wanted):
    """The times of one row of a table that has a column for each size: the best of the lines `wanted`, below the row's name."""
    name, lines = wanted
    head, *rows = table(page, heading, title)
    found, current = {}, None
    for row in rows:
        current = row[0].strip("`") or current
        if current != name or (len(title) > 1 and row[1] not in lines):
            continue
        for at, cell in zip(head, row):
            us = size(at) and microseconds(cell, size(at))
            if us:
                found[size(at)] = min(us, found.get(size(at), us))
    if not found:
        sys.exit(f"docs/{page} has no row {wanted} below {heading}")
    return found


def by_row(heading, wanted):
    """The times of a workload in a table of channels.md that has a row for each size, and names the workload in its first one."""
    found, current = {}, None
    workload, variant = wanted
    for cells in table("performance/channels.md", heading, ["what", "median"]):
        *names, at = cells[0].split(", ")
        if names and names[0].startswith("`"):
            current = [names[0].strip("`"), *names[1:]]
        elif names and size(at):
            current = [current[0], *names]
        if size(at) and current == [workload, *variant]:
            found[size(at)] = microseconds(cells[1], size(at))
    if not found:
        sys.exit(f"docs/performance/channels.md has no row {wanted} below {heading}")
    return found


def row(workload, variant, bytes, us):
    bandwidth = bytes / us / 1e3
    return {
        "workload": workload,
        "variant": variant,
        "size": bytes,
        "size_of": "bytes",
        "unit": "us",
        "times": {"median": us, "min": us, "max": us},
        "rounds": 1,
        "repeats": 1,
        "bandwidth": {"algorithm": bandwidth, "bus": bandwidth},
    }


def figure(commit, devices, series):
    machine = {
        "platform": "cuda",
        "devices": devices,
        "driver": "580.159.04",
        "transport": "CudaIpc",
        "commit": commit,
        "cores": 32,
    }
    rows = [row(*name, bytes, us) for name, points in series.items() for bytes, us in points.items()]
    report = {"machine": machine, "rows": rows, "notes": ["made by docs/figures/make.py of docs/performance.md"]}
    return json.dumps(report, indent=1) + "\n"


def beside_nccl(name):
    """A collective between two GPUs and between four, and NCCL's better time at each size."""
    sizes = ["", "", "1 KiB"]
    two = ("performance.md", "Two GPUs", sizes)
    four = ("performance.md", "Four GPUs", sizes)
    return figure(
        "b1a99baa and others",
        ["2 x NVIDIA H200", "4 x NVIDIA H100"],
        {
            (name, "between two"): by_size(*two, (name, ["this"])),
            ("NCCL", "between two"): by_size(*two, (name, ["NCCL, plain", "NCCL, windows"])),
            (name, "between four"): by_size(*four, (name, ["this"])),
            ("NCCL", "between four"): by_size(*four, (name, ["NCCL"])),
        },
    )


def main():
    messages, ports = "Messages between two GPUs", "Port channels between two GPUs"
    h200 = ["NVIDIA H200"] * 2
    channels = {
        ("memory-put", ""): by_row(messages, ("memory-put", [])),
        ("memory-get", ""): by_row(messages, ("memory-get", [])),
        ("memory-put-packets", "LL16"): by_row(messages, ("memory-put-packets", ["LL16"])),
        ("memory-put-packets", "LL128"): by_row(messages, ("memory-put-packets", ["LL128"])),
        ("port-put", "in kernel"): by_row(ports, ("port-put --in-kernel", [])),
    }
    of_sizes = ("performance/channels.md", messages, ["size"])
    packets = {("packets", name): by_size(*of_sizes, (name, [])) for name in ["LL16", "LL128"]}
    figures = {
        "all-reduce": beside_nccl("all_reduce"),
        "all-gather": beside_nccl("all_gather"),
        "channels": figure("b0202a7, 57c9566 and 15751d3", h200, channels),
        "packets": figure("229c639", h200, packets),
    }
    stale = []
    for name, text in figures.items():
        file = HERE / f"{name}.json"
        if file.exists() and file.read_text() == text:
            continue
        stale.append(file.name)
        if "--check" not in sys.argv:
            file.write_text(text)
    if "--check" not in sys.argv:
        print(f"written: {', '.join(stale)}" if stale else "all files are those of their tables")
    elif stale:
        sys.exit(f"{', '.join(stale)}: not what the tables have; run python3 docs/figures/make.py")


if __name__ == "__main__":
    main()
