# SPDX-License-Identifier: Apache-2.0
"""Products of few rows by Hopper's ring of weight (weight_ring.h), run by fibers."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import anyop
from cuda_on_cpu_few_test import (
    BYTES,
    assert_near_and_each_row_as_alone,
    check_4_bits,
    check_8_bits,
    check_16_bits,
)
from fibers import on_fibers, running

ml_dtypes = pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy is ml_dtypes'")
KERNELS = {
    "linear": "cuda_ring_sm90", "linear_gated": "cuda_ring_sm90",
    "linear_w4": "cuda_ring_rows_sm90", "linear_w8a8": "cuda_ring_sm90",
}  # fmt: skip
# On 12 multiprocessors blocks walk over 1,024 results; 1,184 share out better among wide ones.


@pytest.fixture(scope="module", autouse=True)
def registered(tmp_path_factory):
    with ExitStack() as stack:
        for name, backend in KERNELS.items():
            stack.enter_context(running(tmp_path_factory.mktemp(name), [name], backend))
        yield


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(("N", "K"), [(1024, 1088), (1184, 1024), (1024, 4096)])
def test_16_bits(rows, N, K, dtype):
    check_16_bits(rows, N, K, dtype)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(("D", "K", "activation"), [(512, 1088, "silu"), (520, 4096, "none")])
def test_gated(rows, D, K, activation, dtype):
    random = np.random.default_rng(0)
    x = random.standard_normal((rows, K)).astype(dtype)
    weight = (random.standard_normal((2 * D, K)) / K**0.5).astype(dtype)
    gate, value = np.split(x.astype(np.float64) @ weight.astype(np.float64).T, 2, axis=1)
    exact = value * (gate if activation == "none" else gate / (1 + np.exp(-gate)))
    run = on_fibers(anyop.linear_gated)
    assert_near_and_each_row_as_alone(lambda r: run(x[r], weight, activation), x, exact, dtype)


@pytest.mark.parametrize("kind", BYTES)
@pytest.mark.parametrize(("N", "K"), [(1024, 2048), (1184, 1280)])
def test_8_bits(N, K, kind):
    check_8_bits(1, N, K, kind)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(
    ("N", "K", "group", "zeros", "is_wide_scale"),
    [
        (1024, 2048, 128, "each", False), (1184, 4352, 256, "none", True),
        (1184, 4352, 256, "one row", False), (1024, 2304, 2304, "none", False),
    ],
)  # fmt: skip
def test_4_bits(rows, N, K, group, zeros, is_wide_scale, dtype):
    check_4_bits(rows, N, K, group, zeros, dtype, np.float32 if is_wide_scale else dtype)
