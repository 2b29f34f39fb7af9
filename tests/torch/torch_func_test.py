# SPDX-License-Identifier: Apache-2.0
"""torch.func: grad, vjp, jacrev, vmap in every way that an operator can be batched, functional_call."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import anyop.torch
import pytest
import torch
from anyop import testing
from anyop.cases.dtype_choices import is_floating
from anyop.testing.torch_cases import torch_calls
from anyop.torch.adapter import vmap as rules
from torch.func import functional_call, grad, jacrev, vjp, vmap
from torch.utils._pytree import tree_leaves

# What returns nothing is for the test beside it, and for third_party_test.py.
SUBJECTS = {
    s.name: s
    for s in testing.find_subjects(Path(__file__).parents[2] / "ops")
    if s.results and not s.metadata["mutated"]
}
F = torch.nn.functional


def tensors(*shapes):
    generator = torch.Generator().manual_seed(4)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def packet(subject):
    return getattr(getattr(torch.ops, subject.metadata["namespace"]), subject.metadata["name"])


def varied(tensor, count):
    """count tensors like it, of different values where these are floating."""
    if not is_floating(str(tensor.dtype)):
        return torch.stack([tensor] * count)
    wide = (
        tensor.float() if tensor.element_size() == 1 else tensor
    )  # of 8 bits torch has no product
    return torch.stack([(wide * (1 + 0.25 * n)).to(tensor.dtype) for n in range(count)])


@pytest.mark.parametrize("subject", SUBJECTS.values(), ids=SUBJECTS)
def test_vmap_is_a_loop(subject):
    """Every set of batched arguments, at the first, the last and a mixed dimension: as one call after the other."""
    compared = 0
    for label, args, kwargs in torch_calls(subject, ("base", "absent", "broadcast")):
        places = [at for at, value in enumerate(args) if isinstance(value, torch.Tensor)]
        if not places:
            pytest.skip("takes lists of tensors, whose elements are not batched one by one")
        for chosen in [places, *([at] for at in places)]:
            for dims in (
                [0] * len(args),
                [-1] * len(args),
                [at % 2 - 1 for at in range(len(args))],
            ):
                in_dims = tuple(dims[at] if at in chosen else None for at in range(len(args)))
                batched = tuple(
                    varied(value, 3).movedim(0, dims[at]) if at in chosen else value
                    for at, value in enumerate(args)
                )
                found = vmap(partial(packet(subject), **kwargs), in_dims)(*batched)
                for n in range(3):
                    one = [
                        value.select(dims[at], n).contiguous() if at in chosen else value
                        for at, value in enumerate(batched)
                    ]
                    expected = tree_leaves(packet(subject)(*one, **kwargs))
                    for a, b in zip(tree_leaves(found), expected):
                        torch.testing.assert_close(a[n], b, equal_nan=True, msg=label)
                        compared += 1
        if compared > 400:
            break
    assert compared >= 9, label


def test_vmap_folds_where_the_schema_allows(monkeypatch):
    """One call, not one for each element; a condition that counts dimensions forbids it."""
    x, w, y, m = tensors((6, 3, 8), (8,), (2, 8), (6, 8, 5))
    cases = {
        "rms_norm": lambda: vmap(anyop.rms_norm, (0, None))(x, w),
        "linear": lambda: vmap(anyop.linear, (0, None))(x, y),
        "add": lambda: vmap(anyop.add, (0, None))(x[:, 0], y),
        "matmul": lambda: vmap(anyop.matmul)(x, m),
        "silu": lambda: vmap(vmap(anyop.silu))(x),
        "softmax": lambda: vmap(anyop.softmax)(x),
    }
    loops = []
    original = rules._sequential

    def watched(operator, *args):
        loops.append(operator.name)
        return original(operator, *args)

    monkeypatch.setattr(rules, "_sequential", watched)
    for name, call in cases.items():
        call()
        assert loops == (["softmax"] if name == "softmax" else []), name
    torch.testing.assert_close(cases["add"](), x[:, :1] + y)
    torch.testing.assert_close(cases["matmul"](), x @ m)


def test_vmap_over_nothing():
    x, w = torch.empty(0, 3, 8), torch.ones(8)
    assert vmap(anyop.rms_norm, (0, None))(x, w).shape == (0, 3, 8)
    assert vmap(anyop.softmax)(x).shape == (0, 3, 8)
    values, indices = vmap(lambda t: anyop.topk(t, 2))(x)
    assert values.shape == (0, 3, 2) and indices.dtype == torch.int64


@pytest.mark.parametrize(
    "norm", [anyop.rms_norm, torch.ops.anyop.rms_norm], ids=["anyop", "torch.ops"]
)
def test_grad_vjp_and_jacobian(norm):
    x, w, g = tensors((5, 8), (8,), (5, 8))

    def loss(function):
        return lambda x, w: (function(x, w) * g).square().sum()

    def expected(x, w):
        return F.rms_norm(x, (8,), w, 1e-6)

    for argnums in (0, 1, (0, 1)):
        found, wanted = (grad(loss(f), argnums)(x, w) for f in (norm, expected))
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(
        vjp(norm, x, w)[1](g), vjp(expected, x, w)[1](g), atol=1e-5, rtol=1e-5
    )
    torch.testing.assert_close(jacrev(norm)(x, w), jacrev(expected)(x, w), atol=1e-5, rtol=1e-5)
    each = vmap(grad(lambda row: norm(row, w).square().sum()))(x)
    wanted = vmap(grad(lambda row: expected(row, w).square().sum()))(x)
    torch.testing.assert_close(each, wanted, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        grad(lambda x: vmap(norm, (0, None))(x, w).square().sum())(x),
        grad(lambda x: expected(x, w).square().sum())(x), atol=1e-5, rtol=1e-5,
    )  # fmt: skip


def test_a_second_derivative_is_an_error_at_every_level():
    x, w = tensors((5, 8), (8,))

    def inner(x):
        return grad(lambda x: anyop.rms_norm(x, w).square().sum())(x).sum()

    assert inner(x).shape == ()
    with pytest.raises(NotImplementedError, match="rms_norm_backward: has no gradient"):
        grad(inner)(x)
    with pytest.raises(NotImplementedError, match=r"rms_norm_backward: .*forward mode"):
        torch.func.hessian(lambda x: anyop.rms_norm(x, w).sum())(x)


def test_functional_call_and_ensembles():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(4, 8))
            self.bias = torch.nn.Parameter(torch.randn(4))

        def forward(self, x):
            return anyop.gelu(anyop.linear(x, self.weight, self.bias))

    models = [Layer() for _ in range(3)]
    parameters, _ = torch.func.stack_module_state(models)
    (x,) = tensors((5, 8))

    def run(parameters, x):
        return functional_call(models[0], parameters, (x,))

    found = vmap(run, (0, None))(parameters, x)
    for n, model in enumerate(models):
        wanted = F.gelu(F.linear(x, model.weight, model.bias))
        torch.testing.assert_close(found[n], wanted)
    gradients = grad(lambda p: run(p, x).square().sum())(dict(models[1].named_parameters()))
    F.gelu(F.linear(x, models[1].weight, models[1].bias)).square().sum().backward()
    torch.testing.assert_close(gradients["weight"], models[1].weight.grad, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(gradients["bias"], models[1].bias.grad, atol=1e-4, rtol=1e-4)
