# SPDX-License-Identifier: Apache-2.0
"""examples/flashinfer on CUDA: results against torch's, from torch, JAX and CuPy, on the caller's stream."""

from __future__ import annotations

import sys
from pathlib import Path

import anyop
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("flashinfer", reason="flashinfer-python is not installed")
if not torch.cuda.is_available():
    pytest.skip("there is no CUDA device that torch can use", allow_module_level=True)

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "flashinfer"))
import flashinfer_cases as cases  # noqa: E402
import run as example  # noqa: E402

cases.load()


@pytest.mark.parametrize("name", cases.CASES)
def test_against_the_reference(name):
    assert cases.check(cases.CASES[name]()) <= 1


def test_changed_arguments():
    example.added()


def test_sampling():
    assert example.sampling().startswith("165 kinds of tokens")


@pytest.mark.parametrize("framework", ["jax", "cupy"])
def test_other_frameworks(framework):
    said = example.from_jax() if framework == "jax" else example.from_cupy()
    if said != "equal":
        pytest.skip(said)


def test_on_the_callers_stream():
    x, weight = cases.normal(64, 4096), cases.normal(4096)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), anyop.use("flashinfer"):
        torch.cuda._sleep(200_000_000)
        late = x * 2
        found = anyop.rms_norm(late, weight)  # on another stream it would read late too early
    stream.synchronize()
    with anyop.use("aten"):
        assert cases.worst([found], [anyop.rms_norm(x * 2, weight)]) <= 1


def test_in_a_cuda_graph():
    x, weight = cases.normal(64, 4096), cases.normal(4096)
    with anyop.use("flashinfer"):
        anyop.rms_norm(x, weight)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = anyop.rms_norm(x, weight)
    x.mul_(-1)
    graph.replay()
    with anyop.use("aten"):
        assert cases.worst([found], [anyop.rms_norm(x, weight)]) <= 1


def test_an_error_of_flashinfer_is_the_calls():
    q = cases.normal(4, 3, 192)  # a size that it has no kernel for
    positions = torch.arange(4, device="cuda", dtype=torch.int32)
    message = r"^fi\.rope: apply_rope_pos_ids: .*Unsupported head_dim: 192"
    with anyop.use("flashinfer"), pytest.raises(anyop.InternalError, match=message):
        anyop.ops.fi.rope(q, q, positions, 192)


def test_float32_is_not_taken_and_says_why():
    x = cases.normal(4, 64, dtype=torch.float32)
    with anyop.use("flashinfer"):
        explained = anyop.explain("rms_norm", x, x[0])
    reasons = {found["name"]: found["why_not"] for found in explained.candidates}
    assert explained.fallback and "dtype" in reasons["flashinfer"]
