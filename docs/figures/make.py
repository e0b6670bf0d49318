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


# "Messages between two GPUs" and "Port channels between two GPUs".
figure(
    "channels",
    "b0202a7, 57c9566 and 15751d3",
    {
        ("memory-put", ""): {"1K": 3.77, "1M": 6.80, "128M": "349GB/s"},
        ("memory-get", ""): {"1K": 2.85, "1M": 5.69, "128M": "332.8GB/s"},
        ("memory-put-packets", "LL16"): {"1K": 3.08, "1M": 9.34, "128M": "170.4GB/s"},
        ("memory-put-packets", "LL128"): {"1K": 3.17, "1M": 7.06, "128M": "305.5GB/s"},
        ("port-put", "in kernel"): {
            "1K": 4.50,
            "4K": 4.87,
            "16K": 5.11,
            "64K": 6.40,
            "256K": 11.6,
            "1M": 16.3,
            "4M": 26.2,
            "16M": 60.0,
            "64M": 189,
            "128M": 360,
        },
    },
)

# "Messages between two GPUs": LL16 and LL128 by size.
AT = ["4K", "8K", "16K", "32K", "64K", "128K", "256K", "512K", "1M", "2M", "4M"]
figure(
    "packets",
    "229c639",
    {
        ("packets", "LL16"): dict(zip(AT, [3.312, 3.384, 3.454, 3.501, 3.664, 4.02, 4.81, 6.54, 9.21, 15.5, 28.6])),
        ("packets", "LL128"): dict(zip(AT, [3.313, 3.358, 3.436, 3.456, 3.503, 3.75, 4.15, 5.24, 7.01, 10.6, 18.4])),
    },
)

# "Collectives between two GPUs", all_reduce. NCCL was measured up to 64 MiB.
AT = ["1K", "16K", "64K", "256K", "1M", "4M", "16M", "64M", "256M", "1G"]
figure(
    "all-reduce",
    "b1a99baa",
    {
        ("all_reduce", ""): dict(zip(AT, [2.40, 2.83, 3.07, 4.16, 6.92, 17.0, 56.7, 203, 760, 2989])),
        ("NCCL 2.28.3", ""): dict(zip(AT, [6.05, 6.97, 7.14, 8.60, 15.5, 33.5, 69.7, 232])),
        ("NCCL 2.28.3", "with windows"): dict(zip(AT, [3.96, 4.68, 8.18, 8.49, 15.7, 28.5, 78.1, 302])),
    },
)
