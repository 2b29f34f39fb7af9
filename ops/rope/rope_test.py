# SPDX-License-Identifier: Apache-2.0
"""rope by its formula; positions, packed sequences, padding, long heads, any strides, what is out of range."""

import anyop
import ml_dtypes  # noqa: F401  bfloat16
import numpy as np
import pytest
from rotary_reference import angles, rotated


def reference(x, cos, sin, positions, cu_seqlens, interleaved):
    return rotated(x, cos, sin, positions, cu_seqlens, interleaved)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("D", "R"), [(1024, 1024), (1026, 1026), (2600, 2500), (5000, 4098)])
def test_heads_longer_than_a_block(D, R, interleaved):
    x = np.random.default_rng(D).standard_normal((2, 3, D)).astype(np.float32)
    cos, sin = angles(2, R)
    expected = reference(x.astype(float), cos.astype(float), sin, None, None, interleaved)
    found = anyop.rope(x, cos, sin, interleaved=interleaved)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    assert anyop.rope(x, cos, sin, interleaved=interleaved, out=x) is x
    np.testing.assert_array_equal(x, found)


def test_many_tokens():
    """On all threads of the call; more heads than a block holds."""
    x = np.random.default_rng(0).standard_normal((3, 500, 20, 64)).astype(np.float32)
    cos, sin = angles(500, 48)
    expected = reference(x.astype(float), cos, sin, None, None, True)
    np.testing.assert_allclose(anyop.rope(x, cos, sin, interleaved=True), expected, atol=1e-6)


def test_positions_are_broadcast_and_repeat():
    x = np.random.default_rng(0).standard_normal((3, 4, 2, 8)).astype(np.float32)
    cos, sin = angles(10, 6)
    for shape in [(3, 4), (4,), (1,), (3, 1)]:
        positions = np.random.default_rng(1).integers(0, 10, shape)
        expected = reference(x.astype(float), cos, sin, positions, None, False)
        np.testing.assert_allclose(anyop.rope(x, cos, sin, positions), expected, atol=1e-6)


def test_packed_sequences_are_those_taken_apart():
    """And the tokens before the first and behind the last are copied."""
    x = np.random.default_rng(0).standard_normal((20, 2, 8)).astype(np.float32)
    cos, sin = angles(9, 8)
    ends = [2, 5, 5, 14, 17]
    found = anyop.rope(x, cos, sin, cu_seqlens=np.array(ends, np.int32))
    parts = [anyop.rope(x[a:b], cos, sin) for a, b in zip(ends, ends[1:])]
    np.testing.assert_array_equal(found, np.concatenate([x[:2], *parts, x[17:]]))


def test_memory_of_any_strides():
    """sbhd by a view, heads cut from a fused (q, k, v), a result that is transposed."""
    random = np.random.default_rng(0)
    fused = random.standard_normal((5, 2, 3, 3 * 8)).astype(np.float32)  # s b h 3d
    cos, sin = angles(5, 8)
    x = fused[..., 8:16].swapaxes(0, 1)
    memory = np.zeros((5, 3, 2, 8), np.float32)
    out = memory.transpose(2, 0, 1, 3)
    assert anyop.rope(x, cos, sin, out=out) is out
    np.testing.assert_array_equal(out, anyop.rope(np.ascontiguousarray(x), cos, sin))


def test_out_of_range_is_found_before_anything_is_written():
    x, out = np.ones((2, 4, 1, 2), np.float32), np.full((2, 4, 1, 2), 7, np.float32)
    cos, sin = angles(3, 2)
    for given, message in [
        ({}, "x has sequences of S=4 tokens, expected at most P=3"),
        ({"positions": np.array([[0, 1, 2, 0], [0, 3, 0, 0]])}, r"positions\[1, 1\] is 3, expected 0 <= index < 3"),
        ({"positions": np.array([0, 0, -1, 0], np.int32)}, r"positions\[0, 2\] is -1"),
        ({"cu_seqlens": np.array([0, 3, 2], np.int32)}, r"cu_seqlens\[2\] is 2, expected 3 to 4"),
        ({"cu_seqlens": np.array([0, 2, 5], np.int32)}, r"cu_seqlens\[2\] is 5, expected 2 to 4"),
        ({"cu_seqlens": np.array([-1, 2], np.int32)}, r"cu_seqlens\[0\] is -1, expected 0 to 4"),
        ({"cu_seqlens": np.array([0, 4], np.int32)}, r"cu_seqlens\[1\] is 4, expected 0 to 3.*P=3"),
        ({"cu_seqlens": np.array([2**31 - 1, -(2**31)], np.int32)}, r"cu_seqlens\[0\] is"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=rf"^rope: {message}"):
            anyop.rope(x, cos, sin, **given, out=out)
        assert (out == 7).all()


def test_odd_and_too_large_rotary_sizes():
    x = np.ones((1, 1, 4), np.float32)
    for R, message in [(3, "R of cos and sin to be even"), (6, "R of cos and sin to be at most D")]:
        with pytest.raises(ValueError, match=message):
            anyop.rope(x, *angles(1, R))


def test_distances_alone_matter():
    """What rotary embeddings are for: the product of a query and a key depends on how far they are apart."""
    q, k = (np.random.default_rng(i).standard_normal((1, 1, 64)).astype(np.float32) for i in (0, 1))
    frequency = 10000.0 ** -np.repeat(np.arange(32)[None] / 32, 2, 0).reshape(-1)
    angle = np.arange(50)[:, None] * frequency
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)

    def product(m, n):
        turned = [anyop.rope(t, cos, sin, np.array([p])) for t, p in [(q, m), (k, n)]]
        return float((turned[0] * turned[1]).sum())

    assert product(7, 3) == pytest.approx(product(44, 40), abs=1e-4)
    assert abs(product(7, 3) - product(7, 4)) > 1e-3
