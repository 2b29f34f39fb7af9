# SPDX-License-Identifier: Apache-2.0
"""attention_varlen_backward in float64, a sequence after the other; a sequence alone; torch's gradients."""

import anyop
import numpy as np
import pytest
from attention_backward_test import reference as of_one
from attention_varlen_test import LENGTHS, packed


def reference(
    grad_out, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k, grad_lse, scale, causal,
    window_left, window_right, softcap, sinks, alibi_slopes,
):  # fmt: skip
    rows, keys = (grad_out, q, out, lse, grad_lse), (k, v)
    results = [np.zeros(x.shape) for x in (q, k, v)] + [np.zeros(q.shape[1])]
    bounds = [0, *map(int, cu_seqlens_q), len(q)]  # outside as a sequence without keys
    places = [0, *map(int, cu_seqlens_k), 0]
    for i in range(len(bounds) - 1):
        outside = i in (0, len(bounds) - 2)
        own = slice(*((0, 0) if outside else places[i : i + 2]))
        at = slice(*bounds[i : i + 2])
        offset = (own.stop - own.start) - (at.stop - at.start)
        grad, q_, out_, lse_, more = (
            None if x is None else x[at].swapaxes(0, 1)[None] for x in rows
        )
        k_, v_ = (x[own].swapaxes(0, 1)[None] for x in keys)
        options = (window_left, window_right, softcap, sinks, alibi_slopes)
        found = of_one(grad, q_, k_, v_, out_, lse_, more, None, scale, causal, offset, *options)
        for result, part, place in zip(results, found, (at, own, own)):
            result[place] = part[0].swapaxes(0, 1)
        results[3] += found[3]
    return tuple(results)


@pytest.mark.parametrize("options", [{}, {"causal": True, "window_left": 7, "softcap": 2.0}])
def test_a_sequence_is_as_alone(options):
    """Bit for bit; keys of no query have gradient 0."""
    (q, k, v), (cu_q, cu_k) = packed(*LENGTHS)
    out, lse = anyop.attention_varlen_with_lse(q, k, v, cu_q, cu_k, **options)
    grad = np.random.default_rng(1).standard_normal(out.shape).astype(np.float32)
    found = anyop.attention_varlen_backward(grad, q, k, v, out, lse, cu_q, cu_k, **options)
    for i in range(5):
        s, t = slice(*cu_q[i : i + 2]), slice(*cu_k[i : i + 2])
        rows = [np.ascontiguousarray(x[s].swapaxes(0, 1))[None] for x in (grad, q, out, lse)]
        keys = [np.ascontiguousarray(x[t].swapaxes(0, 1))[None] for x in (k, v)]
        offset = int(t.stop - t.start) - int(s.stop - s.start)
        one = anyop.attention_backward(*rows[:2], *keys, *rows[2:], offset=offset, **options)
        for whole, part, place in zip(found, one, (s, t, t)):
            np.testing.assert_array_equal(whole[place], part[0].swapaxes(0, 1))


def test_autograd_of_torch():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    (q, k, v), (cu_q, cu_k) = packed([3, 20, 0, 9], [5, 20, 2, 9], H=2, G=2, E=24)
    leaves = [torch.from_numpy(x).requires_grad_() for x in (q, k, v)]
    places = [torch.from_numpy(x) for x in (cu_q, cu_k)]
    out = anyop.attention_varlen(*leaves, *places, causal=True)
    grad = torch.randn(out.shape)
    found = torch.autograd.grad(out, leaves, grad)
    parts = []
    for i in range(4):
        s, t = slice(*cu_q[i : i + 2]), slice(*cu_k[i : i + 2])
        if s.stop > s.start:
            own = (leaves[0][s], leaves[1][t], leaves[2][t])
            mask = torch.ones(s.stop - s.start, t.stop - t.start).tril(
                (t.stop - t.start) - (s.stop - s.start)
            )
            heads = (x.transpose(0, 1) for x in own)
            attend = torch.nn.functional.scaled_dot_product_attention
            parts.append(attend(*heads, attn_mask=mask.bool()).transpose(0, 1))
    wanted = torch.autograd.grad(torch.cat(parts), leaves, grad)
    for a, b in zip(found, wanted):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
