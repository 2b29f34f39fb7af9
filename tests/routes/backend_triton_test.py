# SPDX-License-Identifier: Apache-2.0
"""Triton's kernels, by its interpreter on the CPU: the standard cases of each, and one that a user registers.

On a GPU: cuda_triton.py. Each program runs by itself, for TRITON_INTERPRET must be set before Triton is imported.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import anyop
import pytest

HERE = Path(__file__).parent
KERNELS = sorted(
    name
    for name in anyop.list_ops("anyop")
    if any(kernel["backend"] == "triton" for kernel in anyop.metadata(name)["kernels"])
)
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or importlib.util.find_spec("torch") is None,
    reason="triton or torch is not installed (Triton has wheels for x86-64 Linux only)",
)


def run(*command, **environment):
    """What a program printed, with the interpreter on."""
    environment = {"TRITON_INTERPRET": "1", "ANYOP_FALLBACK": "silent", **environment}
    ran = subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def interpreted():
    return json.loads(run(HERE / "triton_interpreted.py"))


def test_there_are_kernels():
    expected = {
        "rms_norm",
        "rms_norm_backward",
        "layer_norm",
        "softmax",
        "silu_and_mul",
        "add",
        "gelu",
        "silu",
    }
    assert expected <= set(KERNELS)
    for name in KERNELS:
        *images, kernel = (k for k in anyop.metadata(name)["kernels"] if k["backend"] == "triton")
        assert (kernel["form"], kernel["device"], kernel["needs"]) == ("python", "cuda", ["triton"])
        assert "float64" not in kernel["when"] and kernel["priority"] < 0
        assert [k["form"] for k in images] == ["triton"] * (name != "rms_norm_backward")


@needs_triton
@pytest.mark.drawn(2)
@pytest.mark.parametrize("name", KERNELS)
def test_standard_cases(interpreted, name):
    """All of float32, float16 and bfloat16 that the condition admits run in Triton, and fit the reference."""
    found = interpreted[name]
    assert found["failures"] == [] and found["cases"] >= 20
    conditions = next(k for k in anyop.metadata(name)["kernels"] if k["backend"] == "triton")[
        "when"
    ]
    assert found["ran"]["triton_on_cpu"] >= found["cases"] * (
        0.5 if "contiguous" in conditions else 1
    )
    assert "contiguous" in conditions or found["ran"]["cpu"] == 0


OWN = """
import anyop, numpy as np, triton, triton.language as tl

@triton.jit
def _twice(x, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, at < count), at < count)

@anyop.register("silu", backend="triton", name="mine", device="cpu", dtypes=["float32"])
def twice(x, *, out):
    _twice[(triton.cdiv(x.numel(), 16),)](x, out, x.numel(), 16)

x = np.arange(40, dtype=np.float32)
with anyop.use("triton"):
    assert anyop.explain("silu", x).chosen == "triton_on_cpu"  # of a higher priority
    anyop.unregister("silu", "triton_on_cpu")
    assert anyop.explain("silu", x).chosen == "mine"
    assert (anyop.silu(x) == 2 * x).all()
"""


@needs_triton
def test_a_users_kernel(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    run(tmp_path / "own.py")


@needs_triton
def test_the_environment_is_enough():
    """ANYOP_OP_SILU=triton runs the interpreter, and no operator was asked about before."""
    code = "import anyop, numpy as np; anyop.silu(np.ones(3, 'f4'))"
    assert "triton" not in run(
        "-c", f"import sys; {code}; print([m for m in sys.modules if m == 'triton'])"
    )
    routed = f"{code}; import sys; print('triton' in sys.modules)"
    assert run("-c", routed, ANYOP_OP_SILU="triton").strip() == "True"


def test_the_cpu_has_none_without_the_interpreter():
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    code = "import anyop; print(anyop.backends('silu'))"
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert "'triton'" in ran.stdout and "triton_on_cpu" not in ran.stdout


def test_a_missing_triton_explains_itself():
    code = """
import sys
sys.modules["triton"] = None
import anyop, json
from anyop._load import core
from anyop.backend import python
(found,) = (i for i in json.loads(core.implementations("silu")) if i["name"] == "triton.python")
print(python.provide("silu", found["text"]))
"""
    pytest.importorskip("torch", reason="torch is not installed")
    assert run("-c", code).strip() == "needs triton, which is not installed (pip install triton)"
