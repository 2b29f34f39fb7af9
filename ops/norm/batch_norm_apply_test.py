# SPDX-License-Identifier: Apache-2.0
"""batch_norm_apply in float64; bits of masks across rows and blocks, torch's own."""

import anyop
import numpy as np
import pytest


def by_channel(values, x):
    return values.reshape(1, -1, *[1] * (x.ndim - 2))


def packed(z):
    """The mask of all but what is at most 0."""
    return np.packbits(~(z.ravel() <= 0), bitorder="little")


def reference(x, mean, rstd, weight, bias, residual, relu):
    with np.errstate(all="ignore"):
        z = (x - by_channel(mean, x)) * by_channel(rstd, x)
        z = z if weight is None else z * by_channel(weight, x)
        z = z if bias is None else z + by_channel(bias, x)
        z = z if residual is None else z + residual
        return np.where(z <= 0, 0, z) if relu else z, packed(z)


@pytest.mark.parametrize(
    "shape", [(3, 5, 7, 11), (2, 3, 1024), (70, 33), (3, 1100, 2), (1, 1, 2100)]
)
def test_masks_of_both_orders(shape):
    random = np.random.default_rng(0)
    x, more = (random.integers(-8, 9, shape).astype(np.float32) for _ in range(2))  # all is exact
    given = [random.integers(-4, 5, shape[1]).astype(np.float32) / 2 for _ in range(4)]
    exact = reference(x.astype(float), *given, more, True)
    found = anyop.batch_norm_apply(x, *given, more, relu=True)
    x_last, more_last = (np.ascontiguousarray(np.moveaxis(v, 1, -1)) for v in (x, more))
    other = anyop.batch_norm_apply_channels_last(x_last, *given, more_last, relu=True)
    np.testing.assert_array_equal(found[0], exact[0])
    assert found[1].tobytes() == exact[1].tobytes()
    np.testing.assert_array_equal(np.moveaxis(other[0], -1, 1), exact[0])
    assert other[1].tobytes() == packed(np.moveaxis(exact[0], 1, -1)).tobytes()
    alone = anyop.batch_norm_apply(x, *given, more, relu=True, mask=False)
    assert alone[1] is None and alone[0].tobytes() == found[0].tobytes()


def test_as_torch():
    torch = pytest.importorskip("torch")
    import anyop.torch

    x, mean, weight, bias = torch.randn(2, 12, 5, 7), *(torch.randn(12) for _ in "mwb")
    var = torch.rand(12) + 0.5
    theirs = torch.nn.functional.batch_norm(x, mean, var, weight, bias)
    found = anyop.batch_norm_apply(x, mean, (var + 1e-5).rsqrt(), weight, bias)[0]
    torch.testing.assert_close(found, theirs)
