# SPDX-License-Identifier: Apache-2.0
"""fused_moe_backward row by row in float64; every choice of gradients; through moe_route; any offsets and orders."""

import math

import anyop
import ml_dtypes  # noqa: F401  bfloat16
import numpy as np
import pytest
from fused_moe_test import activate, halves

_erf = np.vectorize(math.erf, otypes=[float])


def slopes(gate, up, activation, alpha):
    """The derivatives of a hidden feature by its gate and its up."""
    if activation == "relu2":
        return 2 * np.maximum(gate, 0), np.zeros_like(gate)
    near = np.clip(gate, -40, 40)
    more = activation == "swigluoai"
    if activation == "gelu":
        share, density = (1 + _erf(near / math.sqrt(2))) / 2, np.exp(-near * near / 2)
        slope = share + near * density / math.sqrt(2 * math.pi)
    elif activation == "gelu_tanh":
        root = math.sqrt(2 / math.pi)
        share = (1 + np.tanh(root * (near + 0.044715 * near**3))) / 2
        slope = share + near * 2 * root * (1 + 3 * 0.044715 * near**2) * share * (1 - share)
    else:
        share = 1 / (1 + np.exp(-alpha * near))
        slope = share * (1 + alpha * near * (1 - share))
    return (up + more) * slope, gate * share


def reference(
    grad_out, x, w13, w2, weights, hidden, order, offsets, bias2, activation, alpha, limit, up_first,
    transposed,
):  # fmt: skip
    if transposed:
        w13, w2 = w13.swapaxes(1, 2), w2.swapaxes(1, 2)
    most, K = np.inf if limit is None else limit, weights.shape[1]
    shapes = x.shape, w13.shape, w2.shape, weights.shape, w13.shape[:2], w2.shape[:2]
    grads = [np.zeros(shape) for shape in shapes]
    grad_x, grad_w13, grad_w2, grad_weights, grad_bias13, grad_bias2 = grads
    ends = np.maximum.accumulate(np.clip(offsets.astype(int), 0, len(order)))
    with np.errstate(all="ignore"):
        for e in range(len(w13)):
            for i in range(ends[e], ends[e + 1]):
                if not 0 <= order[i] < weights.size:
                    continue
                t, k = divmod(int(order[i]), K)
                raw_gate, raw_up = halves(hidden[i], activation, up_first)
                gate, up = np.minimum(raw_gate, most), np.clip(raw_up, -most, most)
                feature, d = activate(gate, up, activation, alpha), grad_out[t] @ w2[e]
                by_gate, by_up = slopes(gate, up, activation, alpha)
                by_gate = np.where(raw_gate > most, 0, weights[t, k] * d * by_gate)
                by_up = np.where(np.abs(raw_up) > most, 0, weights[t, k] * d * by_up)
                both = [by_up, by_gate] if up_first else [by_gate, by_up]
                g = by_gate if activation == "relu2" else np.concatenate(both)
                grad_x[t] += g @ w13[e]
                grad_w13[e] += np.outer(g, x[t])
                grad_w2[e] += np.outer(grad_out[t], weights[t, k] * feature)
                grad_weights[t, k] = d @ feature
                grad_bias13[e] += g
                grad_bias2[e] += weights[t, k] * grad_out[t]
                if bias2 is not None:
                    grad_weights[t, k] += grad_out[t] @ bias2[e]
    if transposed:
        grads[1:3] = grad_w13.swapaxes(1, 2), grad_w2.swapaxes(1, 2)
    return tuple(grads)


