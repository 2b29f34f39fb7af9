# SPDX-License-Identifier: Apache-2.0
"""Gradients of attention on CUDA against float64: ragged shapes, options, packed sequences, hostile values, bits."""

from __future__ import annotations

import itertools
import random
import sys
from pathlib import Path

import anyop
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from cuda_attention import (
    FEATURES,
    KERNELS,
    LENGTHS,
    exactly,
    forced,
    hidden_keys,
    normal,
    options_of,
    packed,
)
from on_cuda import torch

DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def gradients_exactly(
    grad, grad_lse, q, k, v, *, causal=False, offset=0, window_left=-1, window_right=-1,
    scale=None, softcap=0.0, sinks=None,
):  # fmt: skip
    """In float64, of (B, H, S, D): of q, k, v and sinks."""
    options = (causal, offset, window_left, window_right)
    names = ("causal", "offset", "window_left", "window_right")
    out, lse = exactly(
        q, k, v, **dict(zip(names, options)), scale=scale, softcap=softcap, sinks=sinks
    )
    (_, H, S, D), (G, T) = q.shape, k.shape[1:3]
    grad, q, k, v = (x.double() for x in (grad, q, k, v))
    wide_k, wide_v = (x.repeat_interleave(H // G, 1) for x in (k, v))
    factor = D**-0.5 if scale is None else scale
    score, caps = q @ wide_k.transpose(-1, -2) * factor, 1.0
    if softcap:
        part = torch.tanh(score / softcap)
        score, caps = softcap * part, 1 - part * part
    score = score.masked_fill(hidden_keys(S, T, *options), -torch.inf)
    base = lse.masked_fill(lse == -torch.inf, 0)[..., None]
    weights, delta = torch.exp(score - base), (grad * out).sum(-1, keepdim=True)
    if grad_lse is not None:
        delta = delta - grad_lse.double()[..., None]
    slopes = weights * (grad @ wide_v.transpose(-1, -2) - delta) * caps * factor
    grad_k, grad_v = slopes.transpose(-1, -2) @ q, weights.transpose(-1, -2) @ grad
    grouped = (x.unflatten(1, (G, H // G)).sum(2) for x in (grad_k, grad_v))
    shares = torch.zeros_like(delta) if sinks is None else torch.exp(
        sinks.double()[:, None, None] - base
    )  # fmt: skip
    return slopes @ wide_k, *grouped, -(shares * delta).sum((0, 2, 3))


def takes(kernel, features, dtype, options) -> bool:
    """Whether a kernel takes such calls. What it declines goes to the next one, or is an error where tests say so."""
    D, E = features
    if kernel == "cuda":
        return True
    return (
        dtype != torch.float32 and D <= 192 and E <= 128 and (D <= 128 or "softcap" not in options)
    )


def assert_near(found, exact, dtype, what):
    """Within some roundings of the largest number: sums of weights and slopes that are rounded once.

    grad_sinks are sums of deltas, each made of a row of out, whose numbers all were rounded: twice as many.
    """
    half = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-17}[dtype]
    for name, a, b in zip(("grad_q", "grad_k", "grad_v", "grad_sinks"), found, exact, strict=True):
        assert a.isfinite().all(), (what, name)
        if a.numel():
            worst = (a.double() - b).abs().max().item() / (0.1 + b.abs().max().item())
            assert worst <= (8 if name == "grad_sinks" else 4) * half, (what, name, worst)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("features", FEATURES, ids=str)
@pytest.mark.parametrize("kernel", KERNELS)
def test_dense(kernel, features, dtype, monkeypatch):
    monkeypatch.setenv("ANYOP_FALLBACK", "error")
    draw = random.Random(f"{features} {dtype}")
    D, E = features
    for case in range(12):
        S, T = draw.choice(LENGTHS), draw.choice(LENGTHS)
        B, (H, G) = draw.choice([1, 2]), draw.choice([(1, 1), (4, 2), (6, 1), (3, 3), (8, 4)])
        if case == 0:
            S, T, B, H, G = 2100, 2100, 1, 8, 4  # a group's heads are divided
        q, grad = (
            normal(B, S, H, n, dtype=dtype, seed=i).transpose(1, 2) for i, n in ((0, D), (3, E))
        )
        k, v = normal(B, G, T, D, dtype=dtype, seed=1), normal(B, G, T, E, dtype=dtype, seed=2)
        grad_lse = normal(B, H, S, dtype=torch.float32) if draw.random() < 0.5 else None
        options = options_of(draw, S, T, H)
        options["causal"] |= case == 0
        what = (case, (B, H, G, S, T, D, E), {k: str(v)[:9] for k, v in options.items()})
        if not takes(kernel, features, dtype, options):
            continue
        saved = anyop.attention_with_lse(q, k, v, **options)
        with forced(kernel, "attention_backward"):
            found = anyop.attention_backward(grad, q, k, v, *saved, grad_lse, **options)
            again = anyop.attention_backward(grad, q, k, v, *saved, grad_lse, **options)
        exact = gradients_exactly(grad, grad_lse, q, k, v, **options)
        assert_near(found, exact, dtype, what)
        assert all(map(torch.equal, found, again)), what


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kernel", KERNELS)
def test_packed(kernel, dtype, monkeypatch):
    """Each sequence as alone, bit for bit, and as in float64."""
    monkeypatch.setenv("ANYOP_FALLBACK", "error")
    draw = random.Random(f"{dtype}")
    for D, E in FEATURES[:5]:
        H, G = draw.choice([(1, 1), (4, 2), (6, 1)])
        S, T = ([draw.choice([0, *LENGTHS]) for _ in range(7)] for _ in range(2))
        (cu_q, s), (cu_k, t) = packed(S), packed(T)
        q, grad = (normal(s + 9, H, n, dtype=dtype, seed=i) for i, n in ((0, D), (3, E)))
        k, v = normal(t + 5, G, D, dtype=dtype, seed=1), normal(t + 5, G, E, dtype=dtype, seed=2)
        options = options_of(draw, 1, 1, H)
        del options["offset"]
        sinks = options.get("sinks")
        if not takes(kernel, (D, E), dtype, options):
            continue
        saved = anyop.attention_varlen_with_lse(q, k, v, cu_q, cu_k, **options)

        def grade(*args, options=options):
            with forced(kernel, "attention_varlen_backward"):
                return anyop.attention_varlen_backward(*args, **options)

        found = grade(grad, q, k, v, *saved, cu_q, cu_k)
        assert not found[0][s:].any() and not found[1][t:].any() and not found[2][t:].any()
        total = torch.zeros(H, device="cuda", dtype=torch.float64)
        for i in range(7):
            mine, keys = slice(cu_q[i], cu_q[i + 1]), slice(cu_k[i], cu_k[i + 1])
            one = [x.transpose(0, 1)[None] for x in (grad[mine], q[mine], k[keys], v[keys])]
            exact = gradients_exactly(one[0], None, *one[1:], offset=T[i] - S[i], **options)
            total += exact[3]
            rows = [
                x.transpose(0, 1)[None] for x in (found[0][mine], found[1][keys], found[2][keys])
            ]
            what = (D, E, i, S[i], T[i], {k: str(v)[:9] for k, v in options.items()})
            assert_near((*rows, exact[3]), exact, dtype, what)
            ends = [torch.tensor([0, n], device="cuda").int() for n in (S[i], T[i])]
            alone = grade(grad[mine], q[mine], k[keys], v[keys], *(x[mine] for x in saved), *ends)
            assert torch.equal(alone[0], found[0][mine]), what
            assert torch.equal(alone[1], found[1][keys]), what
            assert torch.equal(alone[2], found[2][keys]), what
        if sinks is not None:
            assert_near((found[3],) * 4, (total,) * 4, dtype, "sinks of all sequences")


@pytest.mark.parametrize("kernel", KERNELS)
def test_keys_that_no_query_sees_never_show(kernel):
    q, k, v, grad = (normal(1, 2, 300, 64, seed=i) for i in range(4))
    options = {"causal": True, "window_left": 40}
    saved = anyop.attention_with_lse(q, k, v, **options)
    with forced(kernel, "attention_backward"):
        clean = anyop.attention_backward(grad, q, k, v, *saved, **options)
        k[:, :, 100], v[:, :, 100, 3] = float("nan"), float("inf")
        found = anyop.attention_backward(grad, q, k, v, *saved, **options)
    outside = [s for s in range(300) if not 100 <= s <= 140]
    assert torch.equal(found[0][:, :, outside], clean[0][:, :, outside])
    assert found[0][:, :, 100:141].isnan().all()


@pytest.mark.parametrize("kernel", KERNELS)
def test_wrong_places_are_nan(kernel):
    q, k, v, grad = (normal(300, 2, 64, seed=i) for i in range(4))
    good = torch.tensor([0, 100, 300]).cuda().int()
    saved = anyop.attention_varlen_with_lse(q, k, v, good, good)
    for wrong in ([0, 500, 300], [0, 200, 100], [-5, 100, 300], [0, 2**30, 2**31 - 1]):
        bad = torch.tensor(wrong).cuda().int()
        for places in ((bad, good), (good, bad)):
            with forced(kernel, "attention_varlen_backward"):
                found = anyop.attention_varlen_backward(grad, q, k, v, *saved, *places)
            assert all(x.isnan().all() for x in found), wrong


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_graph_is_replayed_with_other_lengths(kernel):
    q, k, v, grad = (normal(1000, 4, 128, seed=i) for i in range(4))
    ends = torch.tensor([0, 10, 10, 400, 1000], device="cuda").int()

    def call():
        saved = anyop.attention_varlen_with_lse(q, k, v, ends, ends, causal=True)
        with forced(kernel, "attention_varlen_backward"):
            return anyop.attention_varlen_backward(grad, q, k, v, *saved, ends, ends, causal=True)

    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = call()
    draw = random.Random(0)
    for _ in range(100):
        ends.copy_(torch.tensor(sorted(draw.randrange(1001) for _ in range(5)), dtype=torch.int32))
        graph.replay()
        assert all(map(torch.equal, found, call()))


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("kernel", KERNELS)
def test_no_farther_from_float64_than_twice_what_torch_is(kernel, dtype):
    """By torch's own attention in the same dtype, through autograd."""
    for (H, G), causal in itertools.product([(4, 4), (8, 2)], [False, True]):
        q, grad = (normal(2, H, 500, 128, dtype=dtype, seed=i) for i in (0, 3))
        k, v = (normal(2, G, 500, 128, dtype=dtype, seed=i) for i in (1, 2))
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        torch.nn.functional.scaled_dot_product_attention(
            *leaves, is_causal=causal, enable_gqa=True
        ).backward(grad)
        saved = anyop.attention_with_lse(q, k, v, causal=causal)
        with forced(kernel, "attention_backward"):
            found = anyop.attention_backward(grad, q, k, v, *saved, causal=causal)[:3]
        exact = gradients_exactly(grad, None, q, k, v, causal=causal)[:3]
        for mine, leaf, right in zip(found, leaves, exact, strict=True):
            error, theirs = (x.double().sub(right).norm().item() for x in (mine, leaf.grad))
            assert error <= 2 * theirs, (H, G, causal, error, theirs)
