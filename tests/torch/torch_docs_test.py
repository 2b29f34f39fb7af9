# SPDX-License-Identifier: Apache-2.0
"""The code on docs/pytorch.md runs as it stands, in order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

PAGE = Path(__file__).parents[2] / "docs" / "pytorch.md"


def test_code_of_the_page(capsys):
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.S | re.M)
    assert len(blocks) == 7
    names: dict = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
        printed = re.findall(r"^# (.*)$", block, re.M)
        assert capsys.readouterr().out.splitlines() == printed
