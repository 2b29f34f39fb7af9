# SPDX-License-Identifier: Apache-2.0
"""bench/plot.py: what its tables say of lines of bench/results; docs show every picture that it makes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
import plot

LINE = {
    "family": "norms", "case": "rms_norm", "shape": "8192x8192", "gpu": "H200",
    "ceiling_gb_per_s": 4000, "idle_us": 4.0,
}  # fmt: skip


def test_a_share_without_bytes_is_that_of_the_other_sides_bytes(tmp_path):
    """A run of other projects alone did not say how many bytes must move."""
    sides = [
        {"side": "anyop", "median_us": 80.0, "bytes": 256_000_000, "share_of_ceiling": 0.8},
        {"side": "liger", "median_us": 100.0, "bytes": 0, "share_of_ceiling": 0.0},
        {"side": "flag_gems", "median_us": 44.0, "bytes": 0, "share_of_ceiling": 0.0},
    ]
    file = tmp_path / "cuda_rows.jsonl"
    file.write_text("\n".join(json.dumps({**LINE, **side}) for side in sides))
    table = plot.table(dict(plot.of_rows(tmp_path, ""))["norms"])
    # 256 MB over 4 TB/s are 64 us; of 44 us, 4 are the graph's own.
    assert table.splitlines()[-1].endswith("| 80.0 (80%) | 100.0 (64%) | 44.0 (160%) |")


def test_rates_are_of_the_newest_lines_with_transformers_beside_them(tmp_path):
    common = {"context": 64, "dtype": "float32", "threads": 2}
    lines = [
        {"size": "a", "rows": 8, "device": "cpu", "side": "numpy", "step_ms": 9.0},
        {"size": "a", "rows": 8, "device": "cpu", "side": "numpy", "step_ms": 4.0},
        {"size": "a", "rows": 8, "device": "cpu", "side": "transformers", "step_ms": 16.0},
        {"size": "a", "rows": 1, "device": "cpu", "side": "numpy", "step_ms": 1.0},
        {"size": "b", "rows": 1, "device": "cuda", "gpu": "H200", "side": "torch", "step_ms": 0.5},
        {"size": "b", "rows": 1, "device": "cuda", "gpu": "H200", "side": "transformers", "step_ms": 2.0},
    ]  # fmt: skip
    file = tmp_path / "generate.jsonl"
    file.write_text("\n".join(json.dumps({**common, **line}) for line in lines))
    assert plot.table(dict(plot.of_generate(tmp_path, ""))["generate"]).splitlines()[2:] == [
        "| b, 1 × 64, float32, H200 |  | 2000 (4.00) | 500 (1.00) |",
        "| a, 8 × 64, float32, cpu, 2 threads | 2000 (4.00) |  | 500 (1.00) |",
    ]


def test_a_side_that_another_gpu_ran_is_not_drawn_beside(tmp_path):
    row = {"side": "anyop", "median_us": 80.0, "bytes": 1, "share_of_ceiling": 0.8}
    other = {"gpu": "H100", "side": "torch"}
    rows = [{**LINE, **row}, {**LINE, **row, "side": "liger"}, {**LINE, **row, **other}]
    (tmp_path / "cuda_rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert dict(plot.of_rows(tmp_path, ""))["norms"].sides() == ["anyop", "liger"]


def test_every_picture_of_docs_is_made_of_results_and_shown():
    root = Path(__file__).parents[2]
    shown = "".join(page.read_text() for page in [root / "README.md", *root.glob("docs/*.md")])
    made = {name for kind in plot.KINDS for name, _ in kind(root / "bench/results", "H100")}
    pictures = {path.stem for path in (root / "docs/figures").glob("*.svg")}
    assert len(pictures) > 20 and pictures - made == set()
    assert {name for name in pictures if f"figures/{name}.svg)" not in shown} == set()