def drawn(T=40, K=2, E=5, H=24, width=20, dtype="float32"):
    """Arguments of a forward call, and a gradient of its result."""
    random = np.random.default_rng(T)
    shapes = (T, H), (E, width, H), (E, H, width // 2), (E, width), (E, H), (T, H)
    x, w13, w2, bias13, bias2, grad = (random.standard_normal(s).astype(dtype) for s in shapes)
    weights = random.random((T, K)).astype(np.float32)
    ids = random.integers(-1, E + 1, (T, K)).astype(np.int32)
    return (x, w13, w2, weights, ids, bias13, bias2), grad


NAMES = ["grad_x", "grad_w13", "grad_w2", "grad_weights", "grad_bias13", "grad_bias2"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_choice_of_gradients(dtype):
    """Each alone has the same bits as with the others."""
    (x, w13, w2, weights, ids, bias13, bias2), grad = drawn(dtype=dtype)
    _, *kept = anyop.native_fused_moe(x, w13, w2, weights, ids, bias13, bias2)
    call = (grad, x, w13, w2, weights, *kept, bias2)
    whole = anyop.fused_moe_backward(*call)
    for at, name in enumerate(NAMES):
        unwanted = {other: False for other in NAMES if other != name}
        found = anyop.fused_moe_backward(*call, **unwanted)
        assert [result is not None for result in found] == [other == name for other in NAMES]
        assert found[at].tobytes() == whole[at].tobytes()


def test_experts_without_rows_have_no_gradient():
    """All tokens go to one expert, of many slots; what is beyond the limit has none either."""
    (x, w13, w2, weights, ids, bias13, bias2), grad = drawn(T=700)
    ids = np.where(ids < 0, -1, 3).astype(np.int32)
    _, *kept = anyop.native_fused_moe(x, w13, w2, weights, ids, bias13, bias2, limit=0.5)
    call = [grad, x, w13, w2, weights, *kept, bias2]
    found = anyop.fused_moe_backward(*call, limit=0.5)
    wide = [a if a.dtype == np.int32 else a.astype(float) for a in call]
    expected = reference(*wide, "silu", 1.0, 0.5, False, 0)
    for name, result, exact in zip(NAMES, found, expected, strict=True):
        np.testing.assert_allclose(result, exact, rtol=1e-4, atol=1e-3, err_msg=name)
    for result in (found[1], found[2], found[4], found[5]):
        assert not result[[0, 1, 2, 4]].any() and result[3].any()
    assert not found[3][ids < 0].any()


@pytest.mark.parametrize("offsets", [[-9, 30, 4, 2**31 - 1, 7, -(2**31)], [50, 60, 60, 70, 75, 80]])
def test_whatever_offsets_and_orders_say(offsets):
    """Nothing outside is read or written; segments are those of grouped_linear."""
    (x, w13, w2, weights, ids, _, bias2), grad = drawn()
    _, hidden, order, _ = anyop.native_fused_moe(x, w13, w2, weights, ids)
    order, offsets = order.copy(), np.array(offsets, np.int32)
    order[:3] = 80, -(2**31), 2**31 - 1
    call = [grad, x, w13, w2, weights, hidden, order, offsets, bias2]
    wide = [a if a.dtype == np.int32 else a.astype(float) for a in call]
    expected = reference(*wide, "silu", 1.0, None, False, 0)
    for result, exact in zip(anyop.fused_moe_backward(*call), expected, strict=True):
        np.testing.assert_allclose(result, exact, rtol=1e-4, atol=1e-4)


def test_gradcheck_through_routing():
    """torch's own slopes of a whole layer, in float64 but for the weights, which are float32."""
    torch = pytest.importorskip("torch")
    import anyop.torch  # noqa: F401

    generator = torch.Generator().manual_seed(0)
    shapes = (5, 6), (4, 10, 6), (4, 6, 5), (5, 4)
    x, w13, w2, logits = (
        torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes
    )

    def layer(x, w13, w2, logits):
        weights, ids = torch.ops.anyop.moe_route(logits.float(), top_k=2)
        return torch.ops.anyop.fused_moe(x, w13, w2, weights, ids)

    with torch.no_grad():
        weights, ids = torch.ops.anyop.moe_route(logits.float(), top_k=2)
    assert torch.autograd.gradcheck(
        lambda *given: torch.ops.anyop.fused_moe(*given, weights, ids), (x, w13, w2)
    )
    # Steps of 1/256 are exact in float32; what it rounds is off by 2^-24 * 256, curvature by 2^-16.
    with torch.no_grad():
        logits.copy_((logits * 256).round() / 256)
    assert torch.autograd.gradcheck(layer, (x, w13, w2, logits), eps=2**-8, atol=2e-3, rtol=1e-3)
