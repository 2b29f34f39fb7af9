# SPDX-License-Identifier: Apache-2.0
"""conv_bias_act in float64 by loops over the window, more rows than one block has, and what is refused."""

import anyop
import numpy as np
import pytest


def windows(x, R, S, stride, padding, dilation):
    """(N, P, Q, R, S, C)"""
    x = np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    P = (x.shape[1] - dilation * (R - 1) - 1) // stride + 1
    Q = (x.shape[2] - dilation * (S - 1) - 1) // stride + 1
    found = np.empty((x.shape[0], P, Q, R, S, x.shape[3]), x.dtype)
    for r in range(R):
        for s in range(S):
            rows, columns = r * dilation, s * dilation
            part = x[:, rows : rows + stride * P : stride, columns : columns + stride * Q : stride]
            found[:, :, :, r, s] = part[:, :P, :Q]
    return found


def reference(x, weight, scale, bias, mask, residual, stride, padding, dilation, relu):
    with np.errstate(all="ignore"):
        parts = windows(x, *weight.shape[1:3], stride, padding, dilation)
        out = np.einsum("npqrsc,krsc->npqk", parts, weight)
        out = out if scale is None else out * scale
        out = out if bias is None else out + bias
        out = out if mask is None else np.where(mask, out, 0)
        out = out if residual is None else out + residual
        return np.maximum(out, 0) if relu else out


@pytest.mark.parametrize("stride, padding, dilation", [(1, 1, 1), (2, 0, 2)])
def test_more_rows_than_a_block(stride, padding, dilation):
    """Integers make the sums exact. 460 numbers in a window: 9,100 rows are written at once."""
    random = np.random.default_rng(0)
    x = random.integers(-2, 3, (2, 90, 80, 51)).astype(np.float32)
    weight = random.integers(-2, 3, (7, 3, 3, 51)).astype(np.float32)
    found = anyop.conv_bias_act(x, weight, None, None, None, None, stride, padding, dilation, False)
    parts = windows(x, 3, 3, stride, padding, dilation)
    expected = parts.reshape(*parts.shape[:3], -1) @ weight.reshape(7, -1).T
    np.testing.assert_array_equal(found, expected)


def test_what_cannot_be_is_refused():
    x, weight = np.ones((1, 4, 4, 2), np.float32), np.ones((3, 3, 3, 2), np.float32)
    for wrong in ({"stride": 0}, {"dilation": 0}, {"padding": -1}, {"dilation": 2}):
        with pytest.raises(ValueError, match="conv_bias_act: "):
            anyop.conv_bias_act(x, weight, **wrong)
    with pytest.raises(ValueError, match="conv_bias_act: residual has shape"):
        anyop.conv_bias_act(x, weight, residual=np.ones((1, 3, 2, 3), np.float32))
    out = np.ones((1, 2, 3, 3), np.float32)
    with pytest.raises(ValueError, match=r"conv_bias_act_backward: .*as wide as the result"):
        anyop.conv_bias_act_backward(out, x, weight, None, out)
