# SPDX-License-Identifier: Apache-2.0
"""The row mlu on a false CNRT: every function that fails or is missing, and codes that differ."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from false_runtimes import CNRT, ONCE, OPEN, check, make, run

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler")
TEXTS = ("cnrtGetErrorName", "cnrtGetErrorStr", "cnrtGetLibVersion")  # these cannot fail


@pytest.fixture(scope="module")
def mlu(tmp_path_factory):
    return make("mlu", tmp_path_factory.mktemp("mlu"))


def test_every_function_once(mlu):
    """But for images and copies between devices, which the row does not have."""
    code, text = run(mlu.environment, "-c", ONCE, "mlu")
    told = [line for line in text.splitlines() if "images are not started" not in line]
    assert code == 0 and told[:3] == ["devices 2", "current 0", "name Cambricon MLU 12 5 92"], text
    assert told[3] == "lacks copy_between_on", text
    assert told[4:6] == ["query_stream 1", "query_event 1"], text
    assert "was not allocated by this device (foreign, or freed)" in told[-1], text
    assert len(told) == 9, text


@pytest.mark.parametrize("function", [name for name in CNRT if name not in TEXTS])
def test_an_error_of_every_function_is_told_with_cnrts_own_text(function, mlu):
    broken = {"ANYOP_FALSE": f"fail={function}:1"}
    code, text = run(mlu.environment | broken, "-c", ONCE, "mlu")
    assert code == 0 and 'says "a false error" (cnrtErrorUnknown, 999991)' in text, text


@pytest.mark.parametrize("function", CNRT)
def test_a_name_that_is_missing(function, tmp_path):
    runtime = make("mlu", tmp_path, lacks=[function])
    code, text = run(runtime.environment, "-c", OPEN, "mlu")
    expected = f"mlu: Cambricon CNRT: {runtime.library} lacks {function}; install Cambricon's"
    assert code == 0 and expected in text, text


@pytest.mark.parametrize(
    ("words", "only", "passes", "message"),
    [
        ("pending=632014", "independence", True, "1 of 1 checks passed"),
        ("pending=632006", "independence", False, "WRONG independence"),
        ("oom=999991", "allocation", False, "2^60 bytes: status 6, expected 4"),
        ("memory=1000", "allocation", False, '"out of false memory"'),
    ],
)
def test_what_a_check_sees(words, only, passes, message, mlu):
    """An older CNRT says that it is busy where a newer one is not ready."""
    code, text = check(mlu.environment | {"ANYOP_FALSE": words}, "mlu", only)
    assert (code == 0) == passes and message in text, text


def test_no_device(mlu):
    code, text = run(mlu.environment | {"ANYOP_FALSE": "devices=0"}, "-c", OPEN, "mlu")
    assert code == 0 and "devices range(0, 0)" in text
    assert "finds no device of Cambricon CNRT; install Cambricon's driver and CNToolkit" in text
