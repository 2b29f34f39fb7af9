# SPDX-License-Identifier: Apache-2.0
"""Products of at most eight rows (four, of 4 bits) by the CUDA kernels for these, run by fibers."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from anyop import testing

sys.path.insert(0, str(Path(__file__).parent))

import anyop
from drawn import few
from fibers import on_fibers, running, same_bits

ml_dtypes = pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy is ml_dtypes'")
KERNELS = {"linear": "cuda_few", "linear_w4": "cuda_few_sm90", "linear_w8a8": "cuda_few_sm90"}
SUBJECTS = {s.name: s for s in testing.find_subjects(Path(__file__).parents[2] / "ops")}
UNITS = {np.float16: 2.0**-11, ml_dtypes.bfloat16: 2.0**-8, np.float32: 2.0**-20}
BYTES = [np.int8, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]
ROWS = [1, 3, 8]


@pytest.fixture(scope="module", autouse=True)
def registered(tmp_path_factory):
    with ExitStack() as stack:
        for name, backend in KERNELS.items():
            stack.enter_context(running(tmp_path_factory.mktemp(name), [name], backend))
        yield


@pytest.mark.parametrize("name", KERNELS)
def test_standard_cases(name):
    subject, tried = SUBJECTS[name], 0
    there = replace(subject.on("cuda"), function=on_fibers(subject.function))
    for choice in testing.dtype_choices(subject.metadata):
        for case in few(testing.good_cases(subject, choice), 40, str(choice)):
            try:
                testing.check_case(there, case)
            except NotImplementedError:
                continue
            tried += 1
    assert tried >= 4


def assert_near_and_each_row_as_alone(function, x, exact, dtype):
    """Of each row the bits that it gets alone. function: of some of the rows."""
    found = function(slice(None))
    error = np.abs(found.astype(np.float64) - exact)
    assert np.all(error <= 1e-5 * np.abs(exact).max() + UNITS[dtype] * np.abs(exact))
    for r in range(len(x)):
        assert same_bits(function(slice(r, r + 1)), found[r : r + 1])


def check_16_bits(rows, N, K, dtype):
    random = np.random.default_rng(0)
    x = random.standard_normal((rows, K)).astype(dtype)
    weight = (random.standard_normal((N, K)) / K**0.5).astype(dtype)
    bias = random.standard_normal(N).astype(dtype)
    exact = x.astype(np.float64) @ weight.astype(np.float64).T + bias.astype(np.float64)
    run = on_fibers(anyop.linear)
    assert_near_and_each_row_as_alone(lambda r: run(x[r], weight, bias), x, exact, dtype)


def check_8_bits(rows, N, K, kind):
    """Exact products, also in float32, which Hopper's own tiles do not give."""
    random = np.random.default_rng(0)
    x, weight = ((random.standard_normal((n, K)) * 9).astype(kind) for n in (rows, N))
    scales = [random.random(n, np.float32) + 0.5 for n in (rows, N)]
    exact = x.astype(np.float64) @ weight.astype(np.float64).T
    exact *= scales[0][:, None].astype(np.float64) * scales[1]
    run = on_fibers(anyop.linear_w8a8)
    assert_near_and_each_row_as_alone(
        lambda r: run(x[r], weight, scales[0][r], scales[1], out_dtype="float32"),
        x, exact, np.float32,
    )  # fmt: skip


def check_4_bits(rows, N, K, group, zeros, dtype, scale_dtype=np.float32):
    """zeros: "each", "one row" for all groups, or "none"."""
    random = np.random.default_rng(0)
    x = random.standard_normal((rows, K)).astype(dtype)
    weight = random.integers(0, 256, (N, K // 2)).astype(np.uint8)
    groups = -(-K // group)
    scale = (random.random((groups, N)) + 0.5).astype(scale_dtype)
    zero = random.integers(-(2**31), 2**31, (groups, -(-N // 8))).astype(np.int32)
    zero = {"none": None, "each": zero, "one row": np.broadcast_to(zero[:1], zero.shape)}[zeros]
    wide = anyop.w4_unpack(weight, scale.astype(np.float32), zero, group).astype(np.float64)
    exact = x.astype(np.float64) @ wide.T
    run = on_fibers(anyop.linear_w4)
    assert_near_and_each_row_as_alone(
        lambda r: run(x[r], weight, scale, zero, None, group), x, exact, dtype
    )


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("N", "K"), [(48, 1024), (19, 3080), (5, 8), (1, 136)])
def test_16_bits(rows, N, K, dtype):
    check_16_bits(rows, N, K, dtype)


@pytest.mark.parametrize("kind", BYTES)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("N", "K"), [(48, 2048), (19, 2064), (5, 16), (1, 272)])
def test_8_bits(rows, N, K, kind):
    check_8_bits(rows, N, K, kind)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("rows", [1, 3, 4])
@pytest.mark.parametrize(
    ("N", "K", "group"),
    [(48, 1024, 128), (24, 4352, 256), (16, 352, 352), (19, 224, 256), (40, 5120, 128)],
)
@pytest.mark.parametrize("zeros", ["none", "each"])
def test_4_bits(rows, N, K, group, zeros, dtype):
    check_4_bits(rows, N, K, group, zeros, dtype)
