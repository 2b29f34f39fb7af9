# SPDX-License-Identifier: Apache-2.0
"""w4_unpack in float64, by the description of the layout; what w4_pack packs comes back."""

import anyop
import numpy as np
import pytest


def numbers_of(weight):
    """Numbers 0 to 15, (N, K)."""
    N, K = len(weight), 2 * weight.shape[1]
    whole, rest = np.split(weight, [K // 32 * 16], axis=1)
    words = np.ascontiguousarray(whole).view("<u4").reshape(N, K // 32, 1, 4, 1)  # b, i, t, odd
    shifts = 4 * np.arange(4, dtype=np.uint32).reshape(4, 1, 1) + 16 * np.arange(2, dtype=np.uint32)
    blocks = (words >> shifts & 15).reshape(N, K // 32 * 32)
    return np.concatenate([blocks, np.stack([rest & 15, rest >> 4], -1).reshape(N, K % 32)], axis=1)


def zeros_of(zero, groups, N):
    """Zero points (groups, N); 8 without any."""
    if zero is None:
        return np.full((groups, N), 8)
    words = np.broadcast_to(zero, (groups, (N + 7) // 8)).astype(np.int64)[..., None]
    return (words >> np.arange(0, 32, 4) & 15).reshape(groups, (N + 7) // 8 * 8)[:, :N]


def unpacked(weight, scale, zero, group_size):
    """The weights in float64."""
    groups, N = scale.shape
    group = np.arange(2 * weight.shape[1]) // group_size
    return (numbers_of(weight) - zeros_of(zero, groups, N)[group].T) * scale[group].T


def reference(weight, scale, zero, group_size):
    return unpacked(weight, scale, zero, group_size)


@pytest.mark.parametrize("K", [64, 128, 38])
def test_what_was_packed_comes_back(K):
    random = np.random.default_rng(K)
    numbers = random.integers(0, 16, (11, K)).astype(np.uint8)
    weight, zero = anyop.w4_pack(numbers[:, ::2] | numbers[:, 1::2] << 4, format="plain")
    group = 32 if K % 32 == 0 else K
    scale = random.uniform(0.01, 1, (K // group, 11)).astype(np.float32)
    found = anyop.w4_unpack(weight, scale, zero, group)
    expected = (numbers - np.float32(8)) * scale.repeat(group, 0).T
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(anyop.w4_unpack(weight, scale, group_size=group), expected)


def test_groups_that_cut_a_block_are_refused():
    weight, scale = np.zeros((8, 32), np.uint8), np.ones((2, 8), np.float32)
    with pytest.raises(ValueError, match=r"^w4_unpack: expected group_size to be a multiple of 32"):
        anyop.w4_unpack(weight, scale, group_size=48)
    with pytest.raises(ValueError, match=r"^w4_unpack: scale has shape \(2, 8\), expected"):
        anyop.w4_unpack(weight, scale, group_size=64)
