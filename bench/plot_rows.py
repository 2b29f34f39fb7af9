# SPDX-License-Identifier: Apache-2.0
"""Draws what bench/cuda_rows.py measured: docs/figures/FAMILY.svg and the tables of docs/kernels.md.

    python bench/plot_rows.py [--results bench/results/cuda_rows.jsonl] [--out docs/figures]

Of each operator, shape and side the newest line counts. Needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SIDES = {
    "anyop": "#c0392b",
    "torch": "#7f8c8d",
    "torch.compile": "#2c3e50",
    "liger": "#2980b9",
    "flag_gems": "#d9a441",
}
SHORT_US = 60.0  # as bench/cuda_rows.py: below, a graph's own time is taken off
Cases = dict[tuple[str, str], dict[str, dict]]


def newest(file: Path) -> dict[str, Cases]:
    """Lines by family, then (operator, shape), then side."""
    families: dict = defaultdict(lambda: defaultdict(dict))
    for line in file.read_text().splitlines():
        row = json.loads(line)
        if "family" in row:
            families[row["family"]][row["case"], row["shape"]][row["side"]] = row
    for cases in families.values():
        for sides in cases.values():
            fill_shares(sides)
    return families


def fill_shares(sides: dict[str, dict]) -> None:
    """Of lines that do not say how many bytes must move, as others of the same call do."""
    moved = max(row["bytes"] for row in sides.values())
    for row in sides.values():
        if not row["bytes"]:
            median = row["median_us"]
            busy = median - row["idle_us"] if median < SHORT_US else median
            row["share_of_ceiling"] = round(moved / busy / (row["ceiling_gb_per_s"] * 1e3), 3)


def timed(cases: Cases) -> list[str]:
    """The sides that have a line in the family."""
    return [side for side in SIDES if any(side in sides for sides in cases.values())]


def table(cases: Cases) -> str:
    """Microseconds and shares of the ceiling, as Markdown."""
    columns = timed(cases)
    lines = ["| operator | shape | " + " | ".join(columns) + " |"]
    lines.append("|---" * (2 + len(columns)) + "|")
    for (operator, shape), sides in cases.items():
        cells = [
            f"{sides[s]['median_us']:.1f} ({sides[s]['share_of_ceiling']:.0%})"
            if s in sides
            else ""
            for s in columns
        ]
        lines.append(f"| `{operator}` | {shape} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def draw(family: str, cases: Cases, file: Path) -> None:
    gpu = next(iter(next(iter(cases.values())).values()))["gpu"]
    shares = {
        case: {side: 100 * sides[side]["share_of_ceiling"] for side in SIDES if side in sides}
        for case, sides in cases.items()
    }
    bars(family, shares, SIDES, f"share of a + b -> c, % ({gpu})", file, 105)


def bars(
    title: str,
    cases: dict[tuple[str, str], dict[str, float]],
    colours: dict[str, str],
    label: str,
    file: Path,
    most: float | None = None,
) -> None:
    """A group of bars for each operator and shape, one for each side that colours name."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "anyop"  # the same file for the same numbers
    matplotlib.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot

    names = [f"{operator}  {shape}" for operator, shape in cases]
    columns = [side for side in colours if any(side in sides for sides in cases.values())]
    figure, axes = pyplot.subplots(figsize=(9, 1 + 0.12 * len(columns) * len(names)))
    step = 0.81 / len(columns)
    for n, side in enumerate(columns):
        found = [(i, sides[side]) for i, sides in enumerate(cases.values()) if side in sides]
        places = [i + (n - (len(columns) - 1) / 2) * step for i, _ in found]
        values = [value for _, value in found]
        axes.barh(places, values, step - 0.02, color=colours[side], label=side)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.invert_yaxis()
    axes.set_xlim(0, most)
    axes.set_xlabel(label)
    axes.set_title(title)
    axes.legend(loc="lower right", fontsize=7)
    figure.tight_layout()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, metadata={"Date": None})
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=ROOT / "bench/results/cuda_rows.jsonl")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/figures")
    options = parser.parse_args()
    for family, cases in newest(options.results).items():
        draw(family, cases, options.out / f"{family}.svg")
        print(f"## {family}\n\n{table(cases)}\n")


if __name__ == "__main__":
    main()
