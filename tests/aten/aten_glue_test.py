# SPDX-License-Identifier: Apache-2.0
"""The ATen glue by itself: arguments and results of every kind, errors, the thread's state."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from glue_calls import AS_TORCH, Lent, Refused, Seed, call, same

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_arguments_of_every_kind():
    t = torch.from_numpy(X)
    same(call("add.Tensor", X, X, alpha=2), X * 3)
    same(call("add.Tensor", X, t, alpha=2), X * 3)
    same(call("mul.Scalar", X, 2.5), X * np.float32(2.5))
    same(call("mul.Scalar", X, 1 + 2j), t * (1 + 2j))
    same(call("clamp", X, None, 3), np.minimum(X, 3))
    same(
        call("sum.dim_IntList", X, [0], True, dtype=torch.float64),
        X.sum(0, np.float64, keepdims=True),
    )
    same(call("cat", [X, t, X], 1), np.concatenate([X, X, X], 1))
    same(call("index.Tensor", X, [None, np.array([2, 0])]), X[:, [2, 0]])
    same(call("upsample_nearest1d.vec", X[None], None, [2.0]), np.repeat(X[None], 2, 2))
    same(call("div.Tensor_mode", X, X + 2, rounding_mode="floor"), np.floor(X / (X + 2)))
    same(call("to.dtype", X, torch.int64), X.astype(np.int64))
    same(
        call("zeros", [2, 2], dtype=torch.bool, device=torch.device("cpu"), layout=torch.strided),
        np.zeros((2, 2), bool),
    )
    same(call("flatten.using_ints", X), X.ravel())
    same(call("_foreach_add.ScalarList", [X, X], [1, 2.5])[1], X + np.float32(2.5))
    same(call("convolution_backward", *_convolution())[1], np.full((1, 1, 1), 6, np.float32))
    channels_last = call(
        "contiguous", np.ones((1, 2, 3, 4), np.float32), memory_format=torch.channels_last
    )
    assert channels_last.view()[0].strides[:4] == [24, 1, 8, 2]


def _convolution() -> tuple:
    ones = np.ones((1, 1, 6), np.float32)
    weight = np.ones((1, 1, 1), np.float32)
    return ones, ones, weight, None, [1], [0], [1], False, [0], 1, [False, True, False]


def test_results_of_every_kind():
    values, indices = call("max.dim", X, 1)
    same(values, X.max(1))
    same(indices, X.argmax(1))
    assert call("convolution_backward", *_convolution())[0] is None
    assert call("size.int", X, 1) == 3
    assert call("equal", X, X) is True
    assert call("_local_scalar_dense", np.float64(2.5)[None]) == 2.5
    assert call("_local_scalar_dense", np.array([1 + 2j])) == 1 + 2j
    assert call("_local_scalar_dense", np.array([True])) is True
    assert call("_local_scalar_dense", np.array([2**63 - 1], np.uint64)) == 2**63 - 1
    assert call("result_type.Scalar", X, 1) == -torch.ops.aten.neg.int(torch.float32)
    assert [part.numpy().shape for part in call("split.Tensor", X, 2, 1)] == [(2, 2), (2, 1)]
    assert call("_foreach_add_.Scalar", [X.copy()], 1) == ()
    same(call("tensor_split.sections", X, 2)[0], X[:1])


@pytest.mark.parametrize("dtype", list("?bhiqBHIQefdFD"), ids=lambda name: np.dtype(name).name)
def test_dtypes(dtype: str):
    given = np.array([[0, 1, 1]], dtype)
    same(call("clone", given), given)
    same(call("t", given[:, ::2]), given[:, ::2].T)


@pytest.mark.parametrize(
    ("status", "text", "name", "given"),
    [
        ("RuntimeError", "cannot be multiplied", "mm", (X, X)),
        ("IndexError", "Dimension out of range", "sum.dim_IntList", (X, [7])),
        ("IndexError", "index 9 is out of bounds", "index.Tensor", (X, [np.array([9])])),
        ("NotImplemented", "not implemented for 'Float'", "bitwise_and.Tensor", (X, X)),
        (
            "NotImplemented",
            "Could not run 'aten::cudnn_grid_sampler'",
            "cudnn_grid_sampler",
            (X, X),
        ),
        ("TypeError", "tensors has None among its tensors", "cat", ([X, None],)),
        ("NotImplemented", "There were no tensor arguments", "relu", (None,)),
        ("ValueError", "dtype 99 is no code", "empty.memory_format", ([1], 99)),
        ("OutOfMemory", "allocate memory", "empty.memory_format", ([1 << 45],)),
        ("RuntimeError", "singular", "linalg_inv", (np.zeros((2, 2), np.float32),)),
        ("TypeError", "self has a dtype", "relu", (Lent(X, dtype=(2, 24)),)),
        ("TypeError", "self lies on a device", "relu", (Lent(X, device=7),)),
        pytest.param(
            *("NotImplemented", "self lies on a CUDA device", "relu", (Lent(X, device=2),)),
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA can be used here"),
        ),
        ("ValueError", "self has a negative stride", "relu", (X[::-1],)),
        ("ValueError", "self has a negative size", "relu", (Lent(X, shape=(-1,)),)),
        (
            "ValueError",
            "self has more elements",
            "relu",
            (Lent(X, shape=(2**40, 2**40), strides=(1, 1)),),
        ),
        (
            "ValueError",
            "self has more elements",
            "relu",
            (Lent(X, shape=(2, 2), strides=(2**62, 2**62)),),
        ),
        (
            "ValueError",
            "self has elements but no memory",
            "relu",
            (Lent(None, shape=(2,), strides=(1,)),),
        ),
        (
            "ValueError",
            "self is not aligned",
            "relu",
            (Lent(X, shape=(1,), strides=(1,), offset=2),),
        ),
        (
            "ValueError",
            "tensors is not aligned",
            "cat",
            ([X, Lent(X, shape=(1,), strides=(1,), offset=1)],),
        ),
    ],
)
def test_errors(status: str, text: str, name: str, given: tuple):
    before = state()
    for _ in range(2):
        with pytest.raises(Refused) as caught:
            call(name, *given)
        assert caught.value.status == status and text in caught.value.text
        assert "\n\n" not in caught.value.text and "Exception raised from" not in caught.value.text
    assert state() == before


def state() -> tuple:
    """What a host thread would notice."""
    c = torch._C
    included, excluded = c._dispatch_tls_local_include_set(), c._dispatch_tls_local_exclude_set()
    modes = (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
    )
    with torch.utils._python_dispatch._disable_current_modes():
        random = torch.default_generator.get_state().numpy().tobytes()
    return repr(included), repr(excluded), modes, torch.get_default_dtype(), random


@pytest.mark.parametrize(
    "mode",
    [
        torch.enable_grad,
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autocast("cpu", torch.bfloat16),
        lambda: torch._subclasses.FakeTensorMode(),
        lambda: torch.device("meta"),
    ],
)
def test_modes_of_the_host_neither_matter_nor_change(mode):
    leaf = torch.ones(2, 2, requires_grad=True)
    with mode():
        before = state()
        product = call("mm", np.ones((2, 2), np.float32), leaf)
        made = call("ones", [2], dtype=torch.float32)
        with pytest.raises(Refused):
            call("mm", X, X)
        assert state() == before
    same(product, np.full((2, 2), 2, np.float32))
    same(made, np.ones(2, np.float32))
    assert call("requires_grad_", call("add.Tensor", made, 1)) is not None  # no inference tensor


def test_as_torch_records_gradients():
    leaf = torch.ones(2, requires_grad=True)
    for flags, expected in ((AS_TORCH, True), (0, False)):
        result = call("mul.Tensor", leaf, 3, flags=flags)
        assert (call("retain_grad", result, flags=AS_TORCH) == ()) if expected else True
        if not expected:
            with pytest.raises(Refused, match="can't retain_grad"):
                call("retain_grad", result, flags=AS_TORCH)


def test_seeds():
    before = state()
    first, second, other = (call("rand.generator", [4], generator=Seed(seed)) for seed in (5, 5, 6))
    expected = torch.rand(4, generator=torch.Generator().manual_seed(5))
    same(first, expected)
    same(second, expected)
    assert not np.array_equal(other.numpy(), expected.numpy())
    generator = torch.Generator().manual_seed(5)
    same(call("rand.generator", [4], generator=generator), expected)
    same(
        call("normal_", np.zeros(3, np.float32), 0.0, 1.0, generator=generator),
        torch.randn(3, generator=_after(4)),
    )
    same(call("bernoulli", np.full(9, 0.5, np.float32), generator=Seed(-1)), _coins())
    assert state() == before


def _after(count: int) -> torch.Generator:
    generator = torch.Generator().manual_seed(5)
    torch.rand(count, generator=generator)
    return generator


def _coins() -> torch.Tensor:
    return torch.bernoulli(torch.full((9,), 0.5), generator=torch.Generator().manual_seed(-1))


@pytest.mark.parametrize("number", [True, 2, 2.5, 1 + 2j])
@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.float32, np.complex64])
def test_numbers_promote_as_in_torch(number: object, dtype: type):
    given = np.array([0, 1, 1], dtype)
    same(
        call("mul.Tensor", given, number),
        torch.ops.aten.mul.Tensor(torch.from_numpy(given), number),
    )


def test_threads():
    wrong = []

    def work(seed: int) -> None:
        x = np.full((8, 8), seed, np.float32)
        expected = torch.rand(3, generator=torch.Generator().manual_seed(seed)).numpy()
        for i in range(2000):
            total = call("add.Tensor", x, call("t", x), alpha=2).numpy()
            if (total != seed * 3).any():
                wrong.append(("add", seed))
            if (
                i % 20 == 0
                and (call("rand.generator", [3], generator=Seed(seed)).numpy() != expected).any()
            ):
                wrong.append(("rand", seed))
            if i % 50 == 0:
                with pytest.raises(Refused, match="cannot be multiplied"):
                    call("mm", x, X)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
