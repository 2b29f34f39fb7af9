# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernels of experts by fibers (cuda_on_cpu_test.py): many tiles and experts give the bits of the CPU."""

from __future__ import annotations

import sys
from pathlib import Path

import anyop
import ml_dtypes
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from drawn import few
from fibers import arrays, on_fibers, running, same_bits

NAMES = ["fused_moe", "native_fused_moe", "fused_moe_backward"]
NAMES += ["fused_moe_w8a8", "fused_moe_fp8_block", "moe_sort", "moe_align"]
pytestmark = pytest.mark.drawn(2, together="operators on fibers")


@pytest.fixture(scope="module", autouse=True)
def registered(tmp_path_factory):
    with running(tmp_path_factory.mktemp("cuda_on_cpu"), NAMES):
        yield


def routed(T: int, E: int, K: int) -> tuple[np.ndarray, np.ndarray]:
    """Powers of two as weights, and ids of few experts; half of all tokens go to one, some slots to none."""
    random = np.random.default_rng(T)
    ids = random.choice([-1, 0, 17, 33, E - 1, E], (T, K)).astype(np.int32)
    ids[: T // 2, 0] = 3
    return np.exp2(-random.integers(0, 3, (T, K))).astype(np.float32), ids


def whole(random: np.random.Generator, dtype: str, *shape: int) -> np.ndarray:
    """Their sums are exact, so each kernel rounds the same number."""
    return random.integers(-1, 2, shape).astype(getattr(ml_dtypes, dtype, dtype))


@pytest.mark.parametrize("experts", [1, 2, 33, 511, 513, 1024])
def test_sorts_of_several_blocks(experts):
    """Every expert's number in some slot, one expert with many, some slots of none: the CPU's order to the last."""
    random = np.random.default_rng(experts)
    ids = random.integers(-1, experts + 1, (1250, 5)).astype(np.int32)
    ids[::3, 1] = experts // 2
    for call in [
        (anyop.moe_sort, ids, experts),
        (anyop.moe_sort, ids[:9], experts),
        (anyop.moe_align, ids, experts, 48),
    ]:
        found, expected = arrays(on_fibers(call[0])(*call[1:])), arrays(call[0](*call[1:]))
        assert same_bits(found, expected)


T, E, K, WIDTH = 150, 35, 3, 138
# Of 16 bytes, and not; more columns than a tile has.
SIZES = [(H, dtype, transposed) for H in (136, 137) for dtype in ("float32", "bfloat16")
         for transposed in (0, 1)]  # fmt: skip


@pytest.mark.parametrize(("H", "dtype", "transposed"), few(SIZES, 2, "experts"))
def test_experts_and_their_gradients(H, dtype, transposed):
    """relu2, with gates up to 4: hidden features are whole, too."""
    random, width = np.random.default_rng(H), WIDTH if H % 8 else WIDTH + 6
    x, grad = (whole(random, dtype, T, H) for _ in range(2))
    w13, w2 = whole(random, dtype, E, width, H), whole(random, dtype, E, H, width)
    if transposed:
        w13, w2 = (np.ascontiguousarray(w.swapaxes(1, 2)) for w in (w13, w2))
    bias13, bias2 = whole(random, dtype, E, width), whole(random, dtype, E, H)
    form = {"activation": "relu2", "limit": 4.0, "transposed": transposed}
    call = (x, w13, w2, *routed(T, E, K), bias13, bias2)
    expected = arrays(anyop.native_fused_moe(*call, **form))
    there = on_fibers(anyop.native_fused_moe)
    assert same_bits(arrays(there(*call, **form)), expected)
    assert same_bits(arrays(on_fibers(anyop.fused_moe)(*call, **form)), expected[:1])
    # Gradients of sums of sums are whole numbers below 2^24 only where grad_out is rare.
    grad[:, 3:] = 0
    back = (grad, x, w13, w2, call[3], *expected[1:], bias2)
    found = arrays(on_fibers(anyop.fused_moe_backward)(*back, **form))
    for result, exact in zip(found, arrays(anyop.fused_moe_backward(*back, **form)), strict=True):
        assert result.tobytes() == exact.tobytes()


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
def test_what_ends_in_tiles(activation):
    """Gates, ups and hidden features, kept or not: within the roundings of both."""
    random = np.random.default_rng(0)
    x, w13 = whole(random, "float16", T, 72), whole(random, "float16", E, WIDTH, 72)
    w2 = whole(random, "float16", E, 72, WIDTH // 2)
    call = (x, w13, w2, *routed(T, E, K))
    found = arrays(on_fibers(anyop.native_fused_moe)(*call, activation=activation))
    expected = arrays(anyop.native_fused_moe(*call, activation=activation))
    assert same_bits(found[1:], expected[1:])
    assert same_bits(found[:1], arrays(on_fibers(anyop.fused_moe)(*call, activation=activation)))
    scale = np.abs(expected[0].astype(float)).max()
    assert np.abs(found[0].astype(float) - expected[0].astype(float)).max() <= 2e-3 * scale


@pytest.mark.parametrize("H", [264, 200])
@pytest.mark.parametrize("name", ["fused_moe_w8a8", "fused_moe_fp8_block"])
def test_weights_of_8_bits(name, H):
    """Whole tokens whose scale is 1, so that sums are exact: each code is the CPU's."""
    random = np.random.default_rng(H)
    weights, ids = routed(T, E, K)
    x = random.integers(-8, 9, (T, H)).astype(np.float32)
    x[:, ::128] = 448
    for kind in ("int8", "float8_e4m3fn") if name == "fused_moe_w8a8" else ("float8_e4m3fn",):
        w13, w2 = whole(random, kind, E, WIDTH, H), whole(random, kind, E, H, WIDTH)
        shapes = [(E, WIDTH), (E, H)]
        if name == "fused_moe_fp8_block":
            shapes = [(E, 2, -(-H // 128)), (E, -(-H // 128), 2)]
        if kind == "int8":
            x[:, ::128] = 127
        scales = (np.exp2(-random.integers(3, 6, s)).astype(np.float32) for s in shapes)
        call = (x, w13, w2, *scales, weights, ids)
        form = {"activation": "relu2", "out_dtype": "float32"}
        found = arrays(on_fibers(getattr(anyop, name))(*call, **form))[0]
        expected = arrays(getattr(anyop, name)(*call, **form))[0]
        np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6 * np.abs(expected).max())
