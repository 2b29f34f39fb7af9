# SPDX-License-Identifier: Apache-2.0
"""The code on docs/paddle.md runs as it stands, in order."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("paddle", reason="PaddlePaddle is not installed")

PAGE = Path(__file__).parents[2] / "docs" / "paddle.md"


def test_code_of_the_page(tmp_path, monkeypatch):
    """As a module of its own: Paddle reads the source of what it makes a graph of."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.S | re.M)
    assert len(blocks) == 4
    (tmp_path / "paddle_page.py").write_text("\n".join(blocks))
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("paddle_page", None)
    import paddle_page

    assert paddle_page.graph(paddle_page.x).shape == [4, 64]
