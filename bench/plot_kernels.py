# SPDX-License-Identifier: Apache-2.0
"""Draws what bench/cuda_products.py, cuda_attention.py and cuda_latent.py measured on one kind of GPU.

    python bench/plot_kernels.py [--gpu H100] [--results bench/results] [--out docs/figures]

Two figures of each file: NAME_flops.svg, TFLOP/s of the cases that are bound by products, and NAME_bytes.svg, shares
of the bytes' ceiling (a + b -> c of the same run) of the others. Of each operator, shape and side the newest line
counts; variants of a kernel are left out. Needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path

from plot_rows import ROOT, bars

COLOURS = {
    "anyop": "#c0392b",
    "anyop cuda_sm90": "#e67e22",
    "anyop cuda": "#f5b7a1",
    "torch": "#7f8c8d",
    "torch, product alone": "#bdc3c7",
    "torch, two products alone": "#bdc3c7",
    "torch cudnn": "#2c3e50",
    "torch flash": "#95a5a6",
    "torch flex": "#5d6d7e",
    "fa3": "#2980b9",
    "flashinfer": "#27ae60",
    "flash_mla": "#8e44ad",
}
LEAST_TFLOPS = 100.0  # of the best side: below, a case is bound by bytes


def newest(file: Path, gpu: str) -> dict[tuple[str, str], dict[str, dict]]:
    """Lines by operator and shape, then side."""
    cases: dict = defaultdict(dict)
    for line in file.read_text().splitlines():
        row = json.loads(line)
        if gpu in row.get("gpu", "") and row["side"] in COLOURS:
            cases[row["case"], row["shape"]][row["side"]] = row
    return cases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", default="H100")
    parser.add_argument("--results", type=Path, default=ROOT / "bench/results")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/figures")
    options = parser.parse_args()
    for name in ("products", "attention", "latent"):
        kinds: dict = {"flops": {}, "bytes": {}}
        for case, sides in newest(options.results / f"cuda_{name}.jsonl", options.gpu).items():
            is_heavy = max(row["tflops"] for row in sides.values()) > LEAST_TFLOPS
            field, scale = ("tflops", 1) if is_heavy else ("share_of_ceiling", 100)
            values = {side: row[field] * scale for side, row in sides.items()}
            kinds["flops" if is_heavy else "bytes"][case] = values
        for kind, label in (("flops", "TFLOP/s"), ("bytes", "share of a + b -> c, %")):
            file = options.out / f"{name}_{kind}.svg"
            bars(name, kinds[kind], COLOURS, f"{label} ({options.gpu})", file)
            print(f"{file}: {len(kinds[kind])} cases")


if __name__ == "__main__":
    main()
