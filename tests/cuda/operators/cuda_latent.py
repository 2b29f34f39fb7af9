# SPDX-License-Identifier: Apache-2.0
"""Latent attention's CUDA kernels, each forced by name, against float64: pages, lists, hostile values, bits."""

from __future__ import annotations

import itertools
import random
import sys
from pathlib import Path

import anyop
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from cuda_attention import KERNELS, assert_near, forced, normal, torch

R, SCALE = 512, 192**-0.5
LENGTHS = [0, 1, 63, 64, 65, 127, 128, 129, 700, 2300, 8191]
NOBODY = 2**31 - 1


def over_rows(q, rows, R=R, scale=SCALE, causal=False, sinks=None):
    """In float64: queries (S, H, W) to rows (n, W) that all heads share; results (S, H, R), logarithms (S, H)."""
    q, rows, (S, n) = q.double(), rows.double(), (len(q), len(rows))
    score = torch.einsum("shw,nw->shn", q, rows) * scale
    if causal:
        place = torch.arange(S, device="cuda")[:, None] + n - S
        hidden = torch.arange(n, device="cuda") > place
        score = score.masked_fill(hidden[:, None], -torch.inf)
    all_scores = score
    if sinks is not None:
        all_scores = torch.cat([score, sinks.double()[None, :, None].expand(S, -1, 1)], -1)
    lse = all_scores.logsumexp(-1)
    weights = torch.exp(score - lse.masked_fill(lse == -torch.inf, 0)[..., None])
    return torch.einsum("shn,nr->shr", weights, rows[:, :R]), lse


