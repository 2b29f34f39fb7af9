# SPDX-License-Identifier: Apache-2.0
"""decoder_layer in float64, and as the operators that it stands for; sequences without keys; wrong places."""

import anyop
import numpy as np
import pytest


def norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def turned(x, cos, sin):
    """Heads (..., C) by a row of the table."""
    first, second = np.split(x, 2, -1)
    return x * cos + np.concatenate([-second, first], -1) * sin


def reference(
    k_cache, v_cache, x, delta, attention_norm, qkv, out_weight, ffn_norm, gate_up, down, cos, sin,
    page_table, seqlens_k, heads, q_norm, k_norm, qkv_bias, eps, scale,
):  # fmt: skip
    (_, P, G, C), F = k_cache.shape, down.shape[1]
    x = x if delta is None else x + delta
    found = norm(x, attention_norm, eps) @ qkv.T + (0 if qkv_bias is None else qkv_bias)
    found = found.reshape(len(x), heads + 2 * G, C)
    attended = np.zeros((len(x), heads, C))
    for b, length in enumerate(seqlens_k):
        if length == 0:
            continue
        q, k, v = np.split(found[b], [heads, heads + G])
        q = q if q_norm is None else norm(q, q_norm, eps)
        k = k if k_norm is None else norm(k, k_norm, eps)
        row = cos[length - 1], sin[length - 1]
        page, place = page_table[b, (length - 1) // P], (length - 1) % P
        k_cache[page, place], v_cache[page, place] = turned(k, *row), v
        pages = page_table[b, : -(-length // P)]
        keys, values = (c[pages].reshape(-1, G, C)[:length] for c in (k_cache, v_cache))
        group = np.arange(heads) // (heads // G)
        scores = np.einsum("hc,thc->ht", turned(q, *row), keys[:, group])
        scores *= C**-0.5 if scale is None else scale
        weights = np.exp(scores - scores.max(1, keepdims=True))
        weights /= weights.sum(1, keepdims=True)
        attended[b] = np.einsum("ht,thc->hc", weights, values[:, group])
    x = x + attended.reshape(len(x), heads * C) @ out_weight.T
    both = norm(x, ffn_norm, eps) @ gate_up.T
    gate, up = both[:, :F], both[:, F:]
    return x, (gate / (1 + np.exp(-gate)) * up) @ down.T


NAMES = (
    "k_cache", "v_cache", "x", "delta", "attention_norm", "qkv", "out_weight", "ffn_norm", "gate_up", "down", "cos",
    "sin", "page_table", "seqlens_k",
)  # fmt: skip


def layer(lengths, H=4, G=2, C=64, D=48, F=40, P=4, norms=True, dtype=np.float32):
    """Arguments of a call, of sequences of so many keys; pages that nobody has are NaN, so are places behind an end."""
    random = np.random.default_rng(0)
    B, M = len(lengths), -(-max(lengths) // P) + 1
    pages = random.permutation(B * M + 3)[: B * M].reshape(B, M).astype(np.int32)
    caches = [np.full((B * M + 3, P, G, C), np.nan) for _ in range(2)]
    for b, length in enumerate(lengths):
        for t in range(length - 1):
            for cache in caches:
                cache[pages[b, t // P], t % P] = random.standard_normal((G, C))
        pages[b, -(-length // P) :] = -1

    def drawn(*shape):
        return random.standard_normal(shape) / np.sqrt(shape[-1])

    angles = np.outer(np.arange(M * P), 100.0 ** -(np.arange(C) % (C // 2) / (C // 2)))
    found = dict(zip(NAMES, (
        *caches, random.standard_normal((B, D)), random.standard_normal((B, D)), 1 + drawn(D),
        drawn((H + 2 * G) * C, D), drawn(D, H * C), 1 + drawn(D), drawn(2 * F, D), drawn(D, F),
        np.cos(angles), np.sin(angles), pages, np.array(lengths, np.int32),
    )))  # fmt: skip
    if norms:
        found |= {name: 1 + 0.1 * random.standard_normal(C) for name in ("q_norm", "k_norm")}
    found = {k: v.astype(dtype) if v.dtype == float else v for k, v in found.items()}
    return found | {"heads": H}


def exact(call):
    """What the reference makes of a call: results and caches."""
    given = {"q_norm": None, "k_norm": None, "qkv_bias": None, "eps": 1e-6, "scale": None} | call
    given = {k: v.astype(float) if getattr(v, "dtype", 0) == np.float32 else v
             for k, v in given.items()}  # fmt: skip
    return *reference(**given), given["k_cache"], given["v_cache"]


@pytest.mark.parametrize("norms", [True, False])
@pytest.mark.parametrize("H, G, C", [(4, 2, 64), (2, 2, 8), (8, 1, 128)])
def test_sequences_of_every_length(H, G, C, norms):
    call = layer([1, 13, 0, 4, 16], H, G, C, norms=norms)
    call["qkv_bias"] = np.linspace(-1, 1, (H + 2 * G) * C, dtype=np.float32)
    expected = exact(call)
    found = *anyop.decoder_layer(**call), call["k_cache"], call["v_cache"]
    for a, b in zip(expected, found):
        np.testing.assert_allclose(b, a, rtol=2e-5, atol=2e-5)


def test_it_is_the_operators_that_it_stands_for():
    """As examples/generate has them one behind the other."""
    H, G, C = 4, 2, 64
    call = layer([5, 9, 1], H, G, C)
    lengths, table, P = call["seqlens_k"], call["page_table"], 4
    rows = np.arange(len(lengths))
    slots = table[rows, (lengths - 1) // P] * P + (lengths - 1) % P
    caches = [call["k_cache"].copy(), call["v_cache"].copy()]
    h, x = anyop.fused_add_rms_norm(call["delta"], call["x"], call["attention_norm"])
    qkv = anyop.linear(h, call["qkv"]).reshape(len(x), H + 2 * G, C)
    q, k = anyop.qk_norm_rope(
        qkv[:, :H], qkv[:, H : H + G], call["q_norm"], call["k_norm"], call["cos"], call["sin"], lengths - 1
    )  # fmt: skip
    anyop.append_kv(*caches, k, qkv[:, H + G :], slots.astype(np.int32))
    a, _ = anyop.attention_paged(q, *caches, table, lengths)
    h, x = anyop.fused_add_rms_norm(
        anyop.linear(a.reshape(len(x), -1), call["out_weight"]), x, call["ffn_norm"]
    )
    delta = anyop.linear(anyop.linear_gated(h, call["gate_up"]), call["down"])
    found = anyop.decoder_layer(**call)
    for a, b in zip((x, delta, *caches), (*found, call["k_cache"], call["v_cache"])):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("length", [-1, 100, 2**31 - 1])
def test_a_wrong_length_is_an_error(length):
    call = layer([5, 9])
    call["seqlens_k"][1] = length
    with pytest.raises(IndexError, match=r"seqlens_k\[1\] is"):
        anyop.decoder_layer(**call)


@pytest.mark.parametrize("page", [-1, 10**6])
def test_a_wrong_page_is_an_error(page):
    call = layer([5, 9])
    call["page_table"][1, 1] = page
    before = call["k_cache"].copy()
    with pytest.raises(IndexError, match=r"page_table\[1, 1\] is"):
        anyop.decoder_layer(**call)
    np.testing.assert_array_equal(call["k_cache"], before)
