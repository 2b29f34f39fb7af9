# SPDX-License-Identifier: Apache-2.0
"""Products for Hopper alone that need no cluster, by fibers (hopper_on_cpu_test.py): segments with scales of blocks.

Numbers are whole and scales powers of two, so that sums are exact and each result is the CPU's.
"""

from __future__ import annotations

import sys
from pathlib import Path

import anyop
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fibers import arrays, compile_kernels, on_fibers, register, remove, same_bits

ml_dtypes = pytest.importorskip("ml_dtypes", reason="float8_e4m3fn in NumPy is ml_dtypes'")
E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
NAMES = ["grouped_linear_fp8_block", "grouped_linear_fp8_block_masked", "fused_moe_fp8_block"]
pytestmark = pytest.mark.drawn(2, together="hopper on fibers")


@pytest.fixture(scope="module", autouse=True)
def registered(tmp_path_factory):
    library = compile_kernels(tmp_path_factory.mktemp("hopper"), NAMES, "cuda_sm90")
    register(library, NAMES, "cuda_sm90")
    yield
    remove(NAMES)


@pytest.fixture(autouse=True)
def no_other_kernel(monkeypatch):
    monkeypatch.setenv("ANYOP_FALLBACK", "error")


def whole(random, most, *shape):
    return random.integers(-most, most + 1, shape).astype(E4M3)


def scales(random, *shape):
    return np.exp2(random.integers(-2, 3, shape)).astype(np.float32)


def assert_the_cpus_bits(function, *given, **options):
    found = arrays(on_fibers(function)(*given, **options))
    assert same_bits(found, arrays(on_fibers(function)(*given, **options)))
    assert same_bits(found, arrays(function(*given, **options)))


# Offsets of 269 rows, N, K: empty segments and tiles of one row, of 128 and of two; rows of no segment; falling. There
# are as many tiles as the fibers' multiprocessors, 12, or others take them.
GROUPED = [
    ([0, 3, 3, 140, 149, 269], 528, 144), ([9, 137, 138], 520, 400), ([0, 5, 5, 133, *[269] * 9], 137, 144),
    ([7, 200, 100, *range(260, 270)], 16, 272),
]  # fmt: skip


@pytest.mark.parametrize(("offsets", "N", "K"), GROUPED)
def test_segments(offsets, N, K):
    random, blocks = np.random.default_rng(N), (-(-N // 128), -(-K // 128))
    x, weight = whole(random, 2, 269, K), whole(random, 2, len(offsets) - 1, N, K)
    x_scale, weight_scale = scales(random, 269, blocks[1]), scales(random, len(weight), *blocks)
    offsets = np.array(offsets, np.int32)
    for given, out in ((x_scale, "bfloat16"), (np.asfortranarray(x_scale), "float16")):
        call = (x, weight, given, weight_scale, offsets)
        assert_the_cpus_bits(anyop.grouped_linear_fp8_block, *call, out)


def test_masked():
    random, C = np.random.default_rng(0), 150
    x, weight = whole(random, 2, 4, C, 144), whole(random, 2, 4, 264, 144)
    counts = np.array([0, 1, 140, C + 9], np.int32)
    call = (x, weight, scales(random, 4, C, 2), scales(random, 4, 3, 2), counts)
    assert_the_cpus_bits(anyop.grouped_linear_fp8_block_masked, *call)


@pytest.mark.parametrize(("activation", "inner"), [("relu2", 272), ("silu", 144), ("gelu", 256)])
def test_experts(activation, inner):
    """relu2's numbers are the CPU's; of others a code may differ. Features of 128s become codes in their tiles."""
    T, E, K, H = 90, 6, 3, 272
    random, width = np.random.default_rng(inner), inner * (1 if activation == "relu2" else 2)
    x = random.integers(-8, 9, (T, H)).astype(np.float32)
    x[:, ::128] = 448  # a scale of 1
    w13, w2 = whole(random, 1, E, width, H), whole(random, 1, E, H, inner)
    w13_scale, w2_scale = (
        np.exp2(-random.integers(6, 9, (E, -(-n // 128), -(-k // 128)))).astype(np.float32)
        for n, k in ((width, H), (H, inner))
    )
    ids = random.choice([-1, 0, 2, 5, E], (T, K)).astype(np.int32)
    weights = np.exp2(-random.integers(0, 3, (T, K))).astype(np.float32)
    call = (x, w13, w2, w13_scale, w2_scale, weights, ids)
    found = on_fibers(anyop.fused_moe_fp8_block)(*call, activation=activation).astype(float)
    exact = anyop.fused_moe_fp8_block(*call, activation=activation, out_dtype="float32")
    error = np.abs(found - exact).max() / np.abs(exact).max()
    assert error <= (2.0**-8 if activation == "relu2" else 0.02)
