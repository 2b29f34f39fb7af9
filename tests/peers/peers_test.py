# SPDX-License-Identifier: Apache-2.0
"""tests/peers/attention.py without a GPU: it says that it skips, and its judgement of sides that are made up here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
PEERS = Path(__file__).parent


def python(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, cwd=PEERS,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip


def test_without_a_gpu_it_skips_and_says_so():
    ran = python("attention.py")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "skipped: there is no CUDA device that torch can use\n"


JUDGED = """
import torch
from attention import *
torch.cuda.synchronize = lambda: None
class Ours:
    def use(self, name): return contextlib.nullcontext()
    def backends(self, operator): return ["cuda"]
import contextlib
out, lse = torch.randn(2, 4, 6, 8), torch.randn(2, 4, 6)
out[0, 0, 0, 0] = float("nan")
def case(ours, peer):
    return Case("merge_states", "shape", lambda: ours, {"peer": lambda: peer},
        exact=lambda: out[1].double(), part=lambda found: found[0].reshape(2, 4, 6, 8)[1])
turned = out.transpose(1, 2)
assert laid_out_like(out, turned).shape == out.shape and difference(out, turned) == 0
for what, ours, peer in [
    ("same", (out, lse), (out, lse)),
    ("base 2", (out, lse), (out, lse / math.log(2))),
    ("lse", (out, lse + 0.1), (out, lse)),
    ("nan", (out.nan_to_num(), lse), (out, lse)),
    ("peer is off", (out, lse), (out + 1, lse)),
    ("ours is off", (out + 1, lse), (out, lse)),
    ("first half", (torch.cat([out[:1] + 0.2, out[1:]]), lse), (out, lse)),
]:
    print(what, len(list(check_case(case(ours, peer), Ours(), ["cuda"]))), sep=": ")
"""


def test_what_is_wrong_with_ours():
    """Another's mistake is not ours; a difference where float64 was not asked is."""
    ran = python("-c", JUDGED)
    assert ran.returncode == 0, ran.stderr
    lines = [
        line for line in ran.stdout.splitlines() if ": " in line and "merge_states" not in line
    ]
    assert lines == [
        "same: 0", "base 2: 0", "lse: 1", "nan: 1", "peer is off: 0", "ours is off: 2", "first half: 1",
    ]  # fmt: skip
