# SPDX-License-Identifier: Apache-2.0
"""rope_backward as the transpose of rope, whatever the angles."""

import anyop
import ml_dtypes  # noqa: F401  bfloat16
import numpy as np
import pytest
from rotary_reference import angles, rotated


def reference(grad_out, cos, sin, positions, cu_seqlens, interleaved):
    return rotated(grad_out, cos, sin, positions, cu_seqlens, interleaved, back=True)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("R", [2, 10, 1500])
def test_it_is_the_transpose(R, interleaved):
    """<rope(x), g> = <x, rope_backward(g)>, exactly but for rounding."""
    random = np.random.default_rng(R)
    x, g = (random.standard_normal((4, 7, 2, R + 3)) for _ in range(2))
    cos, sin = angles(11, R)
    positions, cu_seqlens = random.integers(0, 11, (4, 7)), np.array([1, 4, 6], np.int32)
    for given in [{}, {"positions": positions}, {"cu_seqlens": cu_seqlens}]:
        out = anyop.rope(x, cos, sin, **given, interleaved=interleaved)
        back = anyop.rope_backward(g, cos, sin, **given, interleaved=interleaved)
        assert (out * g).sum() == pytest.approx((x * back).sum(), rel=1e-10, abs=1e-9)
