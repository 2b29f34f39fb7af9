# SPDX-License-Identifier: Apache-2.0
"""attention_paged by cuda_sm90, prompts and chunks: pages of every size, against float64 and bit for bit as dense keys;
poison, wrong pages and lengths, graphs; which calls it leaves to the kernel for all GPUs.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
from pathlib import Path

import anyop
import numpy as np
import pytest
from anyop._routes import implementations

sys.path.insert(0, str(Path(__file__).parent))
from cuda_attention import LENGTHS, assert_near, normal, packed, paged_exactly, served
from on_cuda import torch

if "cuda_sm90" not in [found["name"] for found in implementations("attention_paged")]:
    pytest.skip("attention_paged has no cuda_sm90 in this build", allow_module_level=True)
if torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("cuda_sm90 is for Hopper, this is another GPU", allow_module_level=True)
FEATURES = [(64, 64), (128, 128), (192, 128), (256, 256), (40, 24), (128, 72)]


class Log:
    """What ran last, whichever kernels were asked before."""

    path: Path

    @classmethod
    def last(cls) -> str:
        return json.loads(cls.path.read_text().splitlines()[-1])["backend"]


@pytest.fixture(autouse=True, scope="module")
def logged(tmp_path_factory):
    Log.path = tmp_path_factory.mktemp("log") / "calls.jsonl"
    anyop.log_dispatch(2, file=Log.path, stderr=False)
    yield
    anyop.log_dispatch(0)


def on_hopper(*given, **options):
    """By cuda_sm90, however few the queries are; the same bits twice."""
    with anyop.use("cuda_sm90:1"):
        found = anyop.attention_paged(*given, **options)
        again = anyop.attention_paged(*given, **options)
    assert Log.last() == "cuda_sm90"
    for one, other in zip(found, again):
        assert torch.equal(one.view(torch.uint8), other.view(torch.uint8)), "other bits"
    return found


def options_of(draw: random.Random, H: int) -> dict:
    return {
        "causal": draw.random() < 0.8,
        "window_left": draw.choice([-1, -1, 5, 100, 300]),
        "softcap": draw.choice([0.0, 0.0, 1.5]),
        "scale": draw.choice([None, 0.3]),
        "sinks": normal(H, dtype=torch.float32) if draw.random() < 0.4 else None,
    }


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("features", FEATURES, ids=str)
def test_pages(features, dtype):
    """Of every size and order; empty sequences, chunks, prompts and single tokens at once, and as many of each."""
    draw = random.Random(f"{features} {dtype}")
    for P, heads_first, is_packed in itertools.product(
        (8, 16, 24, 48, 64, 128, 256), (False, True), (False, True)
    ):
        (H, G), B = draw.choice([(1, 1), (8, 2), (6, 1), (4, 4)]), 5
        lengths = [draw.choice([0, 1, 17, 64, 129, 700, 2300]) for _ in range(B)]
        S = [draw.choice([130, 33, 260])] * B
        if is_packed:
            S = [draw.choice([0, 1, 3, *LENGTHS]) for _ in range(B)]
        given = served(lengths, S, H, G, *features, P, dtype, dtype, heads_first)
        options = options_of(draw, H)
        what = (features, P, H, G, lengths, S, {k: str(v)[:9] for k, v in options.items()})
        exact, exact_lse = paged_exactly(*given, S, **options)
        out, lse = on_hopper(*given, packed(S)[0] if is_packed else None, **options)
        assert_near(out, exact, what)
        assert_near(lse, exact_lse, what)


@pytest.mark.parametrize("features", FEATURES[:4], ids=str)
def test_pages_have_the_bits_of_rows(features):
    """A sequence's are those of attention to the same keys one behind the other, whatever its neighbours."""
    lengths, S, (H, G) = [700, 33, 0, 2300, 1500], [300, 33, 5, 129, 1], (8, 2)
    for P in (8, 16, 80, 256):
        given = served(lengths, S, H, G, *features, P, torch.bfloat16, torch.bfloat16)
        cu = packed(S)[0]
        out, lse = on_hopper(*given, cu, window_left=900)
        for b, n in enumerate(lengths):
            mine = slice(int(cu[b]), int(cu[b + 1]))
            alone = on_hopper(
                given[0][mine],
                *given[1:3],
                given[3][b : b + 1],
                given[4][b : b + 1],
                window_left=900,
            )
            assert torch.equal(out[mine], alone[0]) and torch.equal(lse[mine], alone[1]), (P, b)
            if not n:
                assert not out[mine].any() and (lse[mine] == -torch.inf).all()
                continue
            pages = given[3][b, : -(-n // P)].long()
            k, v = (x[pages].flatten(0, 1)[:n].transpose(0, 1)[None] for x in given[1:3])
            with anyop.use("cuda_sm90"):
                rows = anyop.attention_with_lse(
                    given[0][mine].transpose(0, 1)[None], k, v, causal=True, window_left=900,
                    offset=n - S[b],
                )  # fmt: skip
            assert torch.equal(out[mine].transpose(0, 1), rows[0][0]), (P, b)
            assert torch.equal(lse[mine].t(), rows[1][0]), (P, b)


def test_many_sequences():
    """More than a warp has lanes, most of them short or empty: each as in float64."""
    draw = random.Random("many")
    lengths = [draw.choice([0, 1, 15, 16, 40, 200]) for _ in range(150)]
    S = [draw.choice([0, 0, 1, 2, 7, 130]) for _ in lengths]
    given = served(lengths, S, 4, 2, 64, 64, 8, torch.bfloat16, torch.bfloat16)
    exact, exact_lse = paged_exactly(*given, S, causal=True)
    out, lse = on_hopper(*given, packed(S)[0])
    assert_near(out, exact, "results")
    assert_near(lse, exact_lse, "logarithms")


def test_queries_of_no_sequence():
    given = served([700, 300], [40, 160], 8, 2, 128, 128, 16, torch.bfloat16, torch.bfloat16)
    cu = torch.tensor([10, 40, 180], device="cuda").int()
    out, lse = on_hopper(*given, cu)
    exact, _ = paged_exactly(given[0][10:180], *given[1:], [30, 140], causal=True)
    assert_near(out[10:180], exact, "of sequences")
    for outside in (slice(10), slice(180, None)):
        assert not out[outside].any() and (lse[outside] == -torch.inf).all()


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_what_is_not_finite_shows_where_it_is_seen(value):
    """In values of pages that are read; behind the ends, in `served`, is NaN."""
    for (D, E), P in itertools.product([(64, 64), (128, 128), (256, 256)], (8, 48)):
        lengths, S = [300, 450], [300, 150]
        given = served(lengths, S, 4, 2, D, E, P, torch.bfloat16, torch.bfloat16)
        for b, t in ((0, 0), (0, 70), (0, 299), (1, 128), (1, 449)):
            given[2][given[3][b, t // P], t % P, 0, t % E] = float(value)
        for options in ({}, {"window_left": 40}, {"causal": False}):
            out, _ = on_hopper(*given, packed(S)[0], **options)
            exact, _ = paged_exactly(*given, S, **{"causal": True} | options)
            assert_near(out, exact, (D, P, value, options))


def test_what_lies_behind_an_end_never_shows():
    """Whatever is there, and whatever other sequences left in shared memory."""
    given = served([700, 333, 65], [260, 333, 65], 8, 2, 128, 128, 64, torch.float16, torch.float16)
    cu = packed([260, 333, 65])[0]
    expected = on_hopper(*given, cu)
    outside = [cache.isnan() for cache in given[1:3]]
    for value in (0.0, float("inf"), 6e4):
        for cache, mask in zip(given[1:3], outside):
            cache[mask] = value
        for one, other in zip(on_hopper(*given, cu), expected):
            assert torch.equal(one, other), value


WRONG_PAGES = [-1, 10**6, -(2**31), 2**31 - 1]


@pytest.mark.parametrize("P", [8, 64, 256])
def test_a_wrong_page_or_length_is_nan(P):
    """For the queries of its sequence that see it; nothing is read by it."""
    lengths, S = [700, 1400, 300], [128, 1300, 128]
    given = list(served(lengths, S, 8, 2, 128, 128, P, torch.bfloat16, torch.bfloat16))
    cu, table, device_lengths = packed(S)[0], given[3].clone(), given[4].clone()
    right = on_hopper(*given, cu)
    mine = slice(128, 1428)
    for page, at in itertools.product(WRONG_PAGES, (0, 1399 // P, 640 // P)):
        given[3] = table.clone()
        given[3][1, at] = page
        first = max(at * P - 100, 0)  # the first query that sees a key of the page
        for found, exact in zip(on_hopper(*given, cu), right):
            for others in (slice(0, 128), slice(1428, None)):
                assert torch.equal(found[others], exact[others]), (page, at)
            assert found[mine][first:].isnan().all(), (page, at)
            before = found[mine][: first // 128 * 128]  # tiles that see no such key
            assert torch.equal(before, exact[mine][: first // 128 * 128]), (page, at)
    given[3] = table
    for length in (-1, 10**6, int(table.shape[1]) * P + 1, -(2**31)):
        given[4] = device_lengths.clone()
        given[4][1] = length
        for found, exact in zip(on_hopper(*given, cu), right):
            assert found[mine].isnan().all(), length
            assert torch.equal(found[:128], exact[:128]) and torch.equal(found[1428:], exact[1428:])


def test_pages_that_a_window_has_left_are_not_looked_at():
    S = [128, 128]
    given = served([700, 900], S, 8, 2, 128, 128, 16, torch.bfloat16, torch.bfloat16)
    expected = on_hopper(*given, window_left=100)
    for b, n in ((0, 700), (1, 900)):
        given[3][b, : (n - 128 - 100) // 16] = -1
    for one, other in zip(on_hopper(*given, window_left=100), expected):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    "wrong", [[0, 500, 300], [0, 200, 100], [-5, 100, 300], [0, 2**30, 2**31 - 1]]
)
def test_wrong_places_are_nan(wrong):
    given = served([300, 300], [150, 150], 8, 2, 128, 128, 16, torch.bfloat16, torch.bfloat16)
    for found in on_hopper(*given, torch.tensor(wrong, device="cuda").int()):
        assert found.isnan().all()


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_graph_is_replayed_with_other_lengths_and_tables(is_packed):
    B, P, M, pages = 5, 16, 64, 300
    q = normal(B * 128, 8, 128)
    caches = [normal(pages, P, 2, 128, seed=seed) for seed in (1, 2)]
    table = torch.zeros(B, M, dtype=torch.int32, device="cuda")
    lengths = torch.full((B,), 500, dtype=torch.int32, device="cuda")
    cu = packed([128] * B)[0] if is_packed else None

    def call():
        with anyop.use("cuda_sm90:1"):
            return anyop.attention_paged(q, *caches, table, lengths, cu)

    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call()
    draw = np.random.default_rng(0)
    for _ in range(60):
        lengths.copy_(torch.tensor(draw.integers(0, M * P + 1, B), dtype=torch.int32))
        table.copy_(torch.tensor(draw.integers(0, pages, (B, M)), dtype=torch.int32))
        if is_packed:
            ends = np.sort(draw.integers(0, B * 128 + 1, B + 1))
            cu.copy_(torch.tensor(ends, dtype=torch.int32))
        graph.replay()
        for found, eager in zip(captured, call(), strict=True):
            assert torch.equal(found, eager) and not found.isnan().any()


def test_more_than_two_to_the_31_elements():
    """The last pages of a large cache, heads within pages and before them."""
    P, G = 16, 8
    pages = (1 << 31) // (P * G * 128) + 100
    caches = [normal(pages, P, G, 128, seed=seed) for seed in (1, 2)]
    table = torch.arange(pages - 40, pages, device="cuda").int().flip(0)[None].contiguous()
    lengths, q = torch.tensor([40 * P - 3], device="cuda").int(), normal(200, G, 128)
    for turned in (False, True):
        given = caches
        if turned:
            given = [x.view(pages, G, P, 128).transpose(1, 2) for x in caches]
        exact, _ = paged_exactly(q, *given, table, lengths, [200], causal=True)
        assert_near(on_hopper(q, *given, table, lengths)[0], exact, turned)


def test_which_calls_it_takes():
    """Prompts, chunks, decoding; parts and what it has no tiles for go to the kernel for all GPUs."""

    def chosen(S, P=16, cached=torch.bfloat16, choice="cuda_sm90", **options):
        given = served([700] * 4, [S] * 4, 8, 2, 128, 128, P, torch.bfloat16, cached)
        anyop.attention_paged(*given, **options)
        default = Log.last()
        with anyop.use(choice):
            anyop.attention_paged(*given, **options)
        assert Log.last() == default or choice != "cuda_sm90"
        return Log.last()

    assert chosen(512) == chosen(512, P=8) == chosen(512, P=256) == "cuda_sm90"
    assert chosen(1) == chosen(4) == "cuda_sm90"
    assert chosen(5) == chosen(1, P=4) == chosen(1, split_size=128) == "cuda"
    assert chosen(1, choice="cuda_sm90:1") == "cuda_sm90"
    for options in ({"P": 1}, {"P": 4}, {"cached": torch.float8_e4m3fn}, {"split_size": 128}):
        assert chosen(512, **options) == "cuda"
    one, slopes = torch.ones(1, device="cuda"), torch.ones(8, device="cuda")
    for options in ({"alibi_slopes": slopes}, {"k_scale": one}, {"v_scale": one}, {"scale": -1.0}):
        assert chosen(512, **options) == "cuda"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("features", [(128, 128), (64, 64), (96, 40)], ids=str)
def test_decoding_is_as_by_the_kernel_for_all_gpus(features, dtype):
    """Bit for bit where tiles are the same; lengths, pages, windows and caps; wrong pages and lengths, too."""
    draw = random.Random(f"{features} {dtype}")
    for P, (H, G), each in itertools.product((8, 16, 24, 256), ((8, 1), (32, 8), (3, 3)), (1, 2)):
        lengths = [draw.choice([0, 1, 63, 64, 65, 700, 2300]) for _ in range(5)] + [9000]
        given = list(
            served(lengths, [each] * 6, H, G, *features, P, dtype, dtype, draw.random() < 0.5)
        )
        options = {"causal": draw.random() < 0.8, "window_left": draw.choice([-1, 5, 100])}
        options |= {"softcap": draw.choice([0.0, 1.5])}
        options["sinks"] = normal(H, dtype=torch.float32) if draw.random() < 0.4 else None
        what = (P, H, G, each, lengths, {k: str(v)[:9] for k, v in options.items()})
        for wrong in (None, "page", "length"):
            if wrong == "page":
                given[3][5, -3] = 10**6
            elif wrong == "length":
                given[4][3] = -1
            found = anyop.attention_paged(*given, **options)
            assert Log.last() == "cuda_sm90"
            with anyop.use("cuda"):
                right = anyop.attention_paged(*given, **options)
            for a, b in zip(found, right):
                bits = torch.int16 if a.dtype == dtype else torch.int32
                assert torch.equal(a.isnan(), b.isnan()), (wrong, what)
                # Divided among blocks of a cluster.
                if each == 1 and features[0] == features[1] and P in (16, 256):
                    assert_near(a[~a.isnan()], b[~b.isnan()].double(), (wrong, what))
                    continue
                same = a.view(bits) == b.view(bits)
                assert (same | a.isnan()).all(), (wrong, what)
