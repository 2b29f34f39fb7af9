# SPDX-License-Identifier: Apache-2.0
"""ATen from Python with the tensors of torch, JAX and Paddle: their results, their modes, what is immutable."""

from __future__ import annotations

import gc
import sys
import threading

import numpy as np
import pytest
import torch
from anyop import aten

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(scope="module")
def jnp():
    return pytest.importorskip("jax.numpy", reason="JAX is not installed")


@pytest.fixture(scope="module")
def paddle():
    return pytest.importorskip("paddle", reason="Paddle is not installed")


def same(found, expected):
    np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))


def test_torch_tensors_go_in_and_out():
    t = torch.from_numpy(X.copy())
    found = aten.add(t, t, alpha=2)
    assert type(found) is torch.Tensor and torch.equal(found, t * 3)
    assert aten.relu_(t) is t and aten.add(t, 1, out=t) is t
    assert aten.t(t).data_ptr() == t.data_ptr()
    assert aten.result_type(t, 1.5) is torch.float32
    assert aten.max(t, 1)[1].tolist() == [2, 2]
    parameter = torch.nn.Parameter(t)
    assert aten.detach(parameter).requires_grad is False
    with pytest.raises(TypeError, match=r"numpy.ndarray, expected a torch.Tensor"):
        aten.add(t, X)
    storage = torch.ones(3).untyped_storage()
    assert aten.set_(torch.ones(1), storage).data_ptr() == storage.data_ptr()  # torch's own affair


def test_torch_gradients_as_torch_records_them():
    x = torch.ones(2, 2, requires_grad=True)
    found, expected = aten.mul(aten.add(x, x, alpha=3), x), torch.ops.aten.mul(x * 4, x)
    assert type(found.grad_fn) is type(expected.grad_fn)
    found.sum().backward()
    assert torch.equal(x.grad, x.detach() * 8)
    with torch.no_grad():
        assert not aten.mul(x, 2).requires_grad
    assert aten.mul(x, x, like="numpy").sum() == 4  # plain values
    assert aten.add(X, 1).dtype == np.float32
    assert torch.func.grad(lambda t: aten.sum(aten.mul(t, t)))(x.detach()).sum() == 8
    assert torch.func.vmap(lambda t: aten.sum(t))(x.detach()).tolist() == [2, 2]


