# SPDX-License-Identifier: Apache-2.0
"""fused_add_rms_norm_quant in float64; the numbers are those of quant_fp8 of fused_add_rms_norm in float32."""

import anyop
import ml_dtypes  # noqa: F401  bfloat16
import numpy as np
import pytest


def reference(x, residual, weight, scale, eps, group, weight_offset, dtype):
    limit, D = 127 if dtype == "int8" else 448, x.shape[-1]
    with np.errstate(all="ignore"):
        x = x + residual
        factor = (1 if weight is None else weight) + weight_offset
        y = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * factor
        most = [np.abs(y[..., at : at + group]).max(-1) for at in range(0, D, group)]
        scales = np.empty((*y.shape[:-1], len(most)))
        for g, found in enumerate(most):
            scales[..., g] = np.maximum(found, 1e-10) / limit
        if scale is not None:
            scales[...] = scale
        out = y / np.repeat(scales, min(group, D), -1)[..., :D]
        out = (
            np.clip(np.rint(np.nan_to_num(out, nan=0.0)), -128, 127)
            if limit == 127
            else np.clip(out, -448, 448)
        )
        return out, x, scales


@pytest.mark.parametrize("source", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int8"])
@pytest.mark.parametrize(("D", "group"), [(128, 128), (1025, 128), (8193, 2147483647)])
def test_is_both_operators_without_rounding_between(source, dtype, D, group):
    random = np.random.default_rng(D)
    x, residual = (random.standard_normal((3, D)).astype(source) for _ in range(2))
    weight = random.standard_normal(D).astype(np.float32)
    total = x + residual
    y = anyop.rms_norm(total, weight, weight_offset=1.0, dtype="float32")
    for scale in (None, np.float32([[0.1], [0.2], [0.003]])):
        found = anyop.fused_add_rms_norm_quant(
            x, residual, weight, scale, group=group, weight_offset=1.0, dtype=dtype
        )
        expected = anyop.quant_fp8(y, scale, group=group, dtype=dtype)
        expected = (expected[0], total, expected[1])
        for a, b in zip(found, expected, strict=True):
            assert a.dtype == b.dtype and a.tobytes() == b.tobytes()
