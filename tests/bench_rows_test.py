# SPDX-License-Identifier: Apache-2.0
"""bench/plot_rows.py and plot_generate.py: what their tables say of lines of bench/results."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
import plot_generate
import plot_rows

LINE = {
    "family": "norms", "case": "rms_norm", "shape": "8192x8192", "ceiling_gb_per_s": 4000, "idle_us": 4.0,
}  # fmt: skip


def test_a_share_without_bytes_is_that_of_the_other_sides_bytes(tmp_path):
    """A run of other projects alone did not say how many bytes must move."""
    sides = [
        {"side": "anyop", "median_us": 80.0, "bytes": 256_000_000, "share_of_ceiling": 0.8},
        {"side": "liger", "median_us": 100.0, "bytes": 0, "share_of_ceiling": 0.0},
        {"side": "flag_gems", "median_us": 44.0, "bytes": 0, "share_of_ceiling": 0.0},
    ]
    file = tmp_path / "lines.jsonl"
    file.write_text("\n".join(json.dumps({**LINE, **side}) for side in sides))
    table = plot_rows.table(plot_rows.newest(file)["norms"])
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
    file = tmp_path / "lines.jsonl"
    file.write_text("\n".join(json.dumps({**common, **line}) for line in lines))
    assert plot_generate.table(plot_generate.newest(file)).splitlines()[2:] == [
        "| b, 1 × 64, float32, H200 |  | 2000 (4.00) | 500 (1.00) |",
        "| a, 8 × 64, float32, cpu, 2 threads | 2000 (4.00) |  | 500 (1.00) |",
    ]
