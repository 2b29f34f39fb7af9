# SPDX-License-Identifier: Apache-2.0
"""Loading from the cache stays quick: a process that does so imports none of the modules that cost most."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

OPS = Path(__file__).parents[2] / "examples" / "from_pybind11" / "ops"
PROGRAM = """
import sys
import anyop

before = set(sys.modules)
assert anyop.load(sys.argv[1]) == ["moved.bias_gelu"]
print(*sorted(set(sys.modules) - before))
"""
# Milliseconds each; together they were four fifths of a warm load. The last two build.
SLOW = {
    "dataclasses",
    "inspect",
    "typing",
    "hashlib",
    "subprocess",
    "shutil",
    "tempfile",
    "logging",
}
SLOW |= {"anyop.builder.compile", "anyop.cache.store"}


def test_a_warm_load_imports_little(tmp_path):
    environment = os.environ | {"ANYOP_CACHE_DIR": str(tmp_path)}
    cold, warm = (
        set(
            subprocess.run(
                [sys.executable, "-c", PROGRAM, str(OPS)],
                env=environment, capture_output=True, text=True, check=True, timeout=120,
            ).stdout.split()
        )
        for _ in range(2)
    )  # fmt: skip
    assert {"anyop.builder.compile", "anyop.cache.store", "subprocess"} <= cold
    assert "anyop.cache.lookup" in warm
    assert not warm & SLOW
