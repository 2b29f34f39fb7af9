# SPDX-License-Identifier: Apache-2.0
"""JAX's transformations, one inside the other, against the same function written in jnp."""

from __future__ import annotations

import re
import threading

import anyop
import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed")
import anyop.jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from xla_text import call_sites  # noqa: E402

RANDOM = np.random.default_rng(0)
X = jnp.array(RANDOM.standard_normal((4, 16)), jnp.float32)
W = jnp.array(RANDOM.standard_normal(16), jnp.float32)
A = jnp.array(RANDOM.standard_normal((16, 16)) / 4, jnp.float32)
BATCH = jnp.stack([X, X * 2, X + 1])
WEIGHTS = jnp.stack([W, W * 3, W - 1])


def ours(x, w, a):
    """A block of a model: several operators, one of them with broadcasting."""
    return anyop.gelu(anyop.linear(anyop.add(anyop.rms_norm(x, w), w), a))


def plain(x, w, a):
    normed = x / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * w
    return jax.nn.gelu((normed + w) @ a.T, approximate=False)


def loss(f):
    return lambda *args: (f(*args) ** 2).sum()


def folded(f):
    """A loop that is known to be finite, so that it can be differentiated."""
    return lambda x, w, a: jax.lax.scan(lambda c, _: (f(c, w, a), c.sum()), x, None, length=3)


def chosen(f):
    return lambda x, w, a: jax.lax.cond(x[0, 0] > w[0], f, lambda x, w, a: x * 2, x, w, a)


TRANSFORMS = {
    "jit": (jax.jit, (X, W, A)),
    "grad": (lambda f: jax.grad(loss(f), (0, 1, 2)), (X, W, A)),
    "jit grad": (lambda f: jax.jit(jax.value_and_grad(loss(f), (0, 1, 2))), (X, W, A)),
    "grad jit": (lambda f: jax.grad(loss(jax.jit(f)), (0, 1, 2)), (X, W, A)),
    "vjp": (lambda f: lambda *args: jax.vjp(f, *args)[1](X), (X, W, A)),
    "jvp": (lambda f: lambda *args: jax.jvp(f, args, args), (X, W, A)),
    "linearize": (lambda f: lambda *args: jax.linearize(f, *args)[1](*args), (X, W, A)),
    "vmap": (lambda f: jax.vmap(f, (0, None, None)), (BATCH, W, A)),
    "vmap of weights": (lambda f: jax.vmap(f, (None, 0, None)), (X, WEIGHTS, A)),
    "vmap of both": (lambda f: jax.vmap(f, (0, 0, None)), (BATCH, WEIGHTS, A)),
    "vmap last axis": (
        lambda f: jax.vmap(f, (2, 1, None), 1),
        (BATCH.transpose(1, 2, 0), WEIGHTS.T, A),
    ),
    "vmap vmap": (
        lambda f: jax.vmap(jax.vmap(f, (None, 0, None)), (0, None, None)),
        (BATCH, WEIGHTS, A),
    ),
    "jit vmap grad": (
        lambda f: jax.jit(jax.vmap(jax.grad(loss(f), (0, 1)), (0, None, None))),
        (BATCH, W, A),
    ),
    "grad vmap": (
        lambda f: jax.grad(lambda *a: loss(jax.vmap(f, (0, None, None)))(*a), (0, 1)),
        (BATCH, W, A),
    ),
    "vmap jvp": (
        lambda f: jax.vmap(lambda x, w, a: jax.jvp(f, (x, w, a), (x, w, a)), (0, None, None)),
        (BATCH, W, A),
    ),
    "jacfwd": (lambda f: jax.jacfwd(lambda w: f(X, w, A)), (W,)),
    "jacrev": (lambda f: jax.jacrev(lambda w: f(X, w, A)), (W,)),
    "remat": (lambda f: jax.grad(loss(jax.checkpoint(f)), (0, 1, 2)), (X, W, A)),
    "jit vmap grad remat": (
        lambda f: jax.jit(jax.vmap(jax.grad(loss(jax.checkpoint(f))), (0, None, None))),
        (BATCH, W, A),
    ),
    "scan": (lambda f: jax.jit(folded(f)), (X, W, A)),
    "grad scan": (lambda f: jax.grad(lambda *a: folded(f)(*a)[0].sum(), (0, 1)), (X, W, A)),
    "vmap grad scan": (
        lambda f: jax.vmap(jax.grad(lambda *a: folded(f)(*a)[0].sum()), (0, None, None)),
        (BATCH, W, A),
    ),
    "jvp scan": (
        lambda f: lambda *a: jax.jvp(lambda x: folded(f)(x, W, A)[0], a[:1], a[:1]),
        (X, W, A),
    ),
    "fori_loop": (
        lambda f: jax.jit(lambda x, w, a: jax.lax.fori_loop(0, 3, lambda i, c: f(c, w, a), x)),
        (X, W, A),
    ),
    "while_loop": (
        lambda f: (
            lambda x, w, a: jax.lax.while_loop(
                lambda c: (c**2).sum() > 1e3, lambda c: f(c, w, a) / 2, x * 9
            )
        ),
        (X, W, A),
    ),
    "cond": (lambda f: jax.jit(chosen(f)), (X, W, A)),
    "grad cond": (lambda f: jax.grad(loss(chosen(f)), (0, 1)), (X, W, A)),
    "vmap grad cond": (
        lambda f: jax.vmap(jax.grad(loss(chosen(f))), (0, None, None)),
        (BATCH, W, A),
    ),
    "map": (lambda f: lambda xs, w, a: jax.lax.map(lambda x: f(x, w, a), xs), (BATCH, W, A)),
    "disable_jit": (lambda f: disabled(loss(f)), (X, W, A)),
    "make_jaxpr": (
        lambda f: lambda *a: jax.core.eval_jaxpr((j := jax.make_jaxpr(f)(*a)).jaxpr, j.consts, *a),
        (X, W, A),
    ),
}


