# SPDX-License-Identifier: Apache-2.0
"""bitonic_sort built by anyop.build: standard tests, the order of torch.sort, JAX, rows that are too long."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import anyop
import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy is an ml_dtypes array")

HERE = Path(__file__).parent


@pytest.mark.drawn(5, together="examples/bitonic_sort")
def test_the_operator(tmp_path):
    try:
        library = anyop.build(HERE / "ops", out=tmp_path, name="sorting", backends=["cpu"])
    except anyop.MissingToolError as error:
        pytest.skip(str(error))
    # A process of its own: a library that is loaded stays.
    command = [sys.executable, HERE / "sorting_checks.py", library, HERE / "ops"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    standard, as_torch, _, too_long = done.stdout.splitlines()
    assert int(standard.split()[0]) > 500 and int(as_torch.split()[0]) == 648
    assert too_long.startswith("sorting.bitonic_sort: ") and "D <= 8192" in too_long
