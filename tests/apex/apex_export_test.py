# SPDX-License-Identifier: Apache-2.0
"""anyop.torch.apex in graphs: torch.jit.trace and torch.onnx.export see standard operators; any lengths compile."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from anyop.torch import apex  # noqa: E402
from anyop.torch.apex.transformer import AttnMaskType, functional  # noqa: E402


class Call(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function, *more):
        super().__init__()
        self.function, self.more = function, more

    def forward(self, *inputs):
        return self.function(*inputs, *self.more)


def images(t, *tables):
    return functional.fused_apply_rotary_pos_emb_2d(t, 4, 6, *tables)


def softmax(kind):
    def mask_func(scores, mask):
        return scores.masked_fill(mask, -10000.0)

    return apex.FusedScaleMaskSoftmax(True, False, kind, True, mask_func, True, 0.5)


def cases():
    """Of each name a module and its inputs."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape):
        return torch.rand(shape, generator=generator)

    norms = (
        apex.FusedLayerNorm, apex.FusedRMSNorm, apex.MixedFusedLayerNorm, apex.MixedFusedRMSNorm,
        apex.FastLayerNorm,
    )  # fmt: skip
    found = {norm.__name__: (norm(48), (drawn(3, 48),)) for norm in norms}
    heads, freqs = drawn(6, 2, 3, 8), drawn(6, 1, 1, 6)
    rope = functional.fused_apply_rotary_pos_emb
    found["rope"] = Call(rope), (heads, freqs)
    found["rope transposed"] = Call(rope, True), (heads, freqs)
    cached = functional.fused_apply_rotary_pos_emb_cached
    found["rope cached"] = Call(cached), (heads, freqs.cos(), freqs.sin())
    tables = [drawn(1, n, 1, 8) for n in (4, 4, 6, 6)]
    found["rope 2d"] = Call(images), (drawn(2, 24, 3, 16), *tables)
    scores, mask = drawn(4, 2, 24, 24).half(), drawn(4, 1, 24, 24) < 0.5
    mask[1, 0, 3] = True
    for kind in AttnMaskType:
        found[f"softmax {kind.name}"] = softmax(kind), (scores, mask)
    found["FusedDense"] = apex.FusedDense(8, 16), (drawn(5, 8),)
    found["FusedDenseGeluDense"] = apex.FusedDenseGeluDense(8, 16, 4), (drawn(5, 8),)
    found["MLP"] = apex.MLP([8, 16, 4]), (drawn(5, 8),)
    return found


CASES = cases()
TOLERANCE = {torch.float32: {}, torch.float16: {"rtol": 2e-3, "atol": 1e-3}}


@pytest.mark.parametrize("name", CASES)
def test_a_traced_graph_has_standard_operators_and_the_same_results(name):
    module, inputs = CASES[name]
    with warnings.catch_warnings():  # sizes become constants, as in any trace
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        traced = torch.jit.trace(module, inputs)
    graph = str(traced.inlined_graph)
    assert "aten::" in graph and "anyop::" not in graph
    expected = module(*inputs)
    torch.testing.assert_close(traced(*inputs), expected, **TOLERANCE[expected.dtype])


@pytest.mark.drawn(2)
@pytest.mark.parametrize("name", CASES)
def test_onnx(name):
    pytest.importorskip("onnxscript", reason="onnxscript is not installed: traced only")
    module, inputs = CASES[name]
    program = torch.onnx.export(module.eval(), inputs, dynamo=True, verbose=False)
    assert {node.domain for node in program.model.graph} == {""}
    (found,) = program.call_reference(*inputs)
    expected = module(*inputs)
    torch.testing.assert_close(found, expected, **TOLERANCE[expected.dtype])


@pytest.fixture
def no_graphs():
    """Neither before nor after: torch.compile counts its graphs by function, whoever has asked for them."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.usefixtures("no_graphs")
@pytest.mark.parametrize("kind", list(AttnMaskType))
def test_softmaxes_of_many_lengths_compile_in_one_graph(kind):
    """More lengths than torch.compile makes graphs of one function: what decides what is fused asks for ranges."""
    module = softmax(kind)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager", dynamic=True)
    for length in (20, 24, 32, 40, 48, 64, 72, 80, 96, 128, 136, 256, 16, 23):
        x, mask = torch.randn(4, 2, length, length).half(), torch.rand(4, 1, length, length) < 0.5
        torch.testing.assert_close(compiled(x, mask), module(x, mask))
