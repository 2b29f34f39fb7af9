# SPDX-License-Identifier: Apache-2.0
"""add in float64, integers exactly; broadcasting, views and promotion as torch has them."""

import itertools

import anyop
import ml_dtypes  # noqa: F401  bfloat16
import numpy as np
import pytest


def reference(x, y, alpha):
    if x.dtype.kind == "f" or y.dtype.kind == "f":
        with np.errstate(all="ignore"):
            return x + alpha * y
    dtype = np.result_type(x.dtype, y.dtype)
    if dtype.kind == "b":
        return x | (y & (alpha != 0))
    with np.errstate(over="ignore"):
        return x.astype(dtype) + y.astype(dtype) * np.array(int(alpha)).astype(dtype)


DTYPES = [
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
    "bfloat16",
]


@pytest.mark.parametrize(("left", "right"), list(itertools.product(DTYPES, DTYPES)))
def test_every_pair_of_dtypes_is_as_in_torch(left, right):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = torch.arange(24).reshape(4, 6).to(getattr(torch, left))
    y = torch.arange(6).flip(0).to(getattr(torch, right))
    found, expected = anyop.add(x, y), torch.add(x, y)
    assert found.dtype == expected.dtype and torch.equal(found, expected)


def test_broadcast_views_of_every_kind():
    random = np.random.default_rng(0)
    base = random.standard_normal((8, 9, 10)).astype(np.float32)
    views = [
        base,
        base.T,
        base[::-1, :, ::2],
        base[:, ::-3],
        base[2:3],
        base[:, :1, 5:6],
        np.broadcast_to(base[0, 0], (7, 10)),
    ]
    compared = 0
    for x, y in itertools.product(views, views):
        try:
            expected = x + y
        except ValueError:
            continue
        np.testing.assert_array_equal(anyop.add(x, y), expected)
        out = np.empty(expected.shape[::-1], np.float32).T
        np.testing.assert_array_equal(anyop.add(x, y, out=out), expected)
        compared += 1
    assert compared >= 15


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("columns", [63, 64, 65, 3001])
def test_a_column(dtype, columns):
    """One value a row stays in a register: zeros keep their sign, NaN and infinity stay, threads begin inside a row."""
    x = (np.arange(30 * columns).reshape(30, columns) % 17 - 8).astype(np.dtype(dtype))
    column = np.arange(30)[:, None].astype(x.dtype)
    if x.dtype.kind != "i":
        x[::2] = -0.0
        column[:4, 0] = [-0.0, np.nan, np.inf, -0.0]
    for found, expected in ((anyop.add(x, column), x + column), (anyop.mul(x, column), x * column)):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found.astype(float), expected.astype(float))
        np.testing.assert_array_equal(
            np.signbit(found.astype(float))[column[:, 0] == 0],
            np.signbit(expected.astype(float))[column[:, 0] == 0],
        )


def test_a_fraction_is_refused_for_integers():
    with pytest.raises(ValueError, match="alpha"):
        anyop.add(np.ones(3, np.int32), np.ones(3, np.int32), alpha=0.5)


@pytest.mark.parametrize(
    "left", ["float16", "bfloat16", "float32", "float64", "int64", "int16", "bool"]
)
@pytest.mark.parametrize("right", ["float16", "bfloat16", "float32", "int32", "bool"])
def test_more_than_a_block(left, right):
    """Runs that end inside a block of 1,024 elements, and that are longer; as torch for every kind of view."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    generator = torch.Generator().manual_seed(0)
    x = (torch.randn(5, 1500, 4, generator=generator) * 9).to(getattr(torch, left))
    y = (torch.randn(5, 1500, 4, generator=generator) * 9).to(getattr(torch, right))
    views = [
        lambda t: t,
        lambda t: t[:, ::2],
        lambda t: t[..., :3],
        lambda t: t.transpose(0, 2),
        lambda t: t[:, :1],
        lambda t: t.reshape(-1),
    ]
    compared = 0
    for one, two in itertools.product(views, views):
        try:
            expected = torch.add(one(x).float(), two(y).float())
        except RuntimeError:
            continue
        found, theirs = anyop.add(one(x), two(y)), torch.add(one(x), two(y))
        assert found.dtype == theirs.dtype
        if found.dtype in (
            torch.float16,
            torch.bfloat16,
        ):  # torch rounds the other input first where types are mixed
            torch.testing.assert_close(found.float(), expected, rtol=1e-2, atol=1e-2)
        else:
            torch.testing.assert_close(found, theirs, rtol=1e-6, atol=1e-6)
        compared += 1
    assert compared >= 8
