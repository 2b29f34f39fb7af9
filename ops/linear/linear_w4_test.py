# SPDX-License-Identifier: Apache-2.0
"""linear_w4 in float64: few rows exactly, many rows within the rounding of the weights, checkpoints."""

import importlib.util
from pathlib import Path

import anyop
import ml_dtypes
import numpy as np
import pytest

_spec = importlib.util.spec_from_file_location(
    "w4_unpack_reference", Path(__file__).with_name("w4_unpack_test.py")
)
_other = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_other)


def reference(x, weight, scale, zero, bias, group_size):
    with np.errstate(all="ignore"):
        product = x @ _other.unpacked(weight, scale.astype(float), zero, group_size).T
        return product + (0 if bias is None else bias)


def drawn(M, K, N, group, dtype, seed=0):
    random = np.random.default_rng(seed)
    groups = -(-K // group)
    return {
        "x": random.standard_normal((M, K)).astype(dtype),
        "weight": random.integers(0, 256, (N, K // 2)).astype(np.uint8),
        "scale": random.uniform(0.0006, 0.003, (groups, N)).astype(np.float32),
        "zero": random.integers(-(2**31), 2**31, (groups, -(-N // 8))).astype(np.int32),
        "bias": random.standard_normal(N).astype(dtype),
        "group_size": group,
    }


def in_float64(arguments):
    return {
        name: value.astype(float) if name in ("x", "scale", "bias") else value
        for name, value in arguments.items()
    }


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("rows", [1, 4, 7, 16, 17, 100])
def test_longer_sums(rows, dtype):
    """An error of a sum in float32, in whatever order, and the rounding of the result.

    Of many rows of bfloat16 each factor is rounded first: by 2^-8 of it at most, so a sum by at most
    2^-8 of what the absolute values of its terms come to.
    """
    K, N = 1100, 150
    arguments = drawn(rows, K, N, 2048, ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype, rows)
    wide = in_float64(arguments)
    expected = reference(**wide)
    weights = _other.unpacked(wide["weight"], wide["scale"], wide["zero"], 2048)
    magnitude = np.abs(wide["x"]) @ np.abs(weights).T + np.abs(wide["bias"])
    step = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    factor = 2.0**-8 if dtype == "bfloat16" and rows > 16 else 0
    bound = magnitude * (K * 2.0**-24 + factor) + np.abs(expected) * step + 1e-7
    error = np.abs(anyop.linear_w4(**arguments).astype(float) - expected)
    assert (error <= bound).all(), (error / bound).max()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_row_does_not_depend_on_others(dtype):
    """Among few rows, whatever their number, to the last bit."""
    arguments = drawn(16, 256, 45, 64, ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    all_rows = anyop.linear_w4(**arguments)
    for rows in (1, 2, 3, 5, 11):
        some = anyop.linear_w4(**{**arguments, "x": arguments["x"][:rows]})
        assert some.tobytes() == all_rows[:rows].tobytes()


@pytest.mark.parametrize("threads", [1, 3])
def test_the_bits_do_not_depend_on_the_threads(threads):
    arguments = drawn(5, 512, 200, 128, np.float32)
    before = anyop.get_num_threads()
    expected = anyop.linear_w4(**arguments)
    anyop.set_num_threads(threads)
    try:
        assert anyop.linear_w4(**arguments).tobytes() == expected.tobytes()
    finally:
        anyop.set_num_threads(before)


def test_a_checkpoint_of_awq():
    """Tensors as AutoAWQ's WQLinear_GEMM has them, made here from known weights."""
    K, N, group = 128, 24, 64
    random = np.random.default_rng(1)
    numbers, zeros = random.integers(0, 16, (K, N)), random.integers(0, 16, (K // group, N))
    scales = random.uniform(0.01, 0.02, (K // group, N)).astype(np.float16)

    def in_words(values):
        shifts = 4 * np.array(
            [0, 4, 1, 5, 2, 6, 3, 7]
        )  # results 0 2 4 6 1 3 5 7 from the low bits on
        words = values.reshape(len(values), -1, 8).astype(np.uint32) << shifts.astype(np.uint32)
        return np.bitwise_or.reduce(words, axis=-1).view(np.int32)

    weight, zero = anyop.w4_pack(in_words(numbers), in_words(zeros))
    x = random.standard_normal((3, K)).astype(np.float16)
    found = anyop.linear_w4(x, weight, scales, zero, group_size=group)
    dense = (numbers - zeros.repeat(group, 0)) * scales.astype(float).repeat(group, 0)
    np.testing.assert_allclose(found, x.astype(float) @ dense, rtol=1e-3, atol=1e-3)


def test_bad_sizes():
    arguments = drawn(2, 64, 16, 32, np.float32)
    with pytest.raises(ValueError, match=r"^linear_w4: scale has shape \(2, 16\), expected"):
        anyop.linear_w4(**{**arguments, "group_size": 64})
    with pytest.raises(ValueError, match=r"^linear_w4: weight has shape \(16, 16\), expected"):
        anyop.linear_w4(**{**arguments, "weight": arguments["weight"][:, :16].copy()})
    with pytest.raises(ValueError, match=r"^linear_w4: zero has shape \(2, 3\), expected"):
        anyop.linear_w4(**{**arguments, "zero": np.zeros((2, 3), np.int32)})


def test_a_group_longer_than_any_row():
    """As one of the row's length: nothing overflows."""
    for rows in (1, 3, 17):
        arguments = drawn(rows, 40, 9, 64, np.float32)
        wanted = anyop.linear_w4(**arguments)
        unpacked = [arguments[name] for name in ("weight", "scale", "zero")]
        for group in (2**40, 2**63 - 32, 2**63 - 1):
            np.testing.assert_array_equal(
                anyop.linear_w4(**arguments | {"group_size": group}), wanted
            )
            np.testing.assert_array_equal(
                anyop.w4_unpack(*unpacked, group), anyop.w4_unpack(*unpacked, 64)
            )
