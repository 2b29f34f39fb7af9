# SPDX-License-Identifier: Apache-2.0
"""What operators of rows say of bad input: names, what was found and expected, with the sizes that are known."""

from __future__ import annotations

import re

import anyop
import numpy as np
import pytest


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


X, TABLE, W = zeros(2, 3, 4, 8), zeros(16, 8), zeros(7)
MASKS = [(2, 1, 4, 7), (2, 2, 4, 8), (1, 2, 3, 4, 8)]
NORMS = ["rms_norm", "layer_norm", "native_rms_norm", "native_layer_norm", "rms_norm_quant"]
FUSED = ["fused_add_rms_norm", "fused_add_layer_norm", "fused_add_rms_norm_quant"]
QUANT = ["quant_fp8", "silu_and_mul_quant", "rms_norm_quant"]
TURNED = {"rope": (X,), "rope_qk": (X, X), "qk_norm_rope": (X, X, zeros(8), zeros(8))}
CASES = [
    *[("scaled_masked_softmax", (X, zeros(*shape, dtype=bool)), {}, ValueError,
       f"mask has shape {shape}, expected (expand(* D)) with *=(2, 3, 4), D=8") for shape in MASKS],
    ("scaled_masked_softmax", (X, X), {}, TypeError, "mask has dtype float32, expected bool, uint8"),
    *[(name, (X, W), {}, ValueError, "weight has shape (7), expected (D) with D=8") for name in NORMS],
    *[(name, (X, X, W), {}, ValueError, "weight has shape (7), expected (D) with D=8") for name in FUSED],
    *[(name, (X, X[:1]), {}, ValueError,
       "residual has shape (1, 3, 4, 8), expected (* D) with *=(2, 3, 4), D=8") for name in FUSED],
    *[(name, (X,), {"group": group}, ValueError, f"expected group > 0 with group={group}")
      for name in QUANT for group in (0, -1)],
    *[(name, (*given, TABLE[:, :3], TABLE[:, :3]), {}, ValueError,
       "expected the rotary size R of cos and sin to be even with R=3") for name, given in TURNED.items()],
    *[(name, (*given, TABLE, TABLE, np.array([0, 16, 1])), {}, ValueError,
       "positions[0, 1] is 16, expected 0 <= index < 16") for name, given in TURNED.items()],
    ("rope", (zeros(10, 2, 8), TABLE, TABLE, None, np.array([0, 5, 11], np.int32)), {}, ValueError,
     "cu_seqlens[2] is 11, expected 5 to 10"),
    ("embedding", (np.array([0, 16]), TABLE), {}, ValueError, "indices[1] is 16, expected 0 <= index < 16"),
    ("embedding_backward", (zeros(2, 8), np.array([-1, 0]), 16), {}, ValueError,
     "indices[0] is -1, expected 0 <= index < 16"),
    ("topk_backward", (zeros(2, 1), np.array([[0], [9]]), 5), {}, ValueError,
     "indices[1, 0] is 9, expected 0 <= index < 5"),
    ("softmax", (zeros(2, 8, dtype=np.int32),), {}, TypeError,
     "x has dtype int32, expected float16, bfloat16, float32, float64"),
    ("quant_fp8", (X,), {"dtype": "float32"}, TypeError, "dtype is float32, expected int8, float8_e4m3fn"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "arguments", "given", "error", "message"), CASES, ids=lambda value: f"{value}"[:40]
)
def test_bad_input(name, arguments, given, error, message):
    with pytest.raises(error, match=re.escape(f"{name}: {message}")):
        getattr(anyop, name)(*arguments, **given)