EAGER = {
    "grad",
    "jvp",
    "linearize",
    "vmap",
    "vmap of weights",
    "while_loop",
    "disable_jit",
    "make_jaxpr",
}


def disabled(f):
    def run(*args):
        with jax.disable_jit():
            return jax.value_and_grad(f)(*args)

    return run


@pytest.mark.drawn(2)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name):
    transform, args = TRANSFORMS[name]
    run = transform(ours) if name in EAGER else jax.jit(transform(ours))
    found = jax.tree.leaves(run(*args))
    expected = jax.tree.leaves(jax.jit(transform(plain))(*args))
    assert len(found) == len(expected) >= 1
    for a, b in zip(found, expected):
        assert a.shape == b.shape and a.dtype == b.dtype
        assert np.allclose(a, b, rtol=2e-4, atol=2e-4 * (1 + float(jnp.abs(b).max()))), name


def calls(function, *args):
    """Operators in the compiled program, and what else it calls."""
    text = jax.jit(function).lower(*args).compile().as_text()
    assert "callback" not in text
    assert set(re.findall(r'custom_call_target="([^"]*)"', text)) <= {"anyop"}, text
    return [site["operator"].removeprefix("anyop.") for site in call_sites(text)]


def test_compiled_programs_hold_the_operators():
    """And call back to Python nowhere."""
    assert sorted(calls(ours, X, W, A)) == ["add", "gelu", "linear", "rms_norm"]
    found = calls(jax.grad(loss(ours), (0, 1, 2)), X, W, A)
    assert {"rms_norm_backward", "gelu_backward", "linear_backward", "add_backward"} <= set(found)
    assert calls(anyop.rms_norm, BATCH, W) == ["rms_norm"]


def test_vmap_is_one_call_where_the_schema_has_a_group():
    assert calls(jax.vmap(anyop.rms_norm, (0, None)), BATCH, W) == ["rms_norm"]
    assert "while" not in jax.jit(jax.vmap(anyop.rms_norm, (0, None))).lower(BATCH, W).as_text()
    text = jax.jit(jax.vmap(anyop.rms_norm, (None, 0))).lower(X, WEIGHTS).as_text()
    assert "while" in text, "of several weights each has a call"


