# SPDX-License-Identifier: Apache-2.0
"""Draws what bench/generate.py measured: docs/figures/generate.svg, and a table of it.

    python bench/plot_generate.py [--results bench/results/generate.jsonl] [--out docs/figures/generate.svg]

Tokens a second of decoding as multiples of transformers' eager generate() in the same run. Of each model, batch, type,
device and side the newest line counts. Needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PEER = "transformers"
COLORS = {
    "numpy": "#e6b0aa", "torch": "#c0392b", "jax": "#d98880", "paddle": "#f2d7d5",
    f"{PEER}, joined": "#2980b9", f"{PEER}, replaced": "#7fb3d5",
    PEER: "#7f8c8d", f"{PEER}, static": "#2c3e50",
}  # fmt: skip
Rates = dict[str, dict[str, float]]  # tokens a second by what was measured, then by side


def newest(file: Path) -> Rates:
    """What has transformers beside it; a GPU's lines first."""
    found: dict = defaultdict(dict)
    for row in map(json.loads, file.read_text().splitlines()):
        place = row.get("gpu", f"{row['device']}, {row['threads']} threads")
        size = f"{row['rows']} × {row['context']}"
        found[row["device"] != "cuda", f"{row['size']}, {size}, {row['dtype']}, {place}"] |= {
            row["side"]: 1e3 * row["rows"] / row["step_ms"]
        }
    return {name: sides for (_, name), sides in sorted(found.items()) if PEER in sides}


def name_of(side: str) -> str:
    """joined: by replace(fuse=True)."""
    return side if side.startswith(PEER) else f"anyop from {side}"


def table(rates: Rates) -> str:
    """Tokens a second, and multiples of transformers', as Markdown."""
    columns = [side for side in COLORS if any(side in sides for sides in rates.values())]
    lines = ["| model, sequences × prompt | " + " | ".join(map(name_of, columns)) + " |"]
    lines.append("|---" * (1 + len(columns)) + "|")
    for name, sides in rates.items():
        cells = [
            f"{sides[side]:.0f} ({sides[side] / sides[PEER]:.2f})" if side in sides else ""
            for side in columns
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def draw(rates: Rates, file: Path) -> None:
    """A group of bars for each model and batch, one for each side, with its tokens a second."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "anyop"  # the same file for the same numbers
    matplotlib.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot

    count = sum(len(sides) + 1 for sides in rates.values())
    figure, axes = pyplot.subplots(figsize=(8, 1.1 + 0.17 * count), layout="constrained")
    at, ticks, most = 0, [], 0.0
    for name, sides in rates.items():
        shown = [side for side in COLORS if side in sides]
        ticks.append((at + (len(shown) - 1) / 2, name.replace(", ", "\n", 1)))
        for side in shown:
            times = sides[side] / sides[PEER]
            axes.barh(at, times, 0.9, color=COLORS[side], label=name_of(side))
            axes.text(times, at, f" {sides[side]:,.0f}", va="center", fontsize=7)
            at, most = at + 1, max(most, times)
        at += 1
    axes.set_yticks(*zip(*ticks), fontsize=7)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.12 * most)
    axes.set_xlabel(f"tokens a second (at the bars), as multiples of {PEER}'", fontsize=8)
    bars = dict(zip(*reversed(axes.get_legend_handles_labels())))
    labels = [label for label in map(name_of, COLORS) if label in bars]
    handles = list(map(bars.get, labels))
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=7)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, metadata={"Date": None})
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=ROOT / "bench/results/generate.jsonl")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/figures/generate.svg")
    options = parser.parse_args()
    rates = newest(options.results)
    draw(rates, options.out)
    print(table(rates))


if __name__ == "__main__":
    main()
