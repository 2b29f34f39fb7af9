# SPDX-License-Identifier: Apache-2.0
"""The code on docs/apex.md runs as it stands; its table names every module that is there, and all that are not."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import prepared
import pytest

pytest.importorskip("torch", reason="torch is not installed")

PAGE = (Path(__file__).parents[2] / "docs" / "apex.md").read_text()


def test_code_of_the_page():
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.S | re.M)
    done = prepared.run(
        "torch",
        [sys.executable, "-c", block],
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == re.findall(r"^# (.*)$", block, re.M)


def test_the_table_names_all_extensions():
    from anyop.torch.apex import installing

    table = PAGE[PAGE.index("## What is there") : PAGE.index("## How results compare")]
    here = {row.split("|")[1] for row in table.splitlines() if "all functions" in row}
    there = set(re.findall(r"`(\w+)`", " ".join(here)))
    assert there == set(installing.EXTENSIONS)
    missing = set(installing.NOT_YET) - set(re.findall(r"`(\w+)`", table))
    assert missing <= {"_apex_gpu_direct_storage"}
