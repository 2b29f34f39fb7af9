# SPDX-License-Identifier: Apache-2.0
"""w4_pack by the description of its layout, bit by bit, and with words whose numbers are known."""

import anyop
import numpy as np
import pytest

AWQ = (0, 2, 4, 6, 1, 3, 5, 7)


def nibbles(words, order=range(8)):
    """Eight numbers for each int32, by the order that its 4 bits have from the low end on."""
    found = np.empty((*words.shape, 8), np.uint8)
    for at, i in enumerate(order):
        found[..., i] = words.astype(np.int64) >> 4 * at & 15
    return found


def words(numbers):
    """Eight numbers in each int32, low bits first."""
    shifts = np.arange(0, 32, 4)
    found = (
        numbers.reshape(*numbers.shape[:-1], numbers.shape[-1] // 8, 8).astype(np.int64) << shifts
    ).sum(-1)
    return found.astype(np.uint32).view(np.int32)


def ordered(numbers):
    """Numbers 0 to 15 (N, K) in the bytes of w4_pack, as docs/products.md says."""
    N, K = numbers.shape
    whole = numbers[:, : K // 32 * 32].reshape(
        N, K // 32, 4, 4, 2
    )  # b, i, t, odd: 32*b + 8*i + 2*t + odd
    rest = numbers[:, K // 32 * 32 :].reshape(N, K % 32 // 2, 2)
    bits = words(whole.transpose(0, 1, 3, 4, 2).reshape(N, K // 32 * 32))
    blocks = np.ascontiguousarray(bits).view(np.uint8).reshape(N, K // 32 * 16)
    return np.concatenate([blocks, rest[..., 0] | rest[..., 1] << 4], axis=1)


def factors(qweight, format):
    """The numbers of a checkpoint, (N, K)."""
    if format == "plain":
        return np.stack([qweight & 15, qweight >> 4], -1).reshape(
            len(qweight), 2 * qweight.shape[1]
        )
    if format == "awq":
        return nibbles(qweight, AWQ).reshape(len(qweight), 8 * qweight.shape[1]).T
    return nibbles(qweight.T).reshape(qweight.shape[1], 8 * len(qweight))


def zero_points(qzeros, format):
    found = nibbles(qzeros, AWQ if format == "awq" else range(8))
    return (found + (format == "gptq")) % 16


def reference(qweight, qzeros, format):
    numbers = factors(qweight, format)
    eights = np.full(((len(numbers) + 7) // 8, 8), 8, np.uint8)
    zeros = eights if qzeros is None else zero_points(qzeros, format)
    return ordered(numbers), words(zeros.reshape(*zeros.shape[:-2], 8 * zeros.shape[-2]))


def test_known_words():
    numbers = np.arange(8 * 64, dtype=np.uint32).reshape(8, 64) * 7 % 16
    awq = np.zeros((64, 1), np.uint32)
    gptq = np.zeros((8, 8), np.uint32)
    for n in range(8):
        for k in range(64):
            awq[k, 0] |= numbers[n, k] << 4 * AWQ.index(n)
            gptq[k // 8, n] |= numbers[n, k] << 4 * (k % 8)
    plain = (numbers[:, ::2] | numbers[:, 1::2] << 4).astype(np.uint8)
    zeros = np.array([[0x76543210], [0x0FEDCBA9]], np.uint32).view(np.int32)
    in_awq_order = np.array([[0x75316420], [0x0ECAFDB9]], np.uint32).view(np.int32)
    less_one = np.array([[0x6543210F], [0xFEDCBA98]], np.uint32).view(np.int32)
    found = [
        anyop.w4_pack(awq.view(np.int32), in_awq_order),
        anyop.w4_pack(gptq.view(np.int32), less_one, "gptq"),
        anyop.w4_pack(gptq.view(np.int32), zeros, "gptq_v2"),
        anyop.w4_pack(plain, zeros, "plain"),
    ]
    for weight, zero in found:
        assert weight.shape == (8, 32) and weight.dtype == np.uint8
        for n in range(8):
            for k in range(64):
                t, i, odd = k % 8 // 2, k % 32 // 8, k % 2
                word = weight[n, k // 32 * 16 + 4 * t :][:4].view("<u4")[0]
                assert word >> 4 * (i + 4 * odd) & 15 == numbers[n, k], (n, k)
        np.testing.assert_array_equal(zero, zeros)


def test_without_zero_points_they_are_eights():
    weight, zero = anyop.w4_pack(np.zeros((4, 20), np.int32), format="gptq")
    assert weight.shape == (20, 16)
    np.testing.assert_array_equal(zero.view(np.uint32), [0x88888888] * 3)


@pytest.mark.parametrize(
    ("shape", "dtype", "format", "error", "message"),
    [
        ((4, 2), np.int32, "marlin", ValueError, "format to be 'awq', .* with format='marlin'"),
        ((4, 2), np.int32, "plain", ValueError, "qweight of uint8 in the format plain.* dtype.qweight.=int32"),
        ((4, 2), np.uint8, "gptq", ValueError, "of int32 in others with .*format='gptq'"),
        ((4, 2), np.float32, "plain", TypeError, "qweight has dtype float32"),
        ((3, 2), np.int32, "awq", ValueError, "even number of factors in qweight"),
        ((2, 4, 2), np.int32, "awq", ValueError, "qweight of two dimensions"),
    ],
)  # fmt: skip
def test_what_is_refused(shape, dtype, format, error, message):
    with pytest.raises(error, match=f"^w4_pack: .*{message}"):
        anyop.w4_pack(np.zeros(shape, dtype), format=format)


def test_zero_points_of_another_size_are_refused():
    zeros = np.zeros((1, 3), np.int32)
    with pytest.raises(ValueError, match=r"^w4_pack: qzeros has shape \(1, 3\)"):
        anyop.w4_pack(np.zeros((4, 2), np.int32), zeros)
    with pytest.raises(ValueError, match=r"^w4_pack: qzeros has shape \(1, 3\)"):
        anyop.w4_pack(np.zeros((4, 8), np.int32), zeros, "gptq")
