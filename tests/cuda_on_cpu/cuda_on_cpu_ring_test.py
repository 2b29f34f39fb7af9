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
from cuda_on_cpu_few_test import assert_near_and_each_row_as_alone
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
    random = np.random.default_rng(0)
    x = random.standard_normal((rows, K)).astype(dtype)
    weight = (random.standard_normal((N, K)) / K**0.5).astype(dtype)
    bias = random.standard_normal(N).astype(dtype)
    exact = x.astype(np.float64) @ weight.astype(np.float64).T + bias.astype(np.float64)
    run = on_fibers(anyop.linear)
    assert_near_and_each_row_as_alone(lambda r: run(x[r], weight, bias), x, exact, dtype)


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


@pytest.mark.parametrize("kind", [np.int8, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
@pytest.mark.parametrize(("N", "K"), [(1024, 2048), (1184, 1280)])
def test_8_bits(N, K, kind):
    random = np.random.default_rng(0)
    x, weight = ((random.standard_normal((n, K)) * 9).astype(kind) for n in (1, N))
    scales = [random.random(n, np.float32) + 0.5 for n in (1, N)]
    exact = x.astype(np.float64) @ weight.astype(np.float64).T
    exact *= scales[0][:, None].astype(np.float64) * scales[1]
    run = on_fibers(anyop.linear_w8a8)
    assert_near_and_each_row_as_alone(
        lambda r: run(x[r], weight, scales[0][r], scales[1], out_dtype="float32"),
        x, exact, np.float32,
    )  # fmt: skip


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
    random = np.random.default_rng(0)
    x = random.standard_normal((rows, K)).astype(dtype)
    weight = random.integers(0, 256, (N, K // 2)).astype(np.uint8)
    groups = -(-K // group)
    scale = (random.random((groups, N)) + 0.5).astype(np.float32 if is_wide_scale else dtype)
    zero = random.integers(-(2**31), 2**31, (groups, N // 8)).astype(np.int32)
    zero = {"none": None, "each": zero, "one row": np.broadcast_to(zero[:1], zero.shape)}[zeros]
    wide = anyop.w4_unpack(weight, scale.astype(np.float32), zero, group).astype(np.float64)
    exact = x.astype(np.float64) @ wide.T
    run = on_fibers(anyop.linear_w4)
    assert_near_and_each_row_as_alone(
        lambda r: run(x[r], weight, scale, zero, None, group), x, exact, dtype
    )
