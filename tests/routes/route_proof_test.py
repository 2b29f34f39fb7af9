# SPDX-License-Identifier: Apache-2.0
"""Proof of route: with every backend but one removed, a model gives the same, or an error names what is not covered."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tokenizers", reason="the example reads texts with tokenizers")
pytest.importorskip("safetensors", reason="the example reads weights with safetensors")

ROOT = Path(__file__).resolve().parents[2]
TOLERANCE = 1e-5  # of vectors of length 1
# Embeds some texts with the tiny model, and notes which implementations ran.
PROGRAM = """
import json, sys
import numpy as np
import anyop
from anyop import testing
from examples.sentence_search import index
from examples.sentence_search.folder import model_folder
from examples.sentence_search.model import Encoder
from examples.sentence_search.tokens import Tokenizer
from examples.sentence_search.weights import read_config, read_weights

model, backends, found = sys.argv[1:]
if backends == "reference":  # NumPy's own, of one operator of the model
    @anyop.register("linear", "reference", framework="numpy")
    def linear(x, weight, bias, out):
        np.matmul(x, weight.T, out=out)
        if bias is not None:
            out += bias
for name in anyop.list_ops():
    testing.observe(name)
folder = model_folder(model)
config = read_config(folder)
texts = ["which kernel runs here?", "a", "measure how long a small piece of code takes to run"]
tokens = Tokenizer(folder.read("tokenizer.json"), config.limit).encode(texts)
np.save(found, index.embed(Encoder(anyop, config, read_weights(folder, config)), tokens, 2))
ran = {k.backend for name in anyop.list_ops() for k in testing.kernel_calls(name) if k.calls}
print(json.dumps(sorted(ran)))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    sys.path.insert(0, str(ROOT))
    from examples.sentence_search.tiny_bert import write_tiny_bert

    return str(write_tiny_bert(tmp_path_factory.mktemp("model") / "model"))


def run(
    model: str, tmp_path: Path, only: str, **more: str
) -> tuple[subprocess.CompletedProcess, Path]:
    found = tmp_path / f"{only}.npy"
    environment = {**os.environ, "ANYOP_DISABLE": f"!{only}", **more}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", PROGRAM, model, only, str(found)]
    return subprocess.run(command, capture_output=True, text=True, env=environment), found


def test_each_backend_that_covers_the_model_gives_the_same(model, tmp_path):
    pytest.importorskip("torch", reason="the backend aten is torch's kernels")
    vectors = {}
    for backend in ("cpu", "aten"):
        process, found = run(model, tmp_path, backend)
        assert process.returncode == 0, process.stderr
        assert process.stdout == f'["{backend}"]\n' and process.stderr == ""
        vectors[backend] = np.load(found)
    assert np.abs(vectors["cpu"] - vectors["aten"]).max() <= TOLERANCE
    assert np.abs(vectors["cpu"][0] - vectors["cpu"][1]).max() > 0.01  # of different texts


@pytest.mark.parametrize("backend", ["cuda", "reference", "triton"])
def test_the_first_operator_that_is_not_covered_is_named(model, tmp_path, backend):
    process, found = run(model, tmp_path, backend)
    assert process.returncode == 1 and not found.exists()
    error = process.stderr.splitlines()[-1]
    assert error.startswith("NotImplementedError: add: has no kernel for cpu (")
    assert (
        "cpu is disabled by ANYOP_DISABLE" in error and "aten is disabled by ANYOP_DISABLE" in error
    )


def test_a_backend_that_fills_the_gaps_is_said(model, tmp_path):
    """With a fallback allowed, what else runs is in the log."""
    pytest.importorskip("torch", reason="the backend aten is torch's kernels")
    process, _ = run(
        model, tmp_path, "reference", ANYOP_DISABLE="cpu", ANYOP_OP_LINEAR="reference",
        ANYOP_LOG_DISPATCH="1",
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    assert process.stdout == '["aten", "reference"]\n'
    said = [line for line in process.stderr.splitlines() if line.startswith("anyop: linear on")]
    assert said == ["anyop: linear on cpu:0: reference (ANYOP_OP_LINEAR)"]
