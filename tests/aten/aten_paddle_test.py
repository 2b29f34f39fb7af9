# SPDX-License-Identifier: Apache-2.0
"""anyop.aten on Paddle's tensors: torch's numbers, shared memory, versions; what would lose a gradient is refused."""

from __future__ import annotations

import gc
import sys

import anyop
import numpy as np
import prepared
import pytest

paddle = pytest.importorskip("paddle", reason="PaddlePaddle is not installed")
torch = pytest.importorskip("torch", reason="torch is not installed")

aten = anyop.aten
RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((4, 6)).astype(np.float32)
Y = RANDOM.standard_normal((4, 6)).astype(np.float32)
ROWS = np.array([2, 0, 3])
DTYPES = [
    *(
        "float64",
        "float32",
        "float16",
        "bfloat16",
        "float8_e4m3fn",
        "float8_e5m2",
        "complex64",
        "complex128",
    ),
    *("int8", "int16", "int32", "int64", "uint8", "bool"),
]

CALLS = [
    ("add", (X, Y), {"alpha": 2}),
    ("mul", (X, 2.5), {}),
    ("div", (X, Y), {"rounding_mode": "floor"}),
    ("where", (X > 0, X, Y), {}),
    ("sum", (X, [1], True), {"dtype": "float64"}),
    ("topk", (X, 2), {"largest": False}),
    ("split", (X, 3), {}),
    ("cat", ([X, Y], 1), {}),
    ("index", (X, [None, ROWS]), {}),
    ("matmul", (X, Y.T), {}),  # not contiguous
    ("einsum", ("ij, kj -> ik", [X, Y]), {}),
    ("linalg_svd", (X,), {"full_matrices": False}),
    ("embedding", (X, ROWS), {}),
    ("native_layer_norm", (X, [6], X[0], None, 1e-5), {}),
    ("relu", (X[:0],), {}),
    ("neg", (X[0, 0, None].reshape(()),), {}),
]


def convert(value, make):
    if isinstance(value, np.ndarray):
        return make(value)
    return [convert(item, make) for item in value] if isinstance(value, list) else value


def as_torch(value):
    return getattr(torch, value) if value == "float64" else value


def leaves(value):
    return (
        [leaf for item in value for leaf in leaves(item)]
        if isinstance(value, (list, tuple))
        else [value]
    )


@pytest.mark.parametrize("name, args, kwargs", CALLS, ids=[name for name, _, _ in CALLS])
def test_numbers_are_torchs(name, args, kwargs):
    given = [convert(value, paddle.to_tensor) for value in args]
    found = leaves(aten.call(name, *given, **kwargs))
    theirs = [convert(value, lambda array: torch.from_numpy(array.copy())) for value in args]
    expected = leaves(
        getattr(torch.ops.aten, name)(*theirs, **{k: as_torch(v) for k, v in kwargs.items()})
    )
    for ours, wanted in zip(found, expected, strict=True):
        assert type(ours) is paddle.Tensor and ours.stop_gradient
        assert str(ours.dtype).removeprefix("paddle.") == str(wanted.dtype).removeprefix("torch.")
        assert ours.shape == list(wanted.shape)
        assert np.allclose(ours.numpy(), wanted.numpy(), 1e-5, 1e-6)


@pytest.mark.parametrize("name", DTYPES)
def test_dtypes(name):
    """Values and the dtype go through, and dtypes are taken as names and as Paddle's."""
    x = paddle.to_tensor(np.abs(X)).astype(name)
    found = aten.cat([x, x])
    assert found.dtype == x.dtype
    assert np.array_equal(found.numpy(), np.concatenate([x.numpy()] * 2))
    for dtype in (name, x.dtype):
        assert np.array_equal(
            aten.to(paddle.to_tensor(np.abs(X)), dtype).numpy(), aten.to(x, name).numpy()
        )


def test_views_share_memory_and_keep_it():
    x = paddle.to_tensor(X)
    view = aten.t(x)
    x[1, 2] = 99.0
    assert view[2, 1] == 99
    view[0, 0] = -7.0
    assert x[0, 0] == -7
    expected = x.numpy().T
    del x
    gc.collect()
    rest = [paddle.full([4, 6], number) for number in range(64)]  # takes memory that was let go
    assert np.array_equal(view.numpy(), expected) and len(rest) == 64


