# SPDX-License-Identifier: Apache-2.0
"""What bench/results holds about an operator, as Markdown: the newest line of each shape, dtype and side."""

from __future__ import annotations

import json
from collections import defaultdict
from functools import cache
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[2] / "bench" / "results"
ON_GPUS = ("cuda_rows", "cuda_products", "cuda_attention", "cuda_latent", "cuda_lists")
ON_CPUS = ("kernels", "products", "attention")
Cases = dict[str, dict[str, dict]]  # by shape and dtype, then side


def tables(name: str) -> list[str]:
    """Of GPUs first; nothing where nothing was measured."""
    return [*_of_gpus(name), *_of_cpus(name)]


@cache
def _lines(file: str) -> list[dict]:
    return [json.loads(line) for line in (RESULTS / f"{file}.jsonl").read_text().splitlines()]


def _of_gpus(name: str) -> list[str]:
    by_gpu: dict[str, Cases] = defaultdict(lambda: defaultdict(dict))
    for file in ON_GPUS:
        for row in _lines(file):
            of = f"multi_tensor_{row['case']}" if file == "cuda_lists" else row["case"]
            if of == name and {"median_us", "shape", "dtype"} <= row.keys():
                by_gpu[row["gpu"]][f"{row['shape']} {row['dtype']}"][row["side"]] = row
    text = []
    for gpu, cases in sorted(by_gpu.items()):
        sides = sorted({side for found in cases.values() for side in found}, key=_anyop_first)
        text += [f"On {gpu}, medians in µs (share of the bytes' ceiling):", ""]
        text += [_row(["shape", *sides]), _row(["---"] * (len(sides) + 1))]
        text += [
            _row([what, *(_cell(found.get(s)) for s in sides)]) for what, found in cases.items()
        ]
        text.append("")
    return text


def _anyop_first(side: str) -> tuple[bool, str]:
    return not side.startswith("anyop"), side


def _cell(row: dict | None) -> str:
    if row is None:
        return "–"
    share = row.get("share_of_ceiling")
    return f"{row['median_us']:,.1f}" + (f" ({share:.0%})" if share else "")


def _of_cpus(name: str) -> list[str]:
    newest: dict[tuple[str, ...], tuple[str, float]] = {}
    for file in ON_CPUS:
        for row in _lines(file):
            if row.get("operator", row.get("case")) == name and "ratio" in row:
                sizes = row.get("sizes") or f"{row['rows']} x {row['columns']}"
                key = (str(sizes), row["dtype"], str(row.get("threads", 1)))
                newest[key] = row["cpu"], row["ratio"]
    if not newest:
        return []
    text = ["On CPUs, torch's time over anyop's (above 1: anyop is faster):", ""]
    text += [_row(["sizes", "dtype", "threads", "CPU", "torch / anyop"]), _row(["---"] * 5)]
    text += [_row([*key, cpu, f"{ratio:.2f}"]) for key, (cpu, ratio) in newest.items()]
    return [*text, ""]


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
