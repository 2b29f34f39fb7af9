# SPDX-License-Identifier: Apache-2.0
"""Where results lie and what may be written: dtypes, views, empty tensors, out=, immutable ones, threads."""

from __future__ import annotations

import threading

import anyop
import numpy as np
import pytest

RNG = np.random.default_rng(3)
X = RNG.standard_normal((6, 64)).astype(np.float32)
W = RNG.standard_normal(64).astype(np.float32)
EXPECTED = anyop.rms_norm(X, W)


def near(found, expected=EXPECTED):
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_dtypes(caller, dtype):
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy is ml_dtypes'")
    kind = getattr(np, dtype, None) or getattr(ml_dtypes, dtype)
    x, weight = X.astype(kind), W.astype(kind)
    if caller.name == "cupy" and dtype == "bfloat16":
        pytest.skip("CuPy has no bfloat16 arrays of its own")
    found = caller.array(anyop.rms_norm(caller.tensor(x), caller.tensor(weight)))
    assert found.dtype == np.dtype(kind)
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6) * weight.astype(np.float64)
    limit = {"float64": 1e-13, "float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}[dtype]
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=limit, atol=limit)


@pytest.mark.parametrize("shape", [(0, 64), (3, 0, 64), (2, 0)])
def test_no_elements(caller, shape):
    x, weight = np.ones(shape, np.float32), np.ones(shape[-1:], np.float32)
    found = anyop.rms_norm(caller.tensor(x), caller.tensor(weight))
    assert caller.is_tensor(found) and caller.array(found).shape == shape


def test_a_view_is_read_where_it_lies(caller):
    if not caller.has_views:
        pytest.skip(f"{caller.name} has no views")
    found = anyop.rms_norm(caller.every_second_row(X), caller.tensor(W))
    near(caller.array(found))


def test_out_is_written_and_returned(caller):
    if not caller.writes:
        pytest.skip(f"{caller.name} has no tensors that may be written")
    x, weight, out = caller.tensor(X), caller.tensor(W), caller.tensor(np.zeros_like(X))
    assert anyop.rms_norm(x, weight, out=out) is out
    near(caller.array(out))


def test_what_is_immutable_is_not_written(caller):
    frozen = caller.frozen(np.zeros_like(X))
    if frozen is None:
        pytest.skip(f"{caller.name} has no immutable tensors")
    with pytest.raises((TypeError, ValueError, RuntimeError), match=r"rms_norm|out="):
        anyop.rms_norm(caller.tensor(X), caller.tensor(W), out=frozen)
    assert not caller.array(frozen).any()


def test_a_result_outlives_its_arguments(caller):
    found = anyop.rms_norm(caller.tensor(X), caller.tensor(W))
    others = [caller.tensor(np.full_like(X, 7)) for _ in range(50)]
    near(caller.array(found))
    assert len(others) == 50


def test_threads(caller):
    """Each thread has its own arguments; all results are right."""
    wrong = []

    def work(number: int) -> None:
        with caller.scope():
            x = X * np.float32(number + 1)
            expected, weight = anyop.rms_norm(x, W), caller.tensor(W)
            tensor = caller.tensor(x)
            for _ in range(200):
                found = caller.array(anyop.rms_norm(tensor, weight))
                if not np.allclose(found, expected, rtol=1e-5, atol=1e-6):
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
