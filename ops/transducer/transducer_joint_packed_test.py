# SPDX-License-Identifier: Apache-2.0
"""transducer_joint_packed in float64: what transducer_joint has, without the rows of no sequence."""

import anyop
import numpy as np
import pytest


def reference(f, g, f_len, g_len, batch_offset, packed_batch, seed, offset, relu, dropout):
    assert not dropout  # below
    out = np.zeros((packed_batch, f.shape[-1]))
    kept = np.zeros(out.shape, bool)
    for b, end in enumerate(batch_offset):
        sums = (f[b, : f_len[b], None] + g[b, None, : g_len[b]]).reshape(
            f_len[b] * g_len[b], f.shape[-1]
        )
        kept[end - len(sums) : end] = ~((sums <= 0) & relu)
        out[end - len(sums) : end] = sums
    return np.where(kept, out, 0), kept


LENGTHS = np.array([5, 0, 3, 1]), np.array([2, 4, 4, 1])
ENDS = np.cumsum(LENGTHS[0] * LENGTHS[1])
INSIDE = np.arange(5)[:, None] < LENGTHS[0][:, None, None]
INSIDE = INSIDE & (np.arange(4) < LENGTHS[1][:, None, None])


def made(dtype="float32", H=21):
    random = np.random.default_rng(H)
    return [random.standard_normal((4, n, H)).astype(dtype) for n in (5, 4)]


@pytest.mark.parametrize("more", [0, 3])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_as_padded(dropout, more):
    """The same bits as the padded lattice's, also of what is dropped; rows behind the last are 0."""
    f, g = made()
    given = {"seed": np.array([5]), "offset": np.array([1]), "relu": True, "dropout": dropout}
    padded = anyop.transducer_joint(f, g, *LENGTHS, **given)
    packed = anyop.transducer_joint_packed(f, g, *LENGTHS, ENDS, ENDS[-1] + more, **given)
    for one, other in zip(padded, packed, strict=True):
        assert one[INSIDE].tobytes() == other[: ENDS[-1]].tobytes()
        assert not other[ENDS[-1] :].any()
    grad = np.random.default_rng(1).standard_normal(padded[0].shape).astype(np.float32)
    flat = np.concatenate([grad[INSIDE], np.full((more, 21), np.nan, np.float32)])
    exact = anyop.transducer_joint_backward(grad, f, g, *LENGTHS, **given)
    found = anyop.transducer_joint_packed_backward(flat, f, g, *LENGTHS, ENDS, **given)
    assert [a.tobytes() for a in found] == [a.tobytes() for a in exact]


@pytest.mark.parametrize(
    ("b", "end", "rows"), [(1, 11, 23), (3, 23, 22), (0, -1, 23), (2, 2**62, 23)]
)
def test_offsets_that_do_not_fit(b, end, rows):
    ends = ENDS.copy()
    ends[b] = end
    message = rf"^transducer_joint_packed: batch_offset\[{b}\] is {end}, expected the sum of f_len \* g_len"
    with pytest.raises(ValueError, match=message):
        anyop.transducer_joint_packed(*made(), *LENGTHS, ends, rows)
