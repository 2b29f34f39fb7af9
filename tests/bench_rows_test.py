# SPDX-License-Identifier: Apache-2.0
"""bench/plot_rows.py: what its tables say of lines of bench/results/cuda_rows.jsonl."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
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
