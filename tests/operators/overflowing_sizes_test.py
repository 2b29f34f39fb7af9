# SPDX-License-Identifier: Apache-2.0
"""Sizes that no memory can hold, given as integers: refused before XLA would end the process."""

from __future__ import annotations

import anyop
import numpy as np
import pytest

try:
    import jax
    import jax.numpy as jnp
except ImportError:
    jax = jnp = None
needs_jax = pytest.mark.skipif(jax is None, reason="jax is not installed")

INDICES = np.zeros(3, np.int32)
OVERFLOW = r"embedding_backward: .*would have shape \(.*\): its size in bytes overflows 64 bits"


def gradient(g, indices, V):
    return anyop.embedding_backward(g, indices, V)


@needs_jax
@pytest.mark.parametrize("V", [2**63 - 1, 2**61, 2**59])
@pytest.mark.parametrize("D", [0, 4])
def test_a_size_that_overflows_is_refused_in_every_form(V, D):
    if D == 0 and V == 2**59:
        V = 2**62  # no elements, and XLA multiplies all the same
    g, indices = jnp.ones((3, D)), jnp.asarray(INDICES)
    calls = [
        lambda: gradient(g, indices, V),
        lambda: jax.jit(gradient, static_argnums=2)(g, indices, V),
        lambda: jax.eval_shape(lambda g, i: gradient(g, i, V), g, indices),
        lambda: jax.grad(lambda g: gradient(g, indices, V).sum())(g),
        lambda: jax.vmap(lambda g: gradient(g, indices, V))(g[None]),
        lambda: jax.make_jaxpr(lambda g: gradient(g, indices, V))(g),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=OVERFLOW):
            call()


@needs_jax
def test_a_size_that_overflows_by_the_batch_is_refused():
    with pytest.raises(ValueError, match=OVERFLOW):
        jax.vmap(lambda g, i: gradient(g, i, 2**55))(
            jnp.ones((200, 3, 4)), jnp.zeros((200, 3), jnp.int32)
        )


@needs_jax
@pytest.mark.parametrize("V", [2**63, -(2**63) - 1, -1, -(2**63)])
def test_refusals_read_as_on_numpy(V):
    with pytest.raises(ValueError) as expected:
        gradient(np.ones((3, 4), np.float32), INDICES, V)
    with pytest.raises(ValueError) as found:
        gradient(jnp.ones((3, 4)), jnp.asarray(INDICES), V)
    assert str(found.value) == str(expected.value)


@needs_jax
def test_what_the_allocator_refuses_is_an_exception():
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED"):
        gradient(jnp.ones((3, 4)), jnp.asarray(INDICES), 2**45).block_until_ready()
    assert gradient(jnp.ones((3, 0)), jnp.asarray(INDICES), 2**40).shape == (2**40, 0)


def test_torch_without_memory_refuses_it_too():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    import anyop.torch  # noqa: F401
    from torch._subclasses import FakeTensorMode

    g, indices = torch.ones(3, 4), torch.zeros(3, dtype=torch.int32)
    function = torch.ops.anyop.embedding_backward
    for call in (
        lambda: function(g, indices, 2**63 - 1),
        lambda: function(g.to("meta"), indices.to("meta"), 2**63 - 1),
        lambda: gradient(g, indices, 2**60),
    ):
        with pytest.raises(ValueError, match=OVERFLOW):
            call()
    with FakeTensorMode() as mode, pytest.raises(ValueError, match=OVERFLOW):
        gradient(mode.from_tensor(g), mode.from_tensor(indices), 2**63 - 1)
    compiled = torch.compile(lambda g, i: gradient(g, i, 2**63 - 1), backend="eager")
    with pytest.raises((ValueError, RuntimeError), match="overflow"):
        compiled(g, indices)


def test_paddles_static_graphs_refuse_it_too():
    paddle = pytest.importorskip("paddle", reason="paddle is not installed")
    g, indices = paddle.ones([3, 4]), paddle.zeros([3], "int32")
    with pytest.raises(ValueError, match=OVERFLOW):
        gradient(g, indices, 2**63 - 1)

    def function(g, indices):
        return gradient(g, indices, 2**63 - 1)

    with pytest.raises(ValueError, match="overflows 64 bits"):
        paddle.jit.to_static(function, full_graph=True)(g, indices)


def test_what_numpy_refuses_to_make_names_the_operator():
    """NumPy counts the other sizes of an array without elements, too."""
    indices = np.zeros((0, 2**40), np.int64)
    says = r"embedding: out would have shape \(0, 1099511627776, 1099511627776\): array is too big"
    with pytest.raises(ValueError, match=says):
        anyop.embedding(indices, np.zeros((0, 2**40), np.float32))
    says = r"matmul: out would have shape \(16777216, 16777216\): Unable to allocate"
    with pytest.raises(MemoryError, match=says):  # 2**50 bytes, more than there are addresses
        anyop.matmul(np.zeros((2**24, 0), np.float32), np.zeros((0, 2**24), np.float32))
