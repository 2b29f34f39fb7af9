# SPDX-License-Identifier: Apache-2.0
"""Prints bench/results/kernels.jsonl as the table of docs/kernels.md: torch's time over anyop's, for each type.

python bench/cpu/kernel_table.py [--below 1] [--threads 1]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import ROOT

DTYPES = "float32", "bfloat16", "float16"


def cell(rows: list[dict]) -> str:
    """The ratios of minima in the order of DTYPES; bold where anyop is slower."""
    ratios = {row["dtype"]: row["ratio"] for row in rows}
    texts = (f"{ratios[d]:.2f}" if d in ratios else "-" for d in DTYPES)
    return " ".join(f"**{t}**" if t != "-" and float(t) < 1 else t for t in texts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--below", type=float, help="only cases with a ratio below it")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    path = ROOT / "bench" / "results" / "kernels.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows = [r for r in rows if r["threads"] == options.threads and r["case"] != "copy"]
    shapes = sorted({(r["rows"], r["columns"]) for r in rows})
    print(f"| case, {' '.join(DTYPES)} | " + " | ".join(f"{n}x{d}" for n, d in shapes) + " |")
    print("|---" * (len(shapes) + 1) + "|")
    for case in dict.fromkeys(r["case"] for r in rows):
        own = [r for r in rows if r["case"] == case]
        if options.below and all(r["ratio"] >= options.below for r in own):
            continue
        cells = (cell([r for r in own if (r["rows"], r["columns"]) == shape]) for shape in shapes)
        print(f"| `{case}` | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
