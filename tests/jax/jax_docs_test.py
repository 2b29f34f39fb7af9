# SPDX-License-Identifier: Apache-2.0
"""The code on docs/jax.md runs as it stands, in order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

jax = pytest.importorskip("jax", reason="jax is not installed")

PAGE = Path(__file__).parents[2] / "docs" / "jax.md"


def test_code_of_the_page():
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.S | re.M)
    assert len(blocks) == 5
    names: dict = {}
    with jax.enable_x64(
        False
    ):  # as a reader's process has it; other tests' programs may have turned it on
        for block in blocks:
            exec(compile(block, str(PAGE), "exec"), names)
    assert names["y"].shape == (8, 64) and names["program"].out_avals[0].dtype == "float32"