def test_in_place_writes_the_tensor_and_autograd_finds_out():
    x, weight = paddle.to_tensor(X), paddle.to_tensor(Y, stop_gradient=False)
    loss = (x * weight).sum()
    version = x.inplace_version
    assert aten.mul_(x, 2) is x and x.inplace_version == version + 1
    assert np.array_equal(x.numpy(), 2 * X)
    with pytest.raises(RuntimeError, match="inplace"):
        loss.backward()
    out = paddle.empty([4, 6])
    assert aten.add(x, 1, out=out) is out and np.array_equal(out.numpy(), 2 * X + 1)
    with pytest.raises(ValueError, match="shape"):
        aten.add(x, 1, out=paddle.empty([3]))


def test_a_gradient_is_never_lost_in_silence():
    x = paddle.to_tensor(X, stop_gradient=False)
    linear = paddle.nn.Linear(6, 2)
    for call in (
        lambda: aten.relu(x),
        lambda: aten.cat([paddle.to_tensor(X), x]),
        lambda: aten.mm(paddle.to_tensor(X), linear.weight),
        lambda: aten.relu(x * 2),
        lambda: aten.add(paddle.to_tensor(X), 1, out=x),
        lambda: aten.relu_(x),
    ):
        with pytest.raises(NotImplementedError, match=r"no gradients for Paddle.*paddle.no_grad"):
            call()
    assert np.array_equal(x.numpy(), X)
    with paddle.no_grad():
        found = aten.relu(x)
    assert found.stop_gradient and np.array_equal(found.numpy(), np.maximum(X, 0))
    assert np.array_equal(aten.relu(x.detach()).numpy(), found.numpy())


def test_graphs_are_refused_or_left():
    """A whole graph cannot have it; where Paddle may break the graph, the call is eager."""
    x = paddle.to_tensor(X)

    def doubled(x):
        return aten.add(x, x) + 1

    with pytest.raises(NotImplementedError, match="nodes of Paddle's graphs"):
        paddle.jit.to_static(doubled, full_graph=True)(x)
    assert np.array_equal(paddle.jit.to_static(doubled, full_graph=False)(x).numpy(), 2 * X + 1)
    paddle.enable_static()
    try:
        with paddle.static.program_guard(paddle.static.Program()):
            value = paddle.static.data("value", [2, 3])
            with pytest.raises(NotImplementedError, match="nodes of Paddle's graphs"):
                aten.relu(value)
    finally:
        paddle.disable_static()


def test_factories_and_random_numbers():
    x = paddle.to_tensor(X)
    for like in (x, "paddle"):
        assert type(aten.zeros([2, 3], like=like)) is paddle.Tensor
    ours = aten.randn([5], generator=3, like=x)
    assert np.array_equal(ours.numpy(), aten.randn([5], generator=3))
    state = paddle.get_rng_state()[0]
    before = state.current_seed() if hasattr(state, "current_seed") else str(state)
    aten.bernoulli(paddle.full([64], 0.5), generator=1)
    after = paddle.get_rng_state()[0]
    assert before == (after.current_seed() if hasattr(after, "current_seed") else str(after))


MISTAKES = {
    "NumPy beside it": (lambda x: aten.add(x, X), TypeError, "expected a paddle.Tensor"),
    "torch beside it": (
        lambda x: aten.add(x, torch.ones(6)),
        TypeError,
        "expected a paddle.Tensor",
    ),
    "shapes": (lambda x: aten.matmul(x, x), RuntimeError, "matmul: "),
    "sparse": (lambda x: aten.to_sparse(x), TypeError, "sparse"),
    "keyword": (lambda x: aten.add(x, x, beta=1), TypeError, "beta"),
}


@pytest.mark.parametrize("call, error, text", MISTAKES.values(), ids=MISTAKES)
def test_mistakes(call, error, text):
    with pytest.raises(error, match=text):
        call(paddle.to_tensor(X))


def test_under_the_torch_proxy():
    """Where `import torch` means Paddle, ATen is still torch's, also in a program of JAX's."""
    program = """
import paddle
paddle.compat.enable_torch_proxy()
import torch
import anyop
assert torch.Tensor is paddle.Tensor
assert anyop.aten.add(paddle.ones([2]), 1, alpha=3).tolist() == [4, 4]
try:
    import jax
except ImportError:
    pass
else:
    assert jax.jit(anyop.aten.relu)(jax.numpy.full(2, -1.0)).tolist() == [0, 0]
"""
    done = prepared.run("paddle", [sys.executable, "-c", program], timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
