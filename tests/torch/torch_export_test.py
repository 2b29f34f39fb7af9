# SPDX-License-Identifier: Apache-2.0
"""torch.export with dynamic shapes, saved and run in a fresh process."""

from __future__ import annotations

import sys

import anyop.torch
import prepared
import pytest
import torch


class Model(torch.nn.Module):
    """Tokens to a mean over each sequence: embedding, normalisation, a gated layer, attention, pooling."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)

        def parameter(*shape):
            return torch.nn.Parameter(torch.randn(shape, generator=generator) / 4)

        self.table, self.scale = parameter(50, 16), parameter(16)
        self.up, self.down, self.bias = parameter(48, 16), parameter(16, 24), parameter(16)

    def forward(self, tokens, mask):
        x = anyop.embedding(tokens, self.table)
        y = anyop.rms_norm(x, self.scale)
        y = anyop.silu_and_mul(anyop.linear(y, self.up))
        x = anyop.add(x, anyop.linear(y, self.down, self.bias))
        heads = x.unflatten(-1, (4, 4)).transpose(1, 2).contiguous()
        allowed = mask[:, None, None, :].bool()
        x = x + anyop.attention(heads, heads, heads, mask=allowed).transpose(1, 2).flatten(2)
        values, indices = anyop.topk(anyop.masked_mean(x, mask), 3)
        return anyop.softmax(values), indices


def inputs(batch, length):
    generator = torch.Generator().manual_seed(batch)
    tokens = torch.randint(50, (batch, length), generator=generator)
    mask = torch.rand((batch, length), generator=generator) < 0.8
    return tokens, mask.float()


def exported():
    batch, length = torch.export.Dim("batch", min=2), torch.export.Dim("length", min=2)
    shapes = {"tokens": {0: batch, 1: length}, "mask": {0: batch, 1: length}}
    with torch.no_grad():
        return torch.export.export(Model(), inputs(3, 7), dynamic_shapes=shapes)


SIZES = ((3, 7), (5, 11), (17, 2))
CHECK = """
import sys, torch, anyop.torch
sys.path.insert(0, sys.argv[2])
expected = torch.load(sys.argv[2] + "/expected.pt")
torch.set_grad_enabled(False)
run = LOAD
for arguments, (values, indices) in expected:
    found = run(*arguments)
    torch.testing.assert_close(found[0], values, atol=1e-5, rtol=1e-5)
    assert torch.equal(found[1], indices)
print("right", len(expected))
"""


def run_elsewhere(folder, path, load):
    model = Model()
    with torch.no_grad():
        expected = [(inputs(*size), model(*inputs(*size))) for size in SIZES]
    torch.save(expected, folder / "expected.pt")
    command = [sys.executable, "-c", CHECK.replace("LOAD", load), str(path), str(folder)]
    found = prepared.run("torch", command, timeout=300)
    assert found.stdout == "right 3\n", found.stderr


def test_exported_saved_and_run_elsewhere(tmp_path):
    program = exported()
    targets = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert {"anyop.rms_norm.default", "anyop.attention.default", "anyop.topk.default"} <= targets
    torch.export.save(program, tmp_path / "model.pt2")
    run_elsewhere(tmp_path, tmp_path / "model.pt2", "torch.export.load(sys.argv[1]).module()")


def test_an_exported_program_needs_the_operators(tmp_path):
    """Without anyop.torch, torch says which operator it misses; nothing crashes."""
    torch.export.save(exported(), tmp_path / "model.pt2")
    program = f"import torch; torch.export.load({str(tmp_path / 'model.pt2')!r})"
    found = prepared.run("torch", [sys.executable, "-c", program], timeout=300)
    assert found.returncode == 1 and "anyop" in found.stderr, found.stderr


def test_sizes_that_do_not_fit_are_refused_in_export():
    class Wrong(torch.nn.Module):
        def forward(self, x, w):
            return anyop.rms_norm(x, w[1:])

    with pytest.raises(Exception, match="rms_norm: weight has shape"):
        torch.export.export(Wrong(), (torch.randn(3, 8), torch.randn(8)))


FIRST = """
import sys, torch, anyop
from torch.fx.experimental.proxy_tensor import make_fx
class Calls(torch.nn.Module):
    def forward(self, x, w):
        return CALL
x, w = torch.randn(3, 8), torch.randn(8)
trace = {
    "export": lambda: torch.export.export(Calls(), (x, w)).module(),
    "make_fx": lambda: make_fx(Calls())(x, w),
    "symbolic": lambda: make_fx(Calls(), tracing_mode="symbolic")(x, w),
    "pre_dispatch": lambda: make_fx(Calls(), pre_dispatch=True)(x, w),
}[sys.argv[1]]
graph = trace()
called = [node.target for node in graph.graph.nodes if node.op == "call_function"]
print(*(target for target in called if isinstance(target, torch._ops.OpOverload)))
torch.testing.assert_close(graph(x, w), Calls()(x, w))
"""


@pytest.mark.parametrize("how", ["export", "make_fx", "symbolic", "pre_dispatch"])
@pytest.mark.parametrize(
    ("call", "target"),
    [
        ("anyop.rms_norm(x, w)", "anyop.rms_norm.default"),
        ("anyop.aten.mul(x, w)", "aten.mul.Tensor"),
    ],
)
@pytest.mark.drawn(3)
def test_a_first_call_leaves_nothing_else_in_a_graph(how, call, target):
    """What anyop asks torch once, at first use, no trace sees."""
    program = [sys.executable, "-c", FIRST.replace("CALL", call), how]
    found = prepared.run("torch", program, timeout=300)
    assert found.stdout.split() == [target], found.stdout + found.stderr[-2000:]
