#!/usr/bin/env python3
"""Writes the files from which the book's figures are drawn, with values of docs/performance.md and nothing else.

Each table below is one of that page, named by its section and commit. Bandwidths there become times by the size. Pictures are
drawn by `cargo xtask site`, with `mscclpp-bench plot`.
"""

import json
from pathlib import Path

HERE = Path(__file__).resolve().parent
SIZES = {"B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def size(text):
    return int(text[:-1]) * SIZES[text[-1]]


def microseconds(bytes, value):
    """A time, or a bandwidth in GB/s."""
    return round(bytes / float(value[:-4]) / 1e3, 2) if isinstance(value, str) else value


def row(workload, variant, at, value):
    bytes = size(at)
    us = microseconds(bytes, value)
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


def figure(name, commit, series):
    rows = [row(workload, variant, at, value) for (workload, variant), of in series.items() for at, value in of.items()]
    machine = {
        "platform": "cuda",
        "devices": ["NVIDIA H200"] * 2,
        "driver": "580.159.04",
        "transport": "CudaIpc",
        "commit": commit,
        "cores": 32,
    }
    report = {"machine": machine, "rows": rows, "notes": ["made by docs/figures/make.py of docs/performance.md"]}
    (HERE / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")


# "Since launches keep what they use", the column 15751d3.
figure(
    "channels",
    "15751d3",
    {
        ("memory-put", ""): {"1K": 3.75, "1M": 6.81, "128M": "349.2GB/s"},
        ("memory-get", ""): {"1K": 2.85, "1M": 5.69, "128M": "332.8GB/s"},
        ("memory-put-packets", "LL16"): {"1K": 3.08, "1M": 9.27, "128M": "170.4GB/s"},
        ("memory-put-packets", "LL128"): {"1K": 3.17, "1M": 7.06, "128M": "305.5GB/s"},
        ("port-put", "in kernel"): {
            "1K": 4.47,
            "4K": 4.56,
            "16K": 4.84,
            "64K": 6.12,
            "256K": 11.3,
            "1M": 16.3,
            "4M": 25.8,
            "16M": 60.0,
            "64M": 189,
            "128M": 360,
        },
    },
)

# "Messages between two GPUs": the first two rows of LL16 and LL128 by size.
AT = ["4K", "8K", "16K", "32K", "64K", "128K", "256K", "512K", "1M", "2M", "4M"]
figure(
    "packets",
    "229c639",
    {
        ("packets", "LL16"): dict(zip(AT, [3.312, 3.384, 3.454, 3.501, 3.664, 4.02, 4.81, 6.54, 9.21, 15.5, 28.6])),
        ("packets", "LL128"): dict(zip(AT, [3.313, 3.358, 3.436, 3.456, 3.503, 3.75, 4.15, 5.24, 7.01, 10.6, 18.4])),
    },
)

# "Collectives between two GPUs", all_reduce.
AT = ["1K", "16K", "64K", "256K", "1M", "4M", "16M", "64M", "256M", "1G"]
figure(
    "all-reduce",
    "56fb9c0",
    {
        ("all_reduce", ""): dict(zip(AT, [2.12, 2.78, 3.05, 4.09, 6.85, 16.7, 56.2, 202, 760, 2995])),
        ("NCCL 2.28.9", ""): dict(zip(AT, [5.96, 6.94, 7.17, 8.39, 13.9, 32.6, 69.3, 231, 838, 3226])),
        ("NCCL 2.28.9", "with windows"): dict(zip(AT, [3.73, 4.56, 8.16, 8.50, 16.0, 28.2, 78.8, 301, 1154, 4548])),
    },
)
