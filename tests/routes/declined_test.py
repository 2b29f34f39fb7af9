# SPDX-License-Identifier: Apache-2.0
"""Which calls a Python kernel takes: conditions of arguments, and calls that it declines when it sees them."""

from __future__ import annotations

import os
import subprocess
import sys

import anyop
import numpy as np
import pytest


@pytest.fixture
def register():
    """anyop.register for one test."""
    made = []

    def add(op, name, function, **options):
        made.append((op, name))
        return anyop.register(op, name, function, **options)

    yield add
    for op, name in made:
        if name in anyop.backends(op):
            anyop.unregister(op, name)


def test_a_call_that_is_declined_goes_on(register, capfd):
    """To the next of the route; the reason is told once."""

    def picky(x, weight, eps):
        if len(x) == 5:
            raise anyop.DeclinedError("takes other numbers of rows than 5")
        return x * 0

    register("rms_norm", "picky", picky)
    x, weight = np.ones((5, 33), np.float32), np.ones(33, np.float32)
    with anyop.use("picky"):
        assert "left a call" not in str(anyop.explain("rms_norm", x, weight))
        found = [anyop.rms_norm(x, weight) for _ in range(3)]
        assert not anyop.rms_norm(x[:4], weight).any()
        said = capfd.readouterr().err
    assert all((one == anyop.rms_norm(x, weight)).all() for one in found)
    why = "rms_norm: picky takes other numbers of rows than 5; cpu runs instead"
    assert said.count(why) == 1 and "DeclinedError" not in said
    with anyop.use("picky"):
        route = anyop.explain("rms_norm", x, weight)
    assert route.chosen == "picky"  # who sees a call alone knows that
    (line,) = (line for line in str(route).splitlines() if line.startswith("  picky "))
    why = "runs; has left a call to the next: takes other numbers of rows than 5"
    assert line.endswith(why), line


def test_a_call_that_others_are_faster_at_is_left_in_silence(register, capfd):
    """Where a route names the kernel it is told all the same."""

    def slow(x, weight, eps):
        raise anyop.DeclinedError("")

    register("rms_norm", "slow", slow, priority=5)
    x, weight = np.ones((5, 33), np.float32), np.ones(33, np.float32)
    assert anyop.rms_norm(x, weight).any() and not capfd.readouterr().err
    (line,) = (
        line for line in str(anyop.explain("rms_norm", x, weight)).splitlines() if "  slow " in line
    )
    assert line.endswith(
        "has left a call to the next: leaves the call to others, which are faster"
    ), line
    with anyop.use("slow"):
        anyop.rms_norm(x, weight)
    assert (
        "slow leaves the call to others, which are faster; cpu runs instead"
        in capfd.readouterr().err
    )


def test_a_call_that_is_declined_may_be_refused():
    """In a process that allows no fallback, with the reason."""
    code = """
import anyop, numpy as np
def never(x):
    raise anyop.DeclinedError("takes nothing")
anyop.register("silu", "never", never)
with anyop.use("never"):
    anyop.silu(np.ones(3))
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True,
        env={**os.environ, "ANYOP_FALLBACK": "error"},
    )  # fmt: skip
    said = "NotImplementedError: silu: never takes nothing; cpu would run instead, which"
    assert said in ran.stderr, ran.stderr


def test_conditions_of_arguments_that_are_no_tensors(register):
    """Words of floats, ints, optional tensors; absent numbers hold for nothing."""
    q = np.random.default_rng(0).standard_normal((1, 2, 3, 4), dtype=np.float32)

    def nothing(q, k, v, *rest, out):
        out[...] = 0

    def runs(**options):
        return not anyop.attention(q, q, q, **options).any()

    for when, holds, fails, why in [
        ("softcap=0", {}, {"softcap": 0.5}, "takes softcap=0, and softcap is 0.5"),
        ("softcap>=1", {"softcap": 1.5}, {"softcap": 0.75}, "takes softcap>=1, and softcap is 0.75"),
        ("causal=1", {"causal": True}, {}, "takes causal=1, and causal is 0"),
        ("offset!=-3", {"offset": 3}, {"offset": -3}, "takes offset!=-3, and offset is -3"),
        ("scale<1", {"scale": 0.5}, {}, "takes scale<1, and that is absent"),
        ("given(mask)=0", {}, {"mask": np.ones((3, 3), bool)}, "takes given(mask)=0, and it is given"),
        ("given(sinks)=1", {"sinks": np.ones(2, np.float32)}, {}, "takes given(sinks)=1, and it is absent"),
    ]:  # fmt: skip
        register("attention", "when", nothing, when=when, priority=5)
        assert runs(**holds) and not runs(**fails), when
        found = anyop.explain("attention", q, q, q, **fails).candidates
        assert {c["name"]: c["why_not"] for c in found}["when"] == why
        anyop.unregister("attention", "when")


LATE = """\
schema = "late::late(Tensor x) -> Tensor"
brief = "A kernel that takes no call, and one that only a route chooses."
math = "out = 0"
source = "the tests"

[arguments]
x = "any"

[shapes]
x = "*X"
out = "*X"

[dtypes]
x = ["float32"]
out = "x"

[kernels]
cpu = { file = "late.cc" }
cpu_late = { file = "late.cc", priority = -1000 }

[tolerance]
float32 = 0
"""
LATE_KERNEL = """\
#include "late/ops/late.h"

int32_t late_late_cpu(const LateArgs*, AnyopCall* call) {
  return call->fail(call, kAnyopDeclined, "it takes nothing");
}
int32_t late_late_cpu_late(const LateArgs*, AnyopCall* call) {
  return call->fail(call, kAnyopDeclined, "nobody asks for it");
}
"""


def test_who_comes_later_is_no_reason(register, tmp_path, capfd):
    """Behind what runs instead; it could have run."""
    (tmp_path / "late.toml").write_text(LATE)
    (tmp_path / "late.cc").write_text(LATE_KERNEL)
    anyop.load(anyop.build(tmp_path, out=tmp_path / "liblate.so"))
    late = anyop.ops.late.late
    register("late.late", "mine", lambda x: x + 1, priority=-5)
    assert late(np.zeros(2, np.float32)).tolist() == [1, 1]
    assert "late: cpu it takes nothing; mine runs instead\n" in capfd.readouterr().err
