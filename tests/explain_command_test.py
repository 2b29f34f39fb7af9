# SPDX-License-Identifier: Apache-2.0
"""`anyop explain` on the command line."""

from __future__ import annotations

import pytest
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
