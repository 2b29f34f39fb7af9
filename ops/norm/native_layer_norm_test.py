# SPDX-License-Identifier: Apache-2.0
"""native_layer_norm in float64: the result, the mean and the reciprocal of the standard deviation."""

import anyop
import numpy as np
import pytest


def reference(x, weight, bias, eps, weight_offset, dtype=None):
    with np.errstate(all="ignore"):
        mean = x.mean(-1, keepdims=True)
        centred = x - mean
        rstd = 1 / np.sqrt((centred * centred).mean(-1, keepdims=True) + eps)
    if not x.shape[-1]:
        mean, rstd = np.zeros_like(mean), np.full_like(rstd, 1 / np.sqrt(eps))
    out = centred * rstd
    out = out * ((1 if weight is None else weight) + weight_offset)
    return out if bias is None else out + bias, mean, rstd


def test_equals_torch():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x, weight, bias = torch.randn(3, 7, 50), torch.randn(50), torch.randn(50)
    found = anyop.native_layer_norm(x, weight, bias)
    for ours, theirs in zip(
        found, torch.native_layer_norm(x, (50,), weight, bias, 1e-5), strict=True
    ):
        torch.testing.assert_close(ours, theirs)
