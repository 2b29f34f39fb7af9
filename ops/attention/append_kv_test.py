# SPDX-License-Identifier: Apache-2.0
"""append_kv in float64: every layout of pages, skipped tokens, slots outside."""

import anyop
import numpy as np
import pytest


def is_fp8(cache):
    """Whether all of it are numbers of float8_e4m3fn, as no other cache of random ones is."""
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="float8 in NumPy is ml_dtypes'")
    return np.array_equal(cache.astype(ml_dtypes.float8_e4m3fn).astype(float), cache, True)


def reference(k_cache, v_cache, k, v, slots, k_scale, v_scale):
    places, P = k_cache.shape[0] * k_cache.shape[1], k_cache.shape[1]
    assert ((slots >= -1) & (slots < places)).all()
    for cache, rows, scale in ((k_cache, k, k_scale), (v_cache, v, v_scale)):
        most = 448 if is_fp8(cache) else np.inf
        factor = 1 if scale is None else np.broadcast_to(scale, cache.shape[2:3])[:, None]
        for t, slot in enumerate(slots):
            if slot >= 0:
                with np.errstate(all="ignore"):
                    cache[slot // P, slot % P] = np.clip(rows[t] * (1 / factor), -most, most)


@pytest.mark.parametrize("slots_dtype", [np.int32, np.int64])
@pytest.mark.parametrize("heads_first", [False, True])
def test_pages_in_either_order(heads_first, slots_dtype):
    random = np.random.default_rng(0)
    N, P, G, D, E, T = 5, 4, 3, 8, 6, 7
    shape = (N, G, P) if heads_first else (N, P, G)
    caches = [random.standard_normal((*shape, n)).astype(np.float32) for n in (D, E)]
    k_cache, v_cache = (c.swapaxes(1, 2) if heads_first else c for c in caches)
    k, v = (random.standard_normal((T, G, n)).astype(np.float32) for n in (D, E))
    slots = np.array([3, -1, 19, 0, 7, -1, 8], slots_dtype)
    exact = [k_cache.copy(), v_cache.copy()]
    reference(*exact, k, v, slots, None, None)
    anyop.append_kv(k_cache, v_cache, k, v, slots)
    np.testing.assert_array_equal(k_cache, exact[0])
    np.testing.assert_array_equal(v_cache, exact[1])


def test_fp8_is_that_of_quant_fp8():
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="float8 in NumPy is ml_dtypes'")
    random = np.random.default_rng(0)
    k, v = (100 * random.standard_normal((6, 2, 8)).astype(np.float32) for _ in range(2))
    caches = [np.zeros((2, 4, 2, 8), ml_dtypes.float8_e4m3fn) for _ in range(2)]
    scales = np.array([0.03, 2], np.float32)
    slots = np.arange(6, dtype=np.int32)
    anyop.append_kv(*caches, k, v, slots, k_scale=scales, v_scale=scales[:1])
    for cache, rows, scale in zip(caches, (k, v), (scales, scales[[0, 0]])):
        for g in range(2):
            expected, _ = anyop.quant_fp8(rows[:, g].copy(), np.full((1, 1), scale[g], np.float32))
            found = cache.reshape(8, 2, 8)[:6, g].astype(float)
            np.testing.assert_array_equal(found, expected.astype(float))


@pytest.mark.parametrize("slot", [-2, 8, 2**31 - 1, -(2**31)])
def test_a_slot_outside_writes_nothing(slot):
    caches = [np.zeros((2, 4, 1, 3), np.float32) for _ in range(2)]
    rows = np.ones((2, 1, 3), np.float32)
    with pytest.raises(IndexError, match=rf"slots\[1\] is {slot}, expected -1 <= slot < 8"):
        anyop.append_kv(*caches, rows, rows, np.array([0, slot], np.int32))
    assert not caches[0].any() and not caches[1].any()
