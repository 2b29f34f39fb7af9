# SPDX-License-Identifier: Apache-2.0
"""silu_and_mul_quant in float64; the numbers are those of quant_fp8 of silu_and_mul in float32."""

import anyop
import ml_dtypes  # noqa: F401  bfloat16
import numpy as np
import pytest


def reference(x, scale, group, dtype):
    gate, value = np.split(x, 2, axis=-1)
    limit = 127 if dtype == "int8" else 448
    with np.errstate(all="ignore"):
        y = gate / (1 + np.exp(-gate)) * value
        most = [np.abs(y[..., at : at + group]).max(-1) for at in range(0, y.shape[-1], group)]
        scales = np.empty((*y.shape[:-1], len(most)))
        for g, found in enumerate(most):
            scales[..., g] = np.maximum(found, 1e-10) / limit
        if scale is not None:
            scales[...] = scale
        out = y / np.repeat(scales, min(group, y.shape[-1]), -1)[..., : y.shape[-1]]
        if dtype == "int8":
            return np.clip(np.rint(np.nan_to_num(out, nan=0.0)), -128, 127), scales
        return np.clip(out, -448, 448), scales


@pytest.mark.parametrize("source", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int8"])
@pytest.mark.parametrize(("D", "group"), [(128, 128), (1025, 128), (8193, 2147483647)])
def test_is_both_operators_without_rounding_between(source, dtype, D, group):
    x = np.random.default_rng(D).standard_normal((3, 2 * D)).astype(source)
    y = anyop.silu_and_mul(x.astype(np.float32))
    for scale in (None, np.float32([[0.1], [0.2], [0.003]])):
        found = anyop.silu_and_mul_quant(x, scale, group=group, dtype=dtype)
        expected = anyop.quant_fp8(y, scale, group=group, dtype=dtype)
        for a, b in zip(found, expected, strict=True):
            assert a.dtype == b.dtype and a.tobytes() == b.tobytes()
