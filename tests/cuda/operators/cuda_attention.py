# SPDX-License-Identifier: Apache-2.0
"""Attention's CUDA kernels, each forced by name, against float64: ragged shapes, options, hostile values, bits."""

from __future__ import annotations

import itertools
import random

import anyop
import numpy as np
import pytest
from anyop._routes import implementations
from on_cuda import torch

KERNELS = ["cuda", "cuda_sm90"]
FEATURES = [(64, 64), (128, 128), (192, 128), (256, 256), (32, 40), (80, 72), (136, 8)]
LENGTHS = [1, 15, 16, 17, 64, 127, 128, 129, 191, 193, 257, 400]


def normal(*shape: int, dtype=torch.bfloat16, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(sum(shape) + seed)
    return torch.randn(*shape, device="cuda", generator=generator).to(dtype)


def hidden_keys(S, T, causal, offset, left, right):
    place = torch.arange(S, device="cuda")[:, None] + offset
    key = torch.arange(T, device="cuda")
    hidden = (key > place) & causal
    if left >= 0:
        hidden |= key < place - left
    if right >= 0:
        hidden |= key > place + right
    return hidden


def exactly(q, k, v, *, causal=False, offset=0, window_left=-1, window_right=-1, scale=None,
            softcap=0.0, sinks=None):  # fmt: skip
    """In float64, of (B, H, S, D): results and logarithms. Values that a query does not see are not read."""
    q, k, v = q.double(), k.double(), v.double()
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    score = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        score = softcap * torch.tanh(score / softcap)
    hidden = hidden_keys(q.shape[2], k.shape[2], causal, offset, window_left, window_right)
    score = score.masked_fill(hidden, -torch.inf)
    if sinks is not None:
        sink = sinks.double().reshape(1, -1, 1, 1).expand(*score.shape[:3], 1)
        score = torch.cat([score, sink], -1)
    lse = score.logsumexp(-1)
    weights = torch.exp(score - lse.masked_fill(lse == -torch.inf, 0)[..., None])
    weights = weights[..., : k.shape[2]]
    finite = v.masked_fill(~v.isfinite(), 0)
    out = weights @ finite
    for b, h, t, e in (~v.isfinite()).nonzero().tolist():
        out[b, h, ~hidden[:, t], e] += v[b, h, t, e]
    return out, lse


def assert_near(found, exact, what):
    """Within four times what rounding of the results alone gives, of the size of a row."""
    assert torch.equal(found.isnan(), exact.isnan()), what
    infinite = exact.isinf()
    assert torch.equal(found.double()[infinite], exact[infinite]), what
    fine = exact.isfinite()
    error = ((found.double() - exact) * fine).nan_to_num()
    size = exact.masked_fill(~fine, 0)
    half = 2.0**-8 if found.dtype == torch.bfloat16 else 2.0**-11
    limit = 4 * half if found.dtype != torch.float32 else 2e-5
    worst = (error.abs() / (1 + size.abs())).max().item() if error.numel() else 0
    assert worst <= limit, (what, worst)


def forced(kernel: str, name: str):
    if kernel not in [found["name"] for found in implementations(name)]:
        pytest.skip(f"{name} has no {kernel} in this build")
    return anyop.use(kernel)


def options_of(draw: random.Random, S: int, T: int, H: int) -> dict:
    options: dict = {"causal": draw.random() < 0.5, "offset": draw.choice([0, T - S, -3, 7])}
    if draw.random() < 0.4:
        options["window_left"] = draw.choice([0, 5, 70, 130])
    if draw.random() < 0.3:
        options["window_right"] = draw.choice([0, 2, 100])
    if draw.random() < 0.3:
        options["softcap"] = 1.5
    if draw.random() < 0.3:
        options["scale"] = 0.3
    if draw.random() < 0.4:
        options["sinks"] = normal(H, dtype=torch.float32)
    return options


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("features", FEATURES, ids=str)
@pytest.mark.parametrize("kernel", KERNELS)
def test_dense(kernel, features, dtype, monkeypatch):
    monkeypatch.setenv("ANYOP_FALLBACK", "error")
    draw = random.Random(f"{kernel} {features} {dtype}")
    D, E = features
    for case in range(24):
        S, T = draw.choice(LENGTHS), draw.choice(LENGTHS)
        B, (H, G) = draw.choice([1, 2]), draw.choice([(1, 1), (4, 2), (6, 1), (3, 3), (8, 2)])
        q = normal(B, S, H, D, dtype=dtype).transpose(1, 2)  # heads within rows
        k, v = normal(B, G, T, D, dtype=dtype, seed=1), normal(B, G, T, E, dtype=dtype, seed=2)
        options = options_of(draw, S, T, H)
        what = (kernel, case, (B, H, G, S, T, D, E), {k: str(v)[:9] for k, v in options.items()})
        with forced(kernel, "attention_with_lse"):
            out, lse = anyop.attention_with_lse(q, k, v, **options)
            again, _ = anyop.attention_with_lse(q, k, v, **options)
            alone = anyop.attention(q, k, v, **options)
        exact, exact_lse = exactly(q, k, v, **options)
        assert_near(out, exact, what)
        assert_near(lse, exact_lse, what)
        assert torch.equal(out, again) and torch.equal(out, alone), what


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("heads", [(4, 1), (16, 2), (24, 2), (2, 1)], ids=str)
@pytest.mark.parametrize("kernel", KERNELS)
def test_narrow_windows(kernel, heads, dtype):
    """Bands of keys up to those that one tile holds, and just wider; packed: each sequence as alone, bit for bit."""
    draw, (H, G) = random.Random(f"{kernel} {heads} {dtype}"), heads
    for left, right in [
        (0, 0),
        (127, 0),
        (128, 0),
        (64, 64),
        (129, 0),
        (15, 1),
        (40, 88),
        (3, 126),
    ]:
        S = [draw.choice([0, 1, 15, 16, 17, 63, 64, 65, 200]) for _ in range(5)] + [300]
        (cu, s), options = packed(S), {"window_left": left, "window_right": right}
        D, E = draw.choice([(64, 64), (48, 64), (64, 40)])
        options |= {"scale": 0.3} if draw.random() < 0.5 else {}
        options |= {"sinks": normal(H, dtype=torch.float32)} if draw.random() < 0.5 else {}
        q, k, v = (
            normal(s, n, width, dtype=dtype, seed=i)
            for i, (n, width) in enumerate([(H, D), (G, D), (G, E)])
        )
        with forced(kernel, "attention_varlen_with_lse"):
            out, lse = anyop.attention_varlen_with_lse(q, k, v, cu, cu, **options)
        for i in range(len(S)):
            mine = slice(cu[i], cu[i + 1])
            one, what = (
                [x[mine].transpose(0, 1)[None] for x in (q, k, v)],
                (left, right, S[i], D, E),
            )
            if not S[i]:
                continue
            with forced(kernel, "attention_with_lse"):
                alone = anyop.attention_with_lse(*one, **options)
            exact, exact_lse = exactly(*one, **options)
            assert_near(alone[0], exact, what)
            assert_near(alone[1], exact_lse, what)
            assert torch.equal(out[mine].transpose(0, 1), alone[0][0]), what
            assert torch.equal(lse[mine].t(), alone[1][0]), what


@pytest.mark.parametrize("kernel", KERNELS)
def test_what_no_query_sees_never_shows(kernel):
    """NaN and infinities in keys and values: only queries that see them have them."""
    for (D, E), value in itertools.product([(64, 64), (128, 128), (256, 256)], ["nan", "inf"]):
        q, k, v = normal(1, 4, 300, D), normal(1, 1, 300, D, seed=1), normal(1, 1, 300, E, seed=2)
        for t in (0, 70, 128, 250, 299):
            v[0, 0, t, t % E] = float(value)
        for options in ({"causal": True}, {"window_left": 40, "window_right": 3}, {}):
            with forced(kernel, "attention"):
                found = anyop.attention(q, k, v, **options)
            assert_near(found, exactly(q, k, v, **options)[0], (kernel, D, value, options))
        k[0, 0, 200] = float("nan")
        with forced(kernel, "attention"):
            found = anyop.attention(q, k, v, causal=True)
        assert (
            found[:, :, :200].isnan().sum()
            == exactly(q, k, v, causal=True)[0][:, :, :200].isnan().sum()
        )
        assert found[:, :, 200:].isnan().all()


@pytest.mark.parametrize("kernel", KERNELS)
def test_large_scores(kernel):
    q, k, v = (
        1000 * normal(1, 2, 130, 64),
        1000 * normal(1, 2, 140, 64, seed=1),
        normal(1, 2, 140, 64),
    )
    for sign in (1, -1):
        with forced(kernel, "attention"):
            found = anyop.attention(q, sign * k, v)
        assert_near(found, exactly(q, sign * k, v)[0], sign)


def packed(lengths):
    ends = torch.tensor(list(itertools.accumulate([0, *lengths])), device="cuda").int()
    return ends, int(ends[-1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kernel", KERNELS)
def test_packed(kernel, dtype):
    """Each sequence as alone, bit for bit, and as in float64; NaN lies between and behind them."""
    draw = random.Random(f"{kernel} {dtype}")
    for D, E in FEATURES[:5]:
        H, G = draw.choice([(1, 1), (4, 2), (6, 1), (4, 1)])
        S = [draw.choice([0, *LENGTHS]) for _ in range(7)]
        T = [draw.choice([0, *LENGTHS]) for _ in range(7)]
        (cu_q, s), (cu_k, t) = packed(S), packed(T)
        q, k, v = (
            normal(s + 9, H, D, dtype=dtype),
            normal(t + 5, G, D, dtype=dtype, seed=1),
            normal(t + 5, G, E, dtype=dtype, seed=2),
        )
        k[t:], v[t:] = float("nan"), float("nan")
        options = options_of(draw, 1, 1, H)
        del options["offset"]
        with forced(kernel, "attention_varlen_with_lse"):
            out, lse = anyop.attention_varlen_with_lse(q, k, v, cu_q, cu_k, **options)
        assert not out[s:].any(), "queries behind the last"
        for i in range(7):
            mine, keys = slice(cu_q[i], cu_q[i + 1]), slice(cu_k[i], cu_k[i + 1])
            one = [x.transpose(0, 1)[None] for x in (q[mine], k[keys], v[keys])]
            what = (kernel, D, E, i, S[i], T[i], {k: str(v)[:9] for k, v in options.items()})
            if S[i] and T[i]:
                with forced(kernel, "attention_with_lse"):
                    alone = anyop.attention_with_lse(*one, offset=T[i] - S[i], **options)
                assert torch.equal(out[mine].transpose(0, 1), alone[0][0]), what
                assert torch.equal(lse[mine].t(), alone[1][0]), what
            if S[i]:
                exact, exact_lse = exactly(*one, offset=T[i] - S[i], **options)
                assert_near(out[mine].transpose(0, 1), exact[0], what)
                assert_near(lse[mine].t(), exact_lse[0], what)


@pytest.mark.parametrize("kernel", KERNELS)
def test_wrong_places_are_nan(kernel):
    q, k, v = normal(300, 2, 64), normal(300, 2, 64), normal(300, 2, 64)
    for wrong in ([0, 500, 300], [0, 200, 100], [-5, 100, 300], [0, 2**30, 2**31 - 1]):
        good, bad = torch.tensor([0, 100, 300]).cuda().int(), torch.tensor(wrong).cuda().int()
        for places in ((bad, good), (good, bad)):
            with forced(kernel, "attention_varlen"):
                assert anyop.attention_varlen(q, k, v, *places).isnan().all(), wrong


def test_a_graph_is_replayed_with_other_lengths():
    q, k, v = normal(1000, 4, 128), normal(1000, 2, 128, seed=1), normal(1000, 2, 128, seed=2)
    ends = torch.tensor([0, 10, 10, 400, 1000], device="cuda").int()
    anyop.attention_varlen(q, k, v, ends, ends, causal=True)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = anyop.attention_varlen(q, k, v, ends, ends, causal=True)
    draw = np.random.default_rng(0)
    for _ in range(100):
        ends.copy_(torch.tensor(np.sort(draw.integers(0, 1001, 5)), dtype=torch.int32))
        graph.replay()
        assert torch.equal(found, anyop.attention_varlen(q, k, v, ends, ends, causal=True))


@pytest.mark.parametrize("kernel", KERNELS)
def test_more_than_two_to_the_31_elements(kernel):
    """A few rows of 2^31 elements and more of queries, and of keys."""
    T = (1 << 31) // (8 * 128) + 300
    q, k, v = (normal(1, T, 8, 128).transpose(1, 2) for _ in range(3))
    bounds = {"causal": True, "window_left": 20}
    with forced(kernel, "attention"):
        found = anyop.attention(q, k, v, **bounds)
    for at in (slice(0, 64), slice(T - 200, T)):
        exact, _ = exactly(*(x[:, -1:, at] for x in (q, k, v)), **bounds)
        assert_near(found[:, -1:, at][:, :, 30:], exact[:, :, 30:], (kernel, at))


def served(lengths, S, H, G, D, E, P, dtype, cache_dtype, heads_first=False):
    """Queries, caches, table and lengths; NaN in pages that nobody has and behind the ends of sequences."""
    counts = [-(-n // P) for n in lengths]
    pages = sum(counts) + 3
    order = torch.randperm(pages, generator=torch.Generator().manual_seed(sum(lengths)))
    table = torch.full((len(lengths), max(counts) + 2), 2**31 - 1, dtype=torch.int32)
    caches = []
    for seed, width in enumerate((D, E)):
        cache = normal(pages, P, G, width, dtype=dtype, seed=seed).to(cache_dtype)
        if heads_first:
            cache = cache.transpose(1, 2).contiguous().transpose(1, 2)
        caches.append(cache)
    at = 0
    for b, n in enumerate(lengths):
        table[b, : counts[b]] = order[at : at + counts[b]]
        at += counts[b]
        if n % P:
            for cache in caches:
                cache[int(table[b, counts[b] - 1]), n % P :] = float("nan")
    for page in order[at:]:
        for cache in caches:
            cache[int(page)] = float("nan")
    q = normal(sum(S), H, D, dtype=dtype, seed=3)
    return q, *caches, table.cuda(), torch.tensor(lengths, device="cuda").int()


def paged_exactly(q, k_cache, v_cache, table, lengths, S, k_scale=1.0, v_scale=1.0, **options):
    out, lse, P, at = [], [], k_cache.shape[1], 0
    for b, n in enumerate(lengths.tolist()):
        pages = table[b, : -(-n // P)].long()
        k, v = (
            (x[pages].flatten(0, 1)[:n].double() * by)
            for x, by in ((k_cache, k_scale), (v_cache, v_scale))
        )
        one = [x.transpose(0, 1)[None] for x in (q[at : at + S[b]], k, v)]
        at += S[b]
        found, logs = exactly(*one, offset=n - S[b], **options)
        out.append(found[0].transpose(0, 1)), lse.append(logs[0].t())
    return torch.cat(out), torch.cat(lse)


CACHED = {"bfloat16": torch.bfloat16, "float8": torch.float8_e4m3fn}


@pytest.mark.parametrize("cached", CACHED)
@pytest.mark.parametrize(
    "features", [(64, 64), (128, 128), (192, 128), (256, 256), (40, 24)], ids=str
)
def test_pages(features, cached):
    draw, dtype = random.Random(f"{features} {cached}"), torch.bfloat16
    for P, (H, G), heads_first in itertools.product(
        (1, 16, 64), ((1, 1), (8, 2), (6, 1), (32, 2)), (False, True)
    ):
        lengths = [draw.choice([0, 1, 17, 64, 129, 700, 2300]) for _ in range(5)]
        decode = draw.random() < 0.5
        S = [1] * 5 if decode else [draw.choice([0, 1, 3, 17, 130]) for _ in range(5)]
        if not sum(S):
            continue
        given = served(lengths, S, H, G, *features, P, dtype, CACHED[cached], heads_first)
        options = {"causal": draw.random() < 0.8, "window_left": draw.choice([-1, 5, 100])}
        options |= {"softcap": draw.choice([0.0, 1.5])}
        options["sinks"] = normal(H, dtype=torch.float32) if draw.random() < 0.4 else None
        scales = {"k_scale": 0.5, "v_scale": 2.0} if cached == "float8" else {}
        on_device = {k: torch.full((1,), v, device="cuda") for k, v in scales.items()}
        cu = None if decode else packed(S)[0]
        what = (features, P, H, G, lengths, S, {k: str(v)[:9] for k, v in options.items()})
        exact, exact_lse = paged_exactly(*given, S, **scales, **options)
        for split_size in (0, 128, 4096):
            out, lse = anyop.attention_paged(
                *given, cu, split_size=split_size, **on_device, **options
            )
            assert_near(out, exact, what)
            assert_near(lse, exact_lse, what)


def test_a_cache_of_more_than_two_to_the_31_elements():
    """Pages at its end have the bits that they have in a cache of their own; append_kv writes there."""
    P, G, D = 64, 8, 128
    pages = (1 << 31) // (P * G * D) + 9
    caches = [torch.zeros(pages, P, G, D, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    new = [normal(3 * P, G, D, seed=seed) for seed in range(2)]
    slots = torch.arange((pages - 3) * P, pages * P, device="cuda", dtype=torch.int64)
    anyop.append_kv(*caches, *new, slots)
    small = [x.view(3, P, G, D) for x in new]
    assert all(torch.equal(cache[-3:], own) for cache, own in zip(caches, small))
    table = torch.tensor([[2, 0, 1]], device="cuda", dtype=torch.int32)
    lengths = torch.tensor([150], device="cuda", dtype=torch.int32)
    for tokens in (1, 130):
        q = normal(tokens, 32, D, seed=2)
        found = anyop.attention_paged(q, *caches, table + (pages - 3), lengths)
        right = anyop.attention_paged(q, *small, table, lengths)
        assert all(torch.equal(a, b) for a, b in zip(found, right)), tokens


def test_a_sequence_has_the_bits_it_has_alone():
    """With split_size, among sequences that decode and that prefill."""
    lengths, S = [700, 33, 2300, 1, 1500], [1, 16, 300, 1, 4]
    given = served(lengths, S, 8, 2, 128, 128, 16, torch.bfloat16, torch.bfloat16)
    q, k, v, table, device_lengths = given
    cu = packed(S)[0]
    out, lse = anyop.attention_paged(*given, cu, split_size=256)
    for b in range(5):
        mine = slice(int(cu[b]), int(cu[b + 1]))
        alone = anyop.attention_paged(
            q[mine], k, v, table[b : b + 1], device_lengths[b : b + 1], split_size=256
        )
        assert torch.equal(out[mine], alone[0]) and torch.equal(lse[mine], alone[1]), b


def test_a_wrong_length_or_page_is_nan_for_its_sequence():
    for wrong in ("length", "negative", "page"):
        given = list(
            served([700, 33, 300], [1] * 3, 8, 2, 128, 128, 16, torch.bfloat16, torch.bfloat16)
        )
        right = anyop.attention_paged(*given)[0]
        if wrong == "page":
            given[3][1, 1] = 10**6
        else:
            given[4][1] = 10**6 if wrong == "length" else -1
        for split_size in (0, 64):
            found = anyop.attention_paged(*given, split_size=split_size)[0]
            assert found[1].isnan().all() and not found[[0, 2]].isnan().any(), wrong
        assert torch.equal(anyop.attention_paged(*given)[0][0], right[0])


def test_pages_in_a_graph_with_other_lengths():
    given = served([700, 33, 2300], [1] * 3, 8, 2, 128, 128, 16, torch.bfloat16, torch.bfloat16)
    anyop.attention_paged(*given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, _ = anyop.attention_paged(*given)
    draw = np.random.default_rng(0)
    for _ in range(100):
        given[4].copy_(torch.tensor(draw.integers(0, (701, 34, 2301)), dtype=torch.int32))
        graph.replay()
        assert torch.equal(out, anyop.attention_paged(*given)[0])