def test_only_gradients_that_are_needed_are_computed():
    text = jax.jit(jax.grad(lambda x: anyop.rms_norm(x, W).sum())).lower(X).as_text()
    (gradient,) = (s for s in call_sites(text) if s["operator"] == "anyop.rms_norm_backward")
    assert gradient["arguments"] == ["grad_out", "x", "weight"]
    assert gradient["results"] == ["grad_x"] and "grad_weight" not in text
    per_element = jax.vmap(jax.grad(lambda x: anyop.rms_norm(x, W).sum()))
    assert "while" not in jax.jit(per_element).lower(BATCH).as_text()


def test_nothing_is_saved_but_what_the_gradient_takes():
    _, pull = jax.vjp(anyop.relu, X)
    saved = [
        leaf for leaf in jax.tree.leaves(pull) if hasattr(leaf, "shape") and leaf.shape == X.shape
    ]
    assert len(saved) == 1


def test_operators_are_constant_folded_by_nobody():
    """Results depend on the arrays of each call, not on those of the first."""
    f = jax.jit(anyop.relu)
    assert f(X - 1).tolist() == jnp.maximum(X - 1, 0).tolist()
    assert f(X + 1).tolist() == jnp.maximum(X + 1, 0).tolist()


def test_empty_batches():
    assert jax.vmap(anyop.rms_norm, (0, None))(X[:0].reshape(0, 2, 16), W).shape == (0, 2, 16)
    sequential = jax.vmap(anyop.rms_norm, (None, 0))(X, WEIGHTS[:0])
    assert sequential.shape == (0, 4, 16)


def test_second_derivatives_of_formulas():
    """Forward over forward where formulas are made of operators that have formulas."""

    def ours(x):
        return anyop.mul(anyop.mul(x, x), x).sum()

    found = jax.jacfwd(jax.jacfwd(ours))(W)
    assert np.allclose(found, jnp.diag(6 * W), atol=1e-5)
    found = jax.jacrev(jax.jacfwd(ours))(W)
    assert np.allclose(found, jnp.diag(6 * W), atol=1e-5)


def test_a_second_derivative_through_the_gradient_is_an_error():
    inner = jax.grad(lambda x: anyop.rms_norm(x, W).sum())
    text = (
        "rms_norm_backward: has no gradient, so its operator can be differentiated once, not twice"
    )
    with pytest.raises(NotImplementedError, match=text):
        jax.grad(lambda x: inner(x).sum())(X)
    with pytest.raises(NotImplementedError, match=text):
        jax.hessian(lambda x: anyop.rms_norm(x, W).sum())(X)
    with pytest.raises(
        NotImplementedError, match="gelu_backward: has no gradient, so its operator"
    ):
        jax.hessian(lambda x: anyop.gelu(x).sum())(W)


def test_small_numbers_are_not_rounded_to_zero():
    """XLA's own threads do so; anyop's kernels give what they give in every framework."""
    tiny = np.float32([1e-40, -3e-41, 1e-45, 1.0])
    for function in (
        anyop.relu,
        jax.jit(anyop.relu),
        jax.jit(lambda x: anyop.mul(x, jnp.float32([1.0]))),
    ):
        assert np.asarray(function(jnp.array(tiny))).tobytes() in (
            tiny.tobytes(), np.maximum(tiny, 0).tobytes()
        )  # fmt: skip
    half = np.float16([6e-8, 3e-6])
    assert np.asarray(jax.jit(anyop.silu)(jnp.array(half))).tobytes() == anyop.silu(half).tobytes()


def test_bfloat16_and_mixed_precision():
    x, w = X.astype(jnp.bfloat16), W.astype(jnp.bfloat16)
    y, pull = jax.vjp(anyop.rms_norm, x, w)
    assert y.dtype == jnp.bfloat16 and [g.dtype for g in pull(y)] == [jnp.bfloat16] * 2
    assert np.allclose(y.astype(jnp.float32), anyop.rms_norm(X, W), atol=0.1)


def test_threads():
    """First calls, eager and compiled, with different attributes, all at once."""
    wrong: list[float] = []

    def work(eps: float) -> None:
        for function in (anyop.rms_norm, jax.jit(anyop.rms_norm, static_argnums=2)) * 20:
            expected = X / jnp.sqrt(jnp.mean(X * X, -1, keepdims=True) + eps) * W
            if not np.allclose(function(X, W, eps), expected, atol=1e-5):
                wrong.append(eps)

    threads = [threading.Thread(target=work, args=(0.25 * (k + 1),)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
