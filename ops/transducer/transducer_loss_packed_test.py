# SPDX-License-Identifier: Apache-2.0
"""transducer_loss_packed in float64: what transducer_loss has, without the rows of no sequence."""

import anyop
import numpy as np
import pytest


def reference(x, label, f_len, y_len, batch_offset, blank_idx, log_softmax):
    """Of sequences of one row each; longer ones are below."""
    loss, lse = np.zeros(len(f_len)), np.zeros(len(x))
    for b, end in enumerate(batch_offset):
        lse[end - 1] = np.log(np.exp(x[end - 1]).sum()) if log_softmax else 0
        loss[b] = lse[end - 1] - x[end - 1, blank_idx]
    moves = np.isin(np.arange(len(x)), batch_offset - 1).astype(float)
    return loss, moves, np.zeros(len(x)), lse


F_LEN, Y_LEN = np.array([5, 1, 3, 2]), np.array([2, 3, 0, 1])
ENDS = np.cumsum(F_LEN * (Y_LEN + 1))
INSIDE = np.arange(5)[:, None] < F_LEN[:, None, None]
INSIDE = INSIDE & (np.arange(4) <= Y_LEN[:, None, None])


@pytest.mark.parametrize("more", [0, 3])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_as_padded(dtype, more):
    """The same bits as the padded lattice's, and zeros behind the last sequence."""
    random = np.random.default_rng(0)
    x = random.standard_normal((4, 5, 4, 33)).astype(dtype)
    label, grad_loss = random.integers(1, 33, (4, 3)), random.standard_normal(4).astype(dtype)
    packed = np.concatenate([x[INSIDE], np.full((more, 33), np.nan, dtype)])
    loss, *saved = anyop.transducer_loss(x, label, F_LEN, Y_LEN)
    own, *own_saved = anyop.transducer_loss_packed(packed, label, F_LEN, Y_LEN, ENDS)
    assert own.tobytes() == loss.tobytes()
    for one, other in zip(saved, own_saved, strict=True):
        assert one[INSIDE].tobytes() == other[: ENDS[-1]].tobytes()
        assert not other[ENDS[-1] :].any()
    grad = anyop.transducer_loss_backward(x, label, F_LEN, Y_LEN, *saved, grad_loss)
    found = anyop.transducer_loss_packed_backward(
        packed, label, F_LEN, Y_LEN, ENDS, *own_saved, grad_loss
    )
    assert found[: ENDS[-1]].tobytes() == grad[INSIDE].tobytes()
    assert not found[ENDS[-1] :].any()


@pytest.mark.parametrize(("b", "end"), [(1, 16), (3, 27), (0, -1), (2, 2**62)])
def test_offsets_that_do_not_fit(b, end):
    ends = ENDS.copy()
    ends[b] = end
    x, label = np.zeros((26, 5), np.float32), np.ones((4, 3), int)
    message = rf"^transducer_loss_packed: batch_offset\[{b}\] is {end}, expected the sum of f_len \* \(y_len \+ 1\)"
    with pytest.raises(ValueError, match=message):
        anyop.transducer_loss_packed(x, label, F_LEN, Y_LEN, ends)
