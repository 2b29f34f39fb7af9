# SPDX-License-Identifier: Apache-2.0
"""attention_paged in float64 over gathered keys; pages of every size and order; what nobody may see; wrong places."""

import itertools

import anyop
import numpy as np
import pytest
from attention_test import reference_with_lse as of_one


def gathered(cache, pages, length, scale):
    """The first rows of some pages, (length, G, D), in float64."""
    rows = cache[pages].reshape(len(pages) * cache.shape[1], *cache.shape[2:])[:length]
    return rows.astype(float) * (
        1 if scale is None else np.broadcast_to(scale, rows.shape[1])[:, None]
    )


def reference(
    q, k_cache, v_cache, page_table, seqlens_k, cu_seqlens_q, scale, causal, window_left, softcap,
    sinks, alibi_slopes, k_scale, v_scale, split_size,
):  # fmt: skip
    (S, H, _), B, P = q.shape, len(seqlens_k), k_cache.shape[1]
    out, lse = np.zeros((S, H, v_cache.shape[3])), np.zeros((S, H))
    each = S // B if B else 0
    starts = [b * each for b in range(B + 1)] if cu_seqlens_q is None else [*map(int, cu_seqlens_q)]
    bounds = [0, *starts, S]  # what lies outside is as a sequence without keys
    for i in range(len(bounds) - 1):
        b, at = i - 1, slice(*bounds[i : i + 2])
        length = int(seqlens_k[b]) if 0 <= b < B else 0
        pages = np.asarray(page_table[b, : -(-length // P)] if length else [], int)
        k, v = gathered(k_cache, pages, length, k_scale), gathered(v_cache, pages, length, v_scale)
        heads = (x.swapaxes(0, 1)[None] for x in (q[at].astype(float), k, v))
        offset = length - (at.stop - at.start)
        options = (window_left, -1, softcap, sinks, alibi_slopes)
        found, logs = of_one(*heads, None, scale, causal, offset, *options)
        out[at], lse[at] = found[0].swapaxes(0, 1), logs[0].T
    return out, lse


H, G, D, E = 4, 2, 16, 24
LENGTHS = (0, 1, 15, 16, 17, 127, 128, 129)
NAMES = ("q", "k_cache", "v_cache", "page_table", "seqlens_k")
NONE = {
    "cu_seqlens_q": None, "scale": None, "causal": True, "window_left": -1, "softcap": 0.0, "sinks": None,
    "alibi_slopes": None, "k_scale": None, "v_scale": None, "split_size": 0,
}  # fmt: skip
OPTIONS = {
    "window_left": 20, "softcap": 2.0, "sinks": np.array([0.5, -np.inf, 3, 0], np.float32),
    "alibi_slopes": np.array([0.1, 0, 0.5, 0.02], np.float32),
}  # fmt: skip


def served(lengths, queries, P=16, heads_first=False, dtype=np.float32):
    """Random sequences. What belongs to none of them is NaN, and what the table says behind its pages is no page."""
    random = np.random.default_rng(0)
    counts = [-(-n // P) for n in lengths]
    pages = random.permutation(sum(counts) + 3).astype(np.int32)  # and some that nobody has
    table = np.where(random.random((len(lengths), max(counts) + 2)) < 0.5, -1, 2**31 - 1)
    caches = []
    for width in (D, E):
        shape = (len(pages), G, P, width) if heads_first else (len(pages), P, G, width)
        cache = np.full(shape, np.nan, dtype)
        caches.append(cache.swapaxes(1, 2) if heads_first else cache)
    for b, n in enumerate(lengths):
        own = pages[sum(counts[:b]) :][: counts[b]]
        table[b, : counts[b]] = own
        for cache in caches:
            for j, page in enumerate(own):
                rows = cache[page, : min(P, n - j * P)]
                rows[...] = random.standard_normal(rows.shape).astype(dtype)
    q = random.standard_normal((sum(queries), H, D)).astype(np.float32)
    return dict(zip(NAMES, (q, *caches, table.astype(np.int32), np.array(lengths, np.int32))))


def places(queries):
    return np.cumsum([0, *queries], dtype=np.int32)


def compare(given, options):
    """With float64; the results."""
    found = anyop.attention_paged(**given, **options)
    for result, exact in zip(found, reference(**given, **NONE | options)):
        np.testing.assert_allclose(result, exact, rtol=1e-5, atol=1e-5)
    return found


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("P", [1, 16, 64, 256])
def test_pages_of_any_size_in_either_order(P, queries):
    """Decoding, and as many queries of each; some see nothing."""
    counts = [queries] * len(LENGTHS)
    out, lse = compare(served(LENGTHS, counts, P), {})
    assert not out[:queries].any() and (lse[:queries] == -np.inf).all()
    nothing = (out == 0).all((1, 2)).sum()
    assert nothing == (lse == -np.inf).all(1).sum() == (1 if queries == 1 else 3 + 2)
    turned = anyop.attention_paged(**served(LENGTHS, counts, P, heads_first=True))
    np.testing.assert_array_equal(turned[0], out)
    np.testing.assert_array_equal(turned[1], lse)


@pytest.mark.parametrize("pair", list(itertools.combinations(OPTIONS, 2)), ids="-".join)
def test_pairs_of_options(pair):
    """Decoding, drafts, chunks and prompts at once; then queries in front of the first sequence and behind the last."""
    options = {name: OPTIONS[name] for name in pair}
    queries = (2, 1, 0, 16, 9, 40, 1, 129)
    given = served(LENGTHS, queries)
    for starts in (places(queries), np.clip(places(queries), 1, 180)):
        compare(given, options | {"cu_seqlens_q": starts})
    compare(given, options | {"cu_seqlens_q": places(queries), "causal": False, "scale": 0.3})


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("scales", [(1,), (2,), ()], ids=str)
def test_fp8_caches(scales, dtype):
    """As in float64 from the same bytes; without scales they are the numbers themselves."""
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="float8 in NumPy is ml_dtypes'")
    random = np.random.default_rng(0)
    given = served(LENGTHS, [2] * 8, dtype=ml_dtypes.float8_e4m3fn)
    given["q"] = given["q"].astype(dtype)
    k_scale, v_scale = (random.uniform(0.1, 3, scales).astype(np.float32) for _ in range(2))
    for options in ({}, {"k_scale": k_scale}, {"k_scale": k_scale, "v_scale": v_scale}):
        out, lse = anyop.attention_paged(**given, **options)
        exact, logs = reference(**given, **NONE | options)
        half = 2**-11 if dtype == np.float16 else 0  # a unit in the last place
        np.testing.assert_allclose(out, exact, rtol=1e-5 + half, atol=1e-5)
        np.testing.assert_allclose(lse, logs, rtol=1e-5, atol=1e-5)


def test_prompts_that_are_served():
    """Prefill in chunks and decoding of uneven prompts at once: as attention over all tokens of each."""
    random = np.random.default_rng(0)
    P, lengths = 8, random.integers(1, 60, 12)
    tokens = [random.standard_normal((n, H + 2 * G, D)).astype(np.float32) for n in lengths]
    caches = [np.full((110, P, G, D), np.nan, np.float32) for _ in range(2)]
    free, table, done = iter(random.permutation(110)), np.zeros((12, 8), np.int32), [0] * 12
    for b, n in enumerate(lengths):
        table[b, : -(-n // P)] = [next(free) for _ in range(-(-n // P))]
    found = [[] for _ in lengths]
    while any(d < n for d, n in zip(done, lengths)):
        steps = [min(n - d, int(random.integers(0, 9))) for d, n in zip(done, lengths)]
        parts = [x[d : d + s] for x, d, s in zip(tokens, done, steps)]
        q, k, v = np.split(np.concatenate(parts), [H, H + G], 1)
        at = [np.arange(d, d + s) for d, s in zip(done, steps)]
        slots = [table[b, p // P] * P + p % P for b, p in enumerate(at)]
        anyop.append_kv(*caches, k, v, np.concatenate(slots).astype(np.int32))
        done = [d + s for d, s in zip(done, steps)]
        cu = places(steps)
        out, _ = anyop.attention_paged(q, *caches, table, np.array(done, np.int32), cu)
        for b in range(12):
            found[b].append(out[cu[b] : cu[b + 1]])
    for x, parts in zip(tokens, found):
        q, k, v = (y.swapaxes(0, 1)[None] for y in np.split(x, [H, H + G], 1))
        whole = anyop.attention(q, k, v, causal=True)[0].swapaxes(0, 1)
        np.testing.assert_allclose(np.concatenate(parts), whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("split_size", [0, 1, 64])
@pytest.mark.parametrize("queries", [[1] * 8, [2, 1, 0, 16, 9, 40, 1, 129]], ids=["one", "some"])
def test_a_sequence_has_the_bits_that_it_has_alone(queries, split_size):
    """Whatever its neighbours, its pages and their order are."""
    given, starts = served(LENGTHS, queries), places(queries)
    options = {"split_size": split_size, "softcap": 3.0, "window_left": 50}
    out, lse = anyop.attention_paged(**given, **options, cu_seqlens_q=starts)
    for b in range(8):
        at = slice(*starts[b : b + 2])
        own = {name: given[name][b : b + 1] for name in ("page_table", "seqlens_k")}
        one, logs = anyop.attention_paged(**given | own | {"q": given["q"][at]}, **options)
        np.testing.assert_array_equal(one, out[at])
        np.testing.assert_array_equal(logs, lse[at])


def test_queries_that_see_nothing():
    """A sink has a share of the weights, and no value."""
    given = served((2, 0), (5, 1))
    starts = np.array([1, 5, 5], np.int32)  # one in front, four of the first, one behind
    out, lse = anyop.attention_paged(**given, cu_seqlens_q=starts)
    nothing = np.array([0, 1, 2, 5])
    assert not out[nothing].any() and (lse[nothing] == -np.inf).all()
    assert out[3:5].all() and np.isfinite(lse[3:5]).all()
    sinks = OPTIONS["sinks"]
    out, lse = anyop.attention_paged(**given, cu_seqlens_q=starts, sinks=sinks)
    assert not out[nothing].any()
    np.testing.assert_allclose(lse[nothing], np.broadcast_to(sinks, (4, H)), rtol=1e-6)


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"seqlens_k": [5, 17, 0]}, IndexError, r"seqlens_k\[1\] is 17, expected 0 to 16"),
        ({"seqlens_k": [-1, 3, 0]}, IndexError, r"seqlens_k\[0\] is -1, expected 0 to 16"),
        (
            {"seqlens_k": [9, 3, 0]},
            IndexError,
            r"page_table\[0, 1\] is 6, expected 0 <= page < 6",
        ),
        (
            {"seqlens_k": [5, 3, 1]},
            IndexError,
            r"page_table\[2, 0\] is -3, expected 0 <= page < 6",
        ),
        ({"cu_seqlens_q": [0, 2, 1, 3]}, IndexError, r"cu_seqlens_q\[2\] is 1, expected 2 to 3"),
        ({"cu_seqlens_q": [-1, 1, 2, 3]}, IndexError, r"cu_seqlens_q\[0\] is -1, expected 0 to 3"),
        ({"cu_seqlens_q": [0, 1, 2, 4]}, IndexError, r"cu_seqlens_q\[3\] is 4, expected 2 to 3"),
        ({"cu_seqlens_q": [0, 3]}, ValueError, r"cu_seqlens_q has shape \(2\), expected \(B\+1\)"),
        ({"split_size": -1}, ValueError, "expected 0 <= split_size"),
        ({"window_left": -2}, ValueError, "expected -1 <= window_left"),
        ({"softcap": float("nan")}, ValueError, "softcap is nan, expected a finite number"),
        ({"softcap": -1.0}, ValueError, "softcap is -1, expected a finite number"),
        ({"q": (4, 4, 8)}, ValueError, "q has 4 tokens, expected a multiple of the 3 sequences"),
        ({"q": (3, 5, 8)}, ValueError, "H % G == 0"),
    ],
    ids=str,
)
def test_bad_input(change, error, message):
    """Nothing is written."""
    cache = np.ones((6, 8, 2, 8), np.float32)
    table = np.array([[5, 6], [2, 0], [-3, 7]], np.int32)
    good = (np.ones((3, 4, 8), np.float32), cache, cache, table, np.array([5, 16, 0], np.int32))
    change = {k: np.array(v, np.int32) if isinstance(v, list) else v for k, v in change.items()}
    if "q" in change:
        change["q"] = np.ones(change["q"], np.float32)
    given = dict(zip(NAMES, good)) | change
    out = np.full_like(given["q"], 7)
    with pytest.raises(error, match=message):
        anyop.attention_paged(**given, out=out)
    assert (out == 7).all()


def test_queries_of_no_sequences():
    cache, none = np.ones((6, 8, 2, 8), np.float32), np.zeros(0, np.int32)
    table = np.zeros((0, 4), np.int32)
    with pytest.raises(ValueError, match="q has 2 tokens, expected a multiple of the 0 sequences"):
        anyop.attention_paged(np.ones((2, 4, 8), np.float32), cache, cache, table, none)
    starts = np.array([1], np.int32)
    out, _ = anyop.attention_paged(
        np.ones((2, 4, 8), np.float32), cache, cache, table, none, starts
    )
    assert not out.any()


def test_more_places_than_a_number_holds():
    """Of pages without features."""
    wide, table = np.ones((1, 2**58, 2, 0), np.float32), np.zeros((1, 32), np.int32)
    q, lengths = np.ones((1, 2, 0), np.float32), np.array([40], np.int32)
    _, lse = anyop.attention_paged(q, wide, wide, table, lengths)
    np.testing.assert_allclose(lse, np.log(40), rtol=1e-6)
