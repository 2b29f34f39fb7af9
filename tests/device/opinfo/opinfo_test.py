# SPDX-License-Identifier: Apache-2.0
"""torch's OpInfo on the device against torch's own: a few samples of a twentieth of the entries, drawn
by the commit; all with ANYOP_TEST_FULL=1.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("expecttest", reason="expecttest, which torch.testing needs, is not installed")

import opinfo  # noqa: E402
import opinfo_tensors  # noqa: E402
from drawn import FULL, part  # noqa: E402

SAMPLES = "0" if FULL else "5,2,2,2"  # by dtype
PARTS = 1 if FULL else 20
# Refused, with torch's own text: the device has no sparse layouts.
REFUSED = {"to_sparse", "sparse_sampled_addmm", "sparse_mm_reduce"}
# torch's Python chooses how it accumulates half precision by the name of the device.
BY_NAME = {f"nn_functional_linear_cross_entropy_chunked{form}" for form in ("", "_none")}
# torch 2.9's own mvlgamma_ of integers ends the process, on its own devices too.
DEADLY = {f"mvlgamma_mvlgamma_p_{p}" for p in (1, 3, 5)}
LEAST = {
    "float32": 640,
    "int64": 430,
    "bfloat16": 510,
    "complex64": 360,
}  # entries that compare, of all


@cache
def rows(platform: str) -> dict[str, dict]:
    """By dtype, from processes of their own: an entry may end one."""
    command = [sys.executable, opinfo.__file__, "--json", "--dtype", "all"]
    command += ["--jobs", "2" if FULL else "1"]  # each process imports for seconds
    command += ["--samples", SAMPLES, "--platform", platform]
    command += ["--part", f"{part(PARTS, 'opinfo')}/{PARTS}"]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr[-3000:]
    lines = process.stdout.splitlines()
    found = [json.loads(line[4:]) for line in lines if line.startswith("row ")]
    text = "\n".join(line for line in lines if not line.startswith("row "))
    return {"text": text, **{row["dtype"]: row for row in found}}


@pytest.mark.anyplatform
@pytest.mark.parametrize("dtype", opinfo.DTYPES)
def test_entries(dtype, platform, report):
    found = rows(platform)[dtype]
    if dtype == opinfo.DTYPES[0]:
        report += rows(platform)["text"].splitlines()
    assert found["entries"]["compared"] + len(found["fallback"]) >= (
        LEAST[dtype] if FULL else LEAST[dtype] * 0.75 / PARTS
    )
    expected = REFUSED | BY_NAME if dtype == "bfloat16" else REFUSED
    if dtype == "int64" and torch.__version__.startswith("2.9."):
        expected = expected | DEADLY
    assert set(found["wrong"]) <= expected, found["wrong"]
    elsewhere = [text for text in found["wrong"].values() if "a tensor of" in text]
    assert not elsewhere, "a tensor of another device is no refusal"
    assert len(found["fallback"]) <= 40, found["fallback"]
    assert not found["wrong_with_fallback"]
    # Some kernels take another path for memory that lies elsewhere in a cache line.
    assert found["entries"]["right"] - found["entries"]["bitwise"] <= 5, found["other_bits"]


def changed(x: torch.Tensor, byte: int) -> torch.Tensor:
    other = x.clone()
    other.view(torch.uint8)[byte] ^= 64
    return other


@pytest.mark.cpu
def test_a_wrong_result_is_seen():
    """What judges the entries is judged itself."""
    x = torch.randn(3).requires_grad_()
    judge = opinfo_tensors.difference
    assert judge([x], [x], "cpu", "cpu") is None
    assert judge(x.detach(), changed(x.detach(), 0), "cpu", "cpu") == opinfo_tensors.NEAR
    assert "other values" in judge(x.detach(), changed(x.detach(), 3), "cpu", "cpu")
    assert "a tensor of cpu, expected meta" in judge(x, x, "cpu", "meta")
    assert "requires_grad" in judge(x, x.detach(), "cpu", "cpu")
    assert "shape" in judge(x, x[:2], "cpu", "cpu") and "dtype" in judge(x, x.int(), "cpu", "cpu")
    assert "2 results, expected 1" in judge([x], [x, x], "cpu", "cpu")
    assert "expected" in judge(1, True, "cpu", "cpu") and judge("cpu", "cpu", "cpu", "cpu") is None


@pytest.mark.cpu
def test_arguments_keep_their_geometry():
    base = torch.randn(5, 6)
    views = [base[1::2, 2:], base.T, torch.randn(2, dtype=torch.complex64).conj(), base[0]]
    there = opinfo_tensors.moved([*views, views[0], "cpu"], "cpu", "meta")
    assert there.pop() == "meta" and there[4] is there[0] and there[2].is_conj()
    for a, b in zip(views, there):
        assert (a.stride(), a.storage_offset()) == (b.stride(), b.storage_offset())
    here = opinfo_tensors.moved(views, "cpu", "cpu")
    here[0].zero_()
    assert here[1][2:, 1].abs().sum() == 0 and here[3].abs().sum() > 0 and base[1, 2] != 0
