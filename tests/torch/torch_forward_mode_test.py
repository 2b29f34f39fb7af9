# SPDX-License-Identifier: Apache-2.0
"""torch's forward mode beside its others: dual levels, vmap, reverse mode, autocast, torch.compile; what is refused."""

from __future__ import annotations

from functools import partial

import anyop.torch
import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, linearize, vmap

F = torch.nn.functional
FORMS = pytest.mark.parametrize("form", ["anyop", "torch.ops"])


def random(*shapes, dtype=torch.float64):
    generator = torch.Generator().manual_seed(4)
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]


def function(name, form):
    return getattr(anyop if form == "anyop" else torch.ops.anyop, name)


MODELS = {
    "rms_norm": (anyop.rms_norm, lambda x, w: F.rms_norm(x, (8,), w, 1e-6), [(5, 8), (8,)]),
    "layer_norm": (anyop.layer_norm, lambda x, w, b: F.layer_norm(x, (8,), w, b), [(5, 8), (8,), (8,)]),
    "linear": (anyop.linear, F.linear, [(5, 8), (3, 8), (3,)]),
    "matmul": (anyop.matmul, torch.matmul, [(2, 5, 8), (8, 3)]),
    "gelu": (partial(anyop.gelu, approximate="tanh"), partial(F.gelu, approximate="tanh"), [(5, 8)]),
    "softmax": (lambda x: anyop.softmax(x, 0), lambda x: F.softmax(x, 0), [(5, 8)]),
    "log_softmax": (lambda x: anyop.log_softmax(x, 0), lambda x: F.log_softmax(x, 0), [(5, 8)]),
    "add": (partial(anyop.add, alpha=3), partial(torch.add, alpha=3), [(5, 8), (8,)]),
    "cast": (lambda x: anyop.cast(x, "float32"), lambda x: x.float(), [(5, 8)]),
    "chain": (
        lambda x, w, v: anyop.linear(anyop.silu(anyop.rms_norm(x, w)), v),
        lambda x, w, v: F.linear(F.silu(F.rms_norm(x, (8,), w, 1e-6)), v),
        [(5, 8), (8,), (3, 8)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("model", MODELS)
def test_as_torchs_own(model):
    """jvp, and jacfwd, which is vmap over jvp."""
    ours, theirs, shapes = MODELS[model]
    values, every = random(*shapes), tuple(range(len(shapes)))
    tangents = random(*reversed(shapes))[::-1]
    for transform in (
        lambda f: jvp(f, tuple(values), tuple(tangents)),
        lambda f: jacfwd(f, every)(*values),
        lambda f: linearize(f, *values)[1](*tangents),
    ):
        found, wanted = transform(ours), transform(theirs)
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)


@FORMS
def test_dual_level_beside_reverse_mode(form):
    """One call of which both derivatives are taken."""
    op, (x, w, t) = function("rms_norm", form), random((5, 8), (8,), (5, 8))
    x.requires_grad_()
    with forward_ad.dual_level():
        out, tangent = forward_ad.unpack_dual(op(forward_ad.make_dual(x, t), w))
        wanted, wanted_tangent = forward_ad.unpack_dual(
            F.rms_norm(forward_ad.make_dual(x, t), (8,), w, 1e-6)
        )
    torch.testing.assert_close((out, tangent), (wanted, wanted_tangent))
    found, expected = (torch.autograd.grad(y.square().sum(), x)[0] for y in (out, wanted))
    torch.testing.assert_close(found, expected)
    with forward_ad.dual_level():
        plain = op(x.detach(), w)
        assert forward_ad.unpack_dual(plain).tangent is None


def test_transforms_around_each_other():
    x, w, t, v = random((5, 8), (8,), (5, 8), (3, 8))

    def by(norm, product):
        def push(x, t):
            return jvp(lambda x: norm(x, w), (x,), (t,))

        return [
            vmap(push)(x, t),
            jvp(lambda x: vmap(lambda row: norm(row, w))(x), (x,), (t,)),
            grad(lambda x: jvp(lambda y: product(y, v), (x,), (t,))[1].square().sum())(x),
            grad(lambda v: jvp(lambda y: product(y, v), (x,), (t,))[1].square().sum())(v),
            jacfwd(jacfwd(lambda v: product(x, v)))(v),
            jacrev(jacfwd(lambda v: product(x, v).sum()))(v),
            jvp(lambda w: jvp(lambda x: norm(x, w), (x,), (t,))[1], (w,), (2 * w,)),
        ]

    theirs = by(lambda x, w: F.rms_norm(x, w.shape, w, 1e-6), F.linear)
    torch.testing.assert_close(by(anyop.rms_norm, anyop.linear), theirs)


def test_second_derivatives_as_far_as_they_go():
    """Where the gradient's operator has formulas of its own; else an error that names it."""
    (x,) = random((2, 3, 4))
    mask = torch.ones(2, 3, dtype=torch.bool)
    pooled = hessian(lambda x: anyop.masked_mean(x, mask).pow(3).sum())(x)
    torch.testing.assert_close(pooled, hessian(lambda x: x.mean(1).pow(3).sum())(x))
    rectified = hessian(lambda x: anyop.relu(x).pow(3).sum())(x)
    torch.testing.assert_close(rectified, hessian(lambda x: F.relu(x).pow(3).sum())(x))
    for ours, theirs in ((anyop.softmax, F.softmax), (anyop.log_softmax, F.log_softmax)):
        found, wanted = (
            hessian(lambda x, f=f: (f(x, -1) * x[0]).pow(3).sum())(x) for f in (ours, theirs)
        )
        torch.testing.assert_close(found, wanted)
    with pytest.raises(NotImplementedError, match=r"gelu_backward: .*forward mode .*to x "):
        hessian(lambda x: anyop.gelu(x).sum())(x)
    with pytest.raises(NotImplementedError, match=r"linear_backward: .*forward mode"):
        hessian(lambda x: anyop.linear(x, x[0]).square().sum())(x)


def test_tangents_of_other_layouts_and_dtypes():
    (x, w), indices = random((5, 8), (3, 8)), torch.tensor([2, 0])
    expanded = torch.ones((), dtype=torch.float64).expand(5, 8)
    _, found = jvp(lambda x: anyop.linear(x, w), (x,), (expanded,))
    torch.testing.assert_close(found, F.linear(expanded, w))
    mixed, tangents = (x, w[0].float()), (x + 1, w[1].float())
    for ours, theirs in ((anyop.mul, torch.mul), (anyop.add, torch.add)):
        torch.testing.assert_close(jvp(ours, mixed, tangents), jvp(theirs, mixed, tangents))
    torch.testing.assert_close(
        jvp(lambda x: anyop.mul(x, indices), (x[:, :2],), (x[:, 2:4],))[1], x[:, 2:4] * indices
    )
    table = torch.randn(3, 4, dtype=torch.complex64)
    _, found = jvp(lambda w: anyop.embedding(indices, w), (table,), (2 * table,))
    torch.testing.assert_close(found, 2 * table[indices])
    with forward_ad.dual_level():
        whole = anyop.cast(forward_ad.make_dual(x, x), "int64")
        assert whole.dtype == torch.int64 and forward_ad.unpack_dual(whole).tangent is None


def test_autocast():
    """Values and tangents in autocast's dtypes."""
    x, w, t = random((5, 8), (3, 8), (5, 8), dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        out, tangent = jvp(lambda x: anyop.linear(x, w), (x,), (t,))
        assert out.dtype == tangent.dtype == torch.bfloat16
        torch.testing.assert_close(tangent.float(), F.linear(t, w).float(), atol=0.1, rtol=0.05)
        out, tangent = jvp(lambda x: anyop.softmax(x), (x.bfloat16(),), (t.bfloat16(),))
        assert out.dtype == tangent.dtype == torch.float32


@FORMS
def test_what_has_no_formula_says_so(form):
    """The operator and the argument; also the gradient of an operator, and results that are given."""
    x, weight = random((5, 8), (8,))
    heads, out = x.reshape(1, 1, 5, 8), torch.empty_like(x)
    silu_and_mul, topk, attention, backward, norm = (
        function(name, form)
        for name in ("silu_and_mul", "topk", "attention", "rms_norm_backward", "rms_norm")
    )
    for call, value, wanted in (
        (silu_and_mul, x, "silu_and_mul: has no derivative in forward mode with respect to x "),
        (lambda x: topk(x, 2), x, "topk: has no derivative in forward mode with respect to x "),
        (lambda q: attention(q, heads, heads), heads, "attention: has .* with respect to q "),
        (
            lambda g: backward(g, x, weight),
            x,
            "rms_norm_backward: has .* with respect to grad_out ",
        ),
        (lambda x: norm(x, weight, out=out), x, r"rms_norm: has .* with out=; leave it out"),
        (lambda out: norm(x, weight, out=out), out, r"rms_norm: has .* with out=; leave it out"),
    ):
        with forward_ad.dual_level(), pytest.raises(NotImplementedError, match=wanted):
            call(forward_ad.make_dual(value, value))


def test_torch_compile():
    """jvp within the compiled code, around it, and a dual level."""
    ours, theirs, shapes = MODELS["chain"]
    values, tangents = tuple(random(*shapes)), tuple(random(*shapes[::-1]))[::-1]
    wanted = jvp(theirs, values, tangents)
    inside = torch.compile(lambda v, t: jvp(ours, v, t), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(inside(values, tangents), wanted)
    around = torch.compile(ours, backend="aot_eager")
    torch.testing.assert_close(jvp(around, values, tangents), wanted)
    with forward_ad.dual_level():
        found = around(*map(forward_ad.make_dual, values, tangents))
        torch.testing.assert_close(tuple(forward_ad.unpack_dual(found)), wanted)
