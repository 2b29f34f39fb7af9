# SPDX-License-Identifier: Apache-2.0
"""The operators of mla_decode built by anyop.build: standard tests, splits against one softmax, torch, JAX, errors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import anyop
import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy is an ml_dtypes array")

HERE = Path(__file__).parent


@pytest.mark.drawn(5, together="examples/mla_decode")
def test_the_operators(tmp_path):
    try:
        library = anyop.build(HERE / "ops", out=tmp_path, name="mla", backends=["cpu"])
    except anyop.MissingToolError as error:
        pytest.skip(str(error))
    # A process of its own: a library that is loaded stays.
    command = [sys.executable, HERE / "mla_checks.py", library, HERE / "ops"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    standard, splits, _, _, *errors = done.stdout.splitlines()
    assert int(standard.split()[0]) > 2000 and int(splits.split()[0]) == 30
    assert errors == [
        "mla.decode: a length is outside, expected 0 <= length <= M * S",
        "mla.decode: a length is outside, expected 0 <= length <= M * S",
        "mla.decode: a page is outside, expected 0 <= page < N",
        "mla.sparse_decode: an index is outside, expected -1 <= index < N * S",
    ]
