# SPDX-License-Identifier: Apache-2.0
"""`anyop explain` on the command line."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from anyop.builder.gpus import gpu_archs
from anyop.command import main

pytest.importorskip("ml_dtypes", reason="arrays are drawn with it")


def run(capsys, *words: str) -> tuple[int, str, str]:
    try:
        code = main(["explain", *words])
    except SystemExit as stop:
        code = stop.code
    return (code, *capsys.readouterr())


def test_a_call_is_explained(capsys):
    code, out, _ = run(capsys, "rms_norm: rows=4 D=64 dtype=float32")
    assert code == 0 and "rms_norm on cpu:0: cpu (default)" in out
    assert "triton" in out and "serves cuda, and the tensors are on cpu" in out


def test_sizes_of_the_schema_and_scopes(capsys):
    code, out, _ = run(capsys, "rms_norm", "--use", "cpu")
    assert code == 0 and out.count("cpu (anyop.use('cpu=*'))") == 2  # prefill and decode


def test_a_device_that_is_not_here(capsys):
    """Which kernels there are is known without it."""
    code, out, _ = run(capsys, "rms_norm: rows=4 D=64", "--device", "cuda")
    assert code == 0 and "rms_norm on cuda:0: " in out
    assert out.startswith("no CUDA device is here; ") or gpu_archs()
    assert "serves cpu, and the tensors are on cuda" in out


def test_nothing_is_built(tmp_path):
    """The backend aten needs a library, which the first call builds; who asks is told that it runs."""
    pytest.importorskip("torch", reason="torch is not installed")
    ran = subprocess.run(
        [sys.executable, "-m", "anyop", "explain", "relu: X=8", "--use", "aten"],
        capture_output=True, text=True, env={**os.environ, "ANYOP_CACHE_DIR": str(tmp_path)},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "relu on cpu:0: aten (" in ran.stdout and "building" not in ran.stderr
    assert not [path for path in tmp_path.rglob("*") if path.suffix == ".so"]


def test_what_was_asked_about_is_built_by_the_call():
    """An explanation leaves an implementation as it was: the call gets the fast one."""
    pytest.importorskip("torch", reason="torch is not installed")
    code = """
import anyop, numpy as np
x = np.ones(3, np.float32)
with anyop.use("aten"):
    assert anyop.explain("relu", x).chosen == "aten"
    assert (anyop.relu(-x) == 0).all() and anyop.explain("relu", x).chosen == "aten"
state = {i["name"]: i["state"] for i in anyop._routes.implementations("relu")}
assert state["aten"] == "ready", state
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["rmsnorm"], "no operator is named rmsnorm"),
        (["rms_norm: E=3"], "E"),
        (["rms_norm", "--routes", "nowhere"], "found no preset 'nowhere'"),
        (["rms_norm", "--use", "cpux"], "unknown backend 'cpux'; did you mean 'cpu'?"),
    ],
)
def test_mistakes_are_said(capsys, words, says):
    code, _, err = run(capsys, *words)
    assert code == 1 and says in err and len(err.splitlines()) == 1


def test_an_optional_tensor_may_be_left_out(capsys):
    """Kernels without it could be neither explained nor tuned by shapes alone."""
    _, with_it, _ = run(capsys, "rms_norm: rows=4 D=64 dtype=float32")
    code, without, _ = run(capsys, "rms_norm: rows=4 D=64 dtype=float32 weight=None")
    assert code == 0 and "weight float32 64" in with_it and "weight float32" not in without
    code, _, wrong = run(capsys, "rms_norm: rows=4 D=64 x=None")
    assert code == 1 and "'x=None' in" in wrong and "weight" in wrong
