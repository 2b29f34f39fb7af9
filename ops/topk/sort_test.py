# SPDX-License-Identifier: Apache-2.0
"""sort by NumPy's stable sort, and as torch's; rows of every length class, gradients of long rows."""

import anyop
import ml_dtypes
import numpy as np
import pytest


def reference(x, descending):
    if descending and x.dtype.kind == "f":
        indices = np.lexsort((-x, ~np.isnan(x)), axis=-1)
    else:  # the complement turns the order of integers without overflow
        indices = np.argsort(~x if descending else x, axis=-1, kind="stable")
    return np.take_along_axis(x, indices, -1), indices


def drawn(D, dtype):
    """Rows with ties, all special values or all digits."""
    random = np.random.default_rng(D)
    x = random.integers(-4, 5, (6, D)).astype(dtype)
    if dtype.startswith("int"):
        limits = np.iinfo(dtype)
        x[:, ::5], x[:, 1::5] = limits.min, limits.max
        x[3:] = random.integers(limits.min, limits.max, (3, D), dtype)
        return x
    x[3:] = random.standard_normal((3, D)).astype(dtype)
    for value, share in (
        (np.nan, 0.02),
        (-np.nan, 0.02),
        (np.inf, 0.02),
        (-np.inf, 0.02),
        (-0.0, 0.1),
    ):
        x[random.random(x.shape) < share] = value
    return x


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int32", "int64"])
@pytest.mark.parametrize("D", [1, 128, 129, 3000, 70_000])
def test_every_length_class(dtype, D, descending):
    x = drawn(D, dtype)
    wide = x.astype(np.float32) if x.dtype == ml_dtypes.bfloat16 else x
    values, indices = anyop.sort(x, descending=descending)
    expected = reference(wide, descending)[1]
    np.testing.assert_array_equal(indices, expected)
    assert values.tobytes() == np.take_along_axis(x, expected, -1).tobytes()


def test_is_as_in_torch():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = torch.from_numpy(drawn(1000, "float32"))
    for descending in (False, True):
        expected = torch.sort(x, stable=True, descending=descending)
        found = anyop.sort(x, descending=descending)
        assert torch.equal(found[1], expected[1])
        assert torch.equal(found[0].view(torch.int32), expected[0].view(torch.int32))


def test_the_gradient_goes_back_to_its_place():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(3, 5000).to(dtype).requires_grad_()
        values, indices = anyop.sort(x, descending=True)
        g = torch.randn(3, 5000).to(dtype)
        values.backward(g)
        assert torch.equal(x.grad, torch.empty_like(g).scatter_(-1, indices, g))