def test_torch_subclasses_and_modes_have_their_say():
    class Told(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            return "told", str(function), kwargs

    told = torch.ones(2).as_subclass(Told)
    assert aten.add(told, 1) == ("told", "aten.add.Tensor", {})
    assert aten.to(told, "float64", non_blocking=True)[:2] == ("told", "aten.to.dtype")

    class Seen(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **kwargs or {})

    seen = []
    with Seen():
        t = torch.ones(2)
        aten.add(t, 1)
        aten.rand([2], dtype="float64", like="torch", generator=5)
        aten.add(X, 1)
        aten.zeros([2])
    assert seen == ["aten.ones.default", "aten.add.Tensor", "aten.rand.generator"]
    fake = torch._subclasses.fake_tensor
    with fake.FakeTensorMode():
        assert isinstance(aten.add(torch.ones(2), 1), fake.FakeTensor)
        assert isinstance(aten.zeros([2], like="torch"), fake.FakeTensor)


def test_symbolic_sizes_stay_symbolic():
    from torch.fx.experimental.proxy_tensor import make_fx

    made = make_fx(lambda t: aten.view(t, [t.shape[0] * t.shape[1]]), tracing_mode="symbolic")
    assert "sym_size" in made(torch.ones(2, 3)).code


def host_states():
    yield torch.no_grad()
    yield torch.inference_mode()
    yield torch.autocast("cpu")
    yield torch._subclasses.fake_tensor.FakeTensorMode()
    yield torch.device("meta")
    yield torch.overrides.TorchFunctionMode()


@pytest.mark.parametrize("number", range(6))
def test_the_hosts_state_neither_matters_nor_changes(number):
    matrix, before = X @ X.T, torch.get_rng_state()
    with list(host_states())[number]:
        state = (torch.is_grad_enabled(), torch.is_inference_mode_enabled(),
                 torch.is_autocast_enabled("cpu"), torch._C._dispatch_tls_local_exclude_set().raw_repr())  # fmt: skip
        same(aten.mm(X, aten.t(X)), matrix)
        assert aten.mm(X, aten.t(X)).dtype == np.float32
        assert aten.relu_(X.copy()).sum() == 15 and aten.zeros([2]).tolist() == [0, 0]
        with pytest.raises(RuntimeError):
            aten.mm(X, X)
        assert state == (
            torch.is_grad_enabled(), torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled("cpu"), torch._C._dispatch_tls_local_exclude_set().raw_repr(),
        )  # fmt: skip
    assert torch.is_grad_enabled() and torch.equal(torch.get_rng_state(), before)


def test_jax_arrays(jnp):
    import jax

    x = jnp.asarray(X)
    for found, expected in [
        (aten.add(x, x, alpha=2), X * 3),
        (aten.t(x), X.T),
        (aten.mm(x, aten.t(x)), X @ X.T),
        (aten.expand(x[:1], [2, 3]), X[[0, 0]]),  # JAX takes no memory in which elements lie twice
        (aten.to(x, jnp.bfloat16), X),
        (aten.cat([x, x]), np.concatenate([X, X])),
        (aten.clone(x > 2), X > 2),
        (aten.zeros([2, 3], like=x), X * 0),
        (aten.ones([2], dtype=jnp.float32, like="jax"), [1, 1]),
    ]:
        assert isinstance(found, jax.Array)
        same(found, expected)
    assert aten.to(x, jnp.bfloat16).dtype == jnp.bfloat16
    clone = aten.clone(x.astype(jnp.float8_e4m3fn))
    assert clone.dtype == jnp.float8_e4m3fn and clone.astype(jnp.float32).sum() == 15
    same(jax.jit(lambda a: aten.add(a, a, alpha=2))(x), X * 3)
    for write in (
        lambda: aten.relu_(x),
        lambda: aten.add(x, 1, out=x),
        lambda: aten.neg_(aten.t(x)),
    ):
        with pytest.raises(ValueError, match="read-only"):
            write()
    same(x, X)
    with pytest.raises(TypeError, match=r"numpy.ndarray, expected a jax.Array"):
        aten.add(x, X)
    with pytest.raises(TypeError, match="holds no numbers"):
        aten.clone(jax.random.key(0))


def test_jax_views_outlive_their_array(jnp):
    x = jnp.asarray(X) + 0
    view = aten.select(x, 0, 1)
    del x
    gc.collect()
    same(view, X[1])


def test_paddle_tensors(paddle):
    x = paddle.to_tensor(X)
    for found, expected in [
        (aten.add(x, x, alpha=2), X * 3),
        (aten.t(x), X.T),
        (aten.expand(x[:1], [2, 3]), X[[0, 0]]),
        (aten.to(x, paddle.float64), X),
        (aten.gt(x, 2), X > 2),
        (aten.zeros([2, 3], like=x), X * 0),
        (aten.ones([2], dtype="float64", like="paddle"), [1, 1]),
    ]:
        assert isinstance(found, paddle.Tensor) and found.stop_gradient
        same(found.numpy(), expected)
    assert aten.to(x, paddle.bfloat16).dtype == paddle.bfloat16
    view, version = aten.view(x, [6]), x.inplace_version
    assert aten.mul_(x, 2) is x and x.inplace_version > version
    same(view.numpy(), X.ravel() * 2)
    del x
    gc.collect()
    same(view.numpy(), X.ravel() * 2)


def test_paddle_gradients_and_graphs_are_refused_with_the_reason(paddle):
    x = paddle.ones([2])
    x.stop_gradient = False
    with pytest.raises(NotImplementedError, match=r"add.Tensor: records no gradients.*no_grad"):
        aten.add(x, x)
    with paddle.no_grad():
        same(aten.add(x, x).numpy(), [2, 2])
    same(aten.add(x.detach(), 1).numpy(), [2, 2])

    def twice(t):
        return aten.add(t, t)

    with pytest.raises(NotImplementedError, match="nodes of Paddle's graphs"):
        paddle.jit.to_static(twice, full_graph=True)(paddle.ones([2]))


def test_a_tensor_that_is_nobodys_joins_any_framework(jnp):
    held = aten.ones([2, 3], like="aten")
    same(aten.add(held, X), X + 1)
    assert isinstance(aten.add(held, torch.from_numpy(X)), torch.Tensor)
    same(aten.add(jnp.asarray(X), held), X + 1)
    assert type(aten.add(held, 1)) is type(held) and aten.add_(held, 1) is held
    same(torch.from_dlpack(held), X * 0 + 2)
    shared = np.from_dlpack(held)
    aten.t_(held)
    assert held.shape == (3, 2) and shared.shape == (2, 3)  # what was given away keeps its sizes
    count = sys.getrefcount(held)
    capsule = held.__dlpack__(max_version=(1, 0))
    assert sys.getrefcount(held) == count + 1
    del capsule
    assert sys.getrefcount(held) == count


def test_views_of_views_of_paddle_are_let_go_of(paddle):
    """Paddle frees tensors under a lock of its own: a view's deleter must not free the tensor that it views."""

    def work():
        for _ in range(200):
            view = aten.t(aten.add(paddle.ones([2, 3]), 1))
            assert view.shape == [3, 2]

    threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    work()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    x = paddle.ones([4])
    held = sys.getrefcount(x)
    view = aten.view(x, [2, 2])
    assert sys.getrefcount(x) == held + 1
    del view
    aten.add(x, x)  # what waits is let go of by Python, at the latest by the next call
    assert sys.getrefcount(x) == held
