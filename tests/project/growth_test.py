# SPDX-License-Identifier: Apache-2.0
"""Two hundred operators more: torch takes them all, they are called like others, and each costs no more than the first.

They are made up of the project's own files (bench/calls/growth.py, with times); an eighth of them by the commit.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench" / "calls"))

from drawn import drawn
from growth import MORE, PROGRAM, made_up

KB_EACH = 80  # 45 on x86-64 with pages of 4 KB: torch's dispatcher 24, schemas and tables 7, Python 7, the core 7
USE = """
names = [name.partition(".")[2] for name in anyop.list_ops() if name.startswith("grown.")]
for name in names:
    assert getattr(torch.ops.grown, name).default._schema.name == f"grown::{name}"
    assert str(anyop.schema(f"grown.{name}")).startswith(f"grown::{name}(")
name = next(name for name in names if anyop.metadata(f"grown.{name}")["inputs"][0]["kind"] == "Tensor")
try:
    getattr(anyop.ops.grown, name)()
except TypeError as error:
    assert f"grown.{name}: " in str(error), error
else:
    raise AssertionError("an argument is missing")
"""


def test_the_last_costs_no_more_than_the_first(tmp_path):
    def run(*libraries: str) -> dict[str, float]:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM + USE * bool(libraries), *libraries],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    numbers = drawn(range(MORE), 8)
    library = made_up(tmp_path, numbers)
    few, many = run(), run(library)
    assert many["operators"] == few["operators"] + len(numbers)
    assert 1e3 * (many["resident"] - few["resident"]) < KB_EACH * len(numbers)
