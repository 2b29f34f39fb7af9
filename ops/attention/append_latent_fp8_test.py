# SPDX-License-Identifier: Apache-2.0
"""append_latent_fp8 byte by byte: as quant_fp8, what is not finite, rows at any byte, skipped tokens, slots outside."""

import anyop
import numpy as np
import pytest

GROUPS = np.split(np.arange(512), 4)


def row_of(latent, rope):
    """656 bytes. All in float32, as the convention of quant_fp8 says."""
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="float8 in NumPy is ml_dtypes'")
    scales = np.array([max(np.abs(latent[g]).max(), 1e-10) for g in GROUPS], np.float32)
    scales /= np.float32(448)
    factors = np.repeat(1 / scales, 128)
    numbers = np.clip(latent.astype(np.float32) * factors, -448, 448)
    parts = numbers.astype(ml_dtypes.float8_e4m3fn), scales, rope.astype(ml_dtypes.bfloat16)
    return np.concatenate([part.view(np.uint8) for part in parts])


def reference(cache, latent, rope, slots):
    P = cache.shape[1]
    assert ((slots >= -1) & (slots < cache.shape[0] * P)).all()
    for t, slot in enumerate(slots):
        if slot >= 0:
            cache[slot // P, slot % P] = row_of(latent[t], rope[t].astype(np.float32))


def drawn(T, dtype=np.float32):
    """Tokens of very different sizes, so that groups have scales of their own."""
    random = np.random.default_rng(0)
    sizes = np.repeat(10.0 ** random.integers(-3, 4, (T, 4)), 128, 1)
    latent = (random.standard_normal((T, 512)) * sizes).astype(dtype)
    return latent, random.standard_normal((T, 64)).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_numbers_and_scales_are_those_of_quant_fp8(dtype):
    latent, rope = drawn(6, dtype)
    latent[0, :128] = 0
    latent[1, 3] = np.inf
    latent[2, 200] = np.nan
    latent[3, 500] = -np.inf
    cache = np.full((2, 3, 656), 7, np.uint8)
    anyop.append_latent_fp8(cache, latent, rope, np.arange(6, dtype=np.int32))
    numbers, scales = anyop.quant_fp8(latent, group=128)
    rows = cache.reshape(6, 656)
    np.testing.assert_array_equal(rows[:, :512], numbers.view(np.uint8))
    np.testing.assert_array_equal(rows[:, 512:528].copy().view(np.float32), scales)
    widened = rows[:, 528:].copy().view(np.uint16).astype(np.uint32) << 16
    np.testing.assert_allclose(widened.view(np.float32), rope.astype(np.float32), rtol=2**-8)


@pytest.mark.parametrize("slots_dtype", [np.int32, np.int64])
def test_rows_at_any_byte_and_skipped_tokens(slots_dtype):
    """A cache whose pages and rows have odd room behind them: the room stays."""
    random = np.random.default_rng(0)
    room = random.integers(0, 256, (5, 6, 659)).astype(np.uint8)[:, :, 1:]
    cache, exact = room[:, :4, :656], room.copy()
    latent, rope = drawn(7)
    slots = np.array([3, -1, 19, 0, 7, -1, 8], slots_dtype)
    reference(exact[:, :4, :656], latent, rope, slots)
    anyop.append_latent_fp8(cache, latent, rope, slots)
    np.testing.assert_array_equal(room, exact)


@pytest.mark.parametrize("slot", [-2, 8, 2**31 - 1, -(2**31)])
def test_a_slot_outside_writes_nothing(slot):
    cache = np.zeros((2, 4, 656), np.uint8)
    with pytest.raises(IndexError, match=rf"slots\[1\] is {slot}, expected -1 <= slot < 8"):
        anyop.append_latent_fp8(cache, *drawn(2), np.array([0, slot], np.int32))
    assert not cache.any()