def served(lengths, S, H, P, dtype=torch.bfloat16, W=576):
    """Queries, a cache, pages and lengths; NaN in pages that nobody has and behind the ends of sequences."""
    counts = [-(-n // P) for n in lengths]
    order = torch.randperm(sum(counts) + 3, generator=torch.Generator().manual_seed(sum(lengths)))
    table = torch.full((len(lengths), max(counts) + 2), NOBODY, dtype=torch.int32)
    cache = normal(len(order), P, W, dtype=dtype)
    at = 0
    for b, n in enumerate(lengths):
        table[b, : counts[b]] = order[at : at + counts[b]]
        at += counts[b]
        if n % P:
            cache[int(table[b, counts[b] - 1]), n % P :] = float("nan")
    cache[order[at:].cuda()] = float("nan")
    q = normal(len(lengths), S, H, W, dtype=dtype, seed=1)
    return q, cache, table.cuda(), torch.tensor(lengths, device="cuda").int()


def served_exactly(q, cache, table, lengths, R=R, scale=SCALE, causal=True):
    found = []
    for b, n in enumerate(lengths.tolist()):
        rows = cache[table[b, : -(-n // cache.shape[1])].long()].flatten(0, 1)[:n]
        found.append(over_rows(q[b], rows, R, scale, causal))
    return [torch.stack(x) for x in zip(*found)]


def decode(kernel, *given, **options):
    with forced(kernel, "mla_decode"):
        return anyop.mla_decode(*given, **{"R": R, "scale": SCALE} | options)


def sparse(kernel, *given, **options):
    with forced(kernel, "mla_sparse"):
        return anyop.mla_sparse(*given, **{"R": R, "scale": SCALE} | options)


@pytest.fixture(autouse=True)
def _no_fallback(monkeypatch):
    monkeypatch.setenv("ANYOP_FALLBACK", "error")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("P", [64, 16, 128, 8, 1])
@pytest.mark.parametrize("kernel", KERNELS)
def test_pages(kernel, P, dtype):
    """Any lengths, heads, drafts and parts; a sequence has the bits that it has alone where split_size is given."""
    draw = random.Random(f"{P} {dtype}")
    for S, H in ((1, 128), (1, 16), (2, 64), (8, 16), (3, 5), (8, 128)):
        lengths = [draw.choice(LENGTHS) for _ in range(5)]
        W, R = draw.choice([(576, 512), (576, 512), (512, 512), (520, 256)])
        given, causal = served(lengths, S, H, P, dtype, W), draw.random() < 0.8
        options = {"R": R, "causal": causal}
        exact = served_exactly(*given, **options)
        for split_size in (0, 128, 100, 4096):
            what = (kernel, P, S, H, W, R, lengths, causal, split_size)
            found = decode(kernel, *given, split_size=split_size, **options)
            again = decode(kernel, *given, split_size=split_size, **options)
            for one, other, right in zip(found, again, exact):
                assert torch.equal(one, other), what
                assert_near(one, right, what)
            if split_size:
                own = [given[0][3:4], given[1], given[2][3:4], given[3][3:4]]
                alone = decode(kernel, *own, split_size=split_size, **options)
                assert all(torch.equal(x[0], y[3]) for x, y in zip(alone, found)), what


@pytest.mark.parametrize("kernel", KERNELS)
def test_views(kernel):
    """Rows that lie apart, pages with room behind them, heads before tokens."""
    given = list(served([300, 65], 2, 32, 64))
    right = decode(kernel, *given)
    room = torch.full((len(given[1]), 70, 640), float("nan"), device="cuda", dtype=torch.bfloat16)
    room[:, 2:66, 8:584] = given[1]
    given[1] = room[:, 2:66, 8:584]
    given[0] = given[0].transpose(1, 2).contiguous().transpose(1, 2)
    for found, exact in zip(decode(kernel, *given), right):
        assert torch.equal(found, exact)


@pytest.mark.parametrize("size", [1e6, -1e6])
@pytest.mark.parametrize("kernel", KERNELS)
def test_scores_far_from_zero(kernel, size):
    given = served([65, 700], 2, 16, 64)
    given[1][:] = given[1] * 0 + 1
    given[0][:] = 0
    given[0][..., 0] = size
    out, lse = decode(kernel, *given, scale=1.0)
    score = given[0][0, 0, 0, 0].double()
    assert_near(out, torch.ones_like(out).double(), size)
    assert ((lse.double() - score).abs() < 1e-5 * score.abs()).all()


@pytest.mark.parametrize("kernel", KERNELS)
def test_what_a_query_does_not_see_never_shows(kernel):
    """A NaN in the last row: the token before it is as in float64, the token itself NaN."""
    given = served([130], 2, 16, 64)
    exact = served_exactly(*given)
    given[1][int(given[2][0, 2]), 1, 3] = float("nan")
    for found, right in zip(decode(kernel, *given), exact):
        assert_near(found[:, 0], right[:, 0], kernel)
        assert found[:, 1].isnan().all()


@pytest.mark.parametrize("wrong", ["length", "negative", "page", "negative page"])
@pytest.mark.parametrize("P", [64, 1])
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_wrong_length_or_page_is_nan_for_its_sequence(kernel, P, wrong):
    given = served([700, 65, 300], 1, 16, P)
    right = decode(kernel, *given, split_size=64)
    if "page" in wrong:
        given[2][1, 1] = -1 if "negative" in wrong else 10**6
    else:
        given[3][1] = -1 if "negative" in wrong else 10**6
    for split_size in (0, 64):
        found = decode(kernel, *given, split_size=split_size)
        assert all(x[1].isnan().all() and not x[[0, 2]].isnan().any() for x in found), wrong
    for one, other in zip(found, right):
        assert torch.equal(one[[0, 2]], other[[0, 2]])


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_graph_is_replayed_with_other_lengths(kernel):
    given = served([700, 33, 2300], 1, 16, 64)
    decode(kernel, *given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, _ = decode(kernel, *given)
    draw = random.Random(0)
    for _ in range(30):
        given[3].copy_(torch.tensor([draw.randint(0, n) for n in (700, 33, 2300)]).int())
        graph.replay()
        assert torch.equal(out, decode(kernel, *given)[0])


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_cache_of_more_than_two_to_the_31_elements(kernel):
    pages = (1 << 31) // (64 * 576) + 9
    cache = torch.zeros(pages, 64, 576, device="cuda", dtype=torch.bfloat16)
    cache[-3:] = normal(3, 64, 576)
    q, table = normal(1, 1, 16, 576), torch.arange(pages - 3, pages, device="cuda").int()[None]
    lengths = torch.tensor([150], device="cuda").int()
    given = (q, cache, table, lengths)
    for found, right in zip(decode(kernel, *given), served_exactly(*given)):
        assert_near(found, right, kernel)
    rows = torch.arange(150, device="cuda").int()[None] + (pages - 3) * 64
    for found, right in zip(sparse(kernel, q[0], cache, rows), served_exactly(*given)):
        assert_near(found, right[0], kernel)


LISTED = [  # T, H, W, K, P
    (7, 128, 576, 200, 64),
    (9, 16, 576, 2048, 1),
    (300, 64, 576, 130, 64),
    (5, 64, 512, 64, 7),
    (6, 128, 520, 63, 16),
    (4, 5, 576, 0, 16),
]


def listed(T, H, W, K, P, dtype, apart):
    """Queries, a cache, indices and lengths; rows that no token lists are NaN. apart: pages have room behind them."""
    draw = torch.Generator("cuda").manual_seed(K)
    places = 4096 // P * P
    cache, q = normal(places // P, P, W, dtype=dtype), normal(T, H, W, dtype=dtype, seed=1)
    indices = torch.randint(0, places, (T, K), device="cuda", generator=draw, dtype=torch.int32)
    indices[torch.rand(T, K, device="cuda", generator=draw) < 0.2] = -1
    lengths = torch.randint(0, K + 1, (T,), device="cuda", generator=draw, dtype=torch.int32)
    lengths[:3] = torch.tensor([0, min(K, 1), K])
    lists = [i[: int(n)] for i, n in zip(indices, lengths)]
    lists = [i[i >= 0].long() for i in lists]
    unseen = torch.ones(places, dtype=torch.bool, device="cuda")
    unseen[torch.cat(lists)] = False
    cache.flatten(0, 1)[unseen] = float("nan")
    indices[torch.arange(K, device="cuda") >= lengths[:, None]] = NOBODY
    if apart:
        room = torch.full((len(cache), P + 1, W), float("nan"), device="cuda", dtype=dtype)
        room[:, :P] = cache
        cache = room[:, :P]
    return (q, cache, indices, lengths), lists


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sizes", LISTED, ids=str)
@pytest.mark.parametrize("kernel", KERNELS)
def test_lists(kernel, sizes, dtype):
    for apart, with_sinks in itertools.product((False, True), (False, True)):
        (q, cache, indices, lengths), lists = listed(*sizes, dtype, apart)
        sinks = normal(q.shape[1], dtype=torch.float32) if with_sinks else None
        found = sparse(kernel, q, cache, indices, lengths=lengths, sinks=sinks)
        again = sparse(kernel, q, cache, indices, lengths=lengths, sinks=sinks)
        assert all(torch.equal(x, y) for x, y in zip(found, again))
        rows = cache.flatten(0, 1)
        for t in range(0, len(q), 1 + len(q) // 20):
            exact = over_rows(q[t : t + 1], rows[lists[t]], sinks=sinks)
            for result, right in zip(found, exact):
                assert_near(result[t : t + 1], right, (kernel, sizes, apart, with_sinks, t))


def as_bytes(cache):
    """Rows of 656 bytes, and what they stand for."""
    rows = cache.flatten(0, 1)
    packed = torch.zeros(*cache.shape[:2], 656, dtype=torch.uint8, device="cuda")
    slots = torch.arange(len(rows), device="cuda").int()
    anyop.append_latent_fp8(packed, rows[:, :512], rows[:, 512:], slots)
    flat = packed.flatten(0, 1)
    small = flat[:, :512].contiguous().view(torch.float8_e4m3fn).float().unflatten(1, (4, 128))
    scales = flat[:, 512:528].contiguous().view(torch.float32)[..., None]
    wide = flat[:, 528:].contiguous().view(torch.bfloat16)
    return packed, torch.cat([(small * scales).flatten(1), wide.float()], 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sizes", [sizes for sizes in LISTED if sizes[2] == 576], ids=str)
@pytest.mark.parametrize("kernel", KERNELS)
def test_lists_of_bytes(kernel, sizes, dtype):
    """A wrong index is NaN for its token alone."""
    for with_sinks in (False, True):
        (q, cache, indices, lengths), lists = listed(*sizes, dtype, False)
        packed, rows = as_bytes(cache)
        if kernel == "cuda_sm90":
            rows = rows.to(dtype)  # before it multiplies them
        sinks = normal(q.shape[1], dtype=torch.float32) if with_sinks else None

        def call(indices):
            with forced(kernel, "mla_sparse_fp8"):
                return anyop.mla_sparse_fp8(
                    q,  # noqa: B023
                    packed,  # noqa: B023
                    indices,
                    scale=SCALE,
                    lengths=lengths,  # noqa: B023
                    sinks=sinks,  # noqa: B023
                )

        found, again = call(indices), call(indices)
        assert all(torch.equal(x, y) for x, y in zip(found, again))
        for t in range(0, len(q), 1 + len(q) // 20):
            exact = over_rows(q[t : t + 1], rows[lists[t]], sinks=sinks)
            for result, right in zip(found, exact):
                assert_near(result[t : t + 1], right, (kernel, sizes, with_sinks, t))
        if indices.shape[1]:
            wrong = indices.clone()
            wrong[2, indices.shape[1] // 2] = len(rows)
            for one, other in zip(call(wrong), found):
                assert one[2].isnan().all()
                assert torch.equal(one[:2], other[:2]) and torch.equal(one[3:], other[3:])


@pytest.mark.parametrize("wrong", [4096, -2, NOBODY, -NOBODY])
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_wrong_index_is_nan_for_its_token(kernel, wrong):
    for apart in (False, True):
        (q, cache, indices, _), _ = listed(5, 64, 576, 200, 16, torch.bfloat16, apart)
        cache[:] = torch.where(cache.isnan(), 0, cache)
        indices[:] = indices % 4096
        right = sparse(kernel, q, cache, indices)
        indices[3, 150] = wrong
        found = sparse(kernel, q, cache, indices)
        others = [0, 1, 2, 4]
        for one, other in zip(found, right):
            assert one[3].isnan().all() and torch.equal(one[others], other[others])
