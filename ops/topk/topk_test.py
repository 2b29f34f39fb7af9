# SPDX-License-Identifier: Apache-2.0
"""topk by a stable sort, and rows that are cut into segments."""

import math

import anyop
import numpy as np
import pytest


def reference(x, k, largest):
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    indices = np.array([_first(row, largest)[:k] for row in rows], np.int64)
    indices = indices.reshape(*x.shape[:-1], k)
    return np.take_along_axis(x, indices, -1), indices


def _first(row, largest):
    """Indices in order. NaN is larger than any number, equal elements keep their order."""
    if not largest:
        return np.argsort(row, kind="stable")
    nan = np.isnan(row)
    if row.dtype.kind == "f":
        return np.lexsort((-row, ~nan))
    return np.argsort(~row, kind="stable")  # the complement turns the order without overflow


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int32", "int64"])
def test_ties_and_special_values(dtype, largest):
    generator = np.random.default_rng(1)
    x = generator.integers(-4, 5, (50, 700)).astype(dtype)
    if x.dtype.kind == "f":
        x[generator.random(x.shape) < 0.02] = np.nan
        x[generator.random(x.shape) < 0.02] = -np.nan
        x[generator.random(x.shape) < 0.02] = np.inf
        x[generator.random(x.shape) < 0.02] = -np.inf
        x[generator.random(x.shape) < 0.1] = -0.0
    else:
        limits = np.iinfo(dtype)
        x[:, ::50], x[:, 1::50] = limits.min, limits.max
    for k in (1, 10, 300, 700):
        values, indices = anyop.topk(x, k, largest=largest)
        _, places = reference(x, k, largest)
        np.testing.assert_array_equal(indices, places)
        assert values.tobytes() == np.take_along_axis(x, places, -1).tobytes()


@pytest.mark.parametrize("order", ["random", "rising", "falling", "equal"])
@pytest.mark.parametrize("k", [1, 10, 5000, 150_000])
def test_long_rows(order, k):
    x = np.random.default_rng(2).standard_normal((2, 300_001)).astype(np.float32)
    x = {"rising": np.sort(x), "falling": -np.sort(-x), "equal": np.zeros_like(x)}.get(order, x)
    values, indices = anyop.topk(x, k)
    np.testing.assert_array_equal(indices, reference(x, k, True)[1])
    np.testing.assert_array_equal(values, np.take_along_axis(x, indices, -1))
