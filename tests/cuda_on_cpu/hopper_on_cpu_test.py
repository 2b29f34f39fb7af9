# SPDX-License-Identifier: Apache-2.0
"""Kernels for Hopper alone, of attention's family, by fibers: TMA, barriers and wgmma are cuda_on_cpu/hopper.

One of both files, drawn by the commit; both with ANYOP_TEST_FULL=1. Bounds are twice the rounding of values of 16 bits.
"""

from __future__ import annotations

import sys
from pathlib import Path

import anyop
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from drawn import few
from fibers import arrays, compile_kernels, on_fibers, register, remove, same_bits

ml_dtypes = pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy is ml_dtypes'")
HALF = {np.dtype(np.float16): 2.0**-9, np.dtype(ml_dtypes.bfloat16): 2.0**-6}
FILES = {
    "attention": ["attention_with_lse", "attention_varlen_with_lse", "attention_paged"],
    "mla": ["mla_decode", "mla_sparse", "mla_sparse_fp8"],
}
DRAWN = few(sorted(FILES), 1, "hopper on fibers")
pytestmark = pytest.mark.drawn(2, together="hopper on fibers")


@pytest.fixture(scope="module", autouse=True)
def registered(tmp_path_factory):
    names = [name for file in DRAWN for name in FILES[file]]
    library = compile_kernels(tmp_path_factory.mktemp("hopper"), names, "cuda_sm90")
    register(library, names, "cuda_sm90")
    yield
    remove(names)


@pytest.fixture(autouse=True)
def no_other_kernel(monkeypatch):
    monkeypatch.setenv("ANYOP_FALLBACK", "error")


def normal(seed, *shape, dtype=ml_dtypes.bfloat16):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def wide(x):
    return x.astype(np.float32) if x.dtype in HALF else x


def assert_as_on_the_cpu(function, *given, limit=None, **options):
    """As from the same numbers in float32; the same bits twice."""
    found = on_fibers(function)(*given, **options)
    assert same_bits(found, on_fibers(function)(*given, **options))
    exact = function(*map(wide, given), **options)
    for a, b in zip(arrays(found), arrays(exact)):
        a, b = a.astype(float), b.astype(float)
        fine = np.isfinite(b)
        np.testing.assert_array_equal(a[~fine], b[~fine])
        error = np.abs(a[fine] - b[fine]) / (1 + np.abs(b[fine]))
        assert error.max(initial=0) <= (limit or HALF[given[0].dtype]), error.max()
    return found


# B, H, G, S, T, D, E; what bounds the keys.
DENSE = [
    (1, 8, 1, 70, 200, 64, 64, {"causal": True, "window_left": 127, "offset": 130}),
    (2, 4, 1, 130, 131, 64, 40, {"window_left": 60, "window_right": 68, "sinks": True}),
    (1, 4, 1, 10, 10, 48, 64, {"causal": True, "window_left": 3, "offset": 5000}),
    (1, 8, 2, 70, 72, 64, 64, {"causal": True, "window_left": 20, "sinks": True}),
    (1, 2, 1, 200, 260, 64, 64, {"causal": True, "offset": 60}),
    (1, 2, 2, 130, 140, 128, 128, {"window_left": 100, "sinks": True}),
    (1, 1, 1, 65, 129, 192, 128, {"softcap": 2.0}),
    (1, 1, 1, 70, 70, 256, 200, {"causal": True}),
]


@pytest.mark.skipif("attention" not in DRAWN, reason="another commit's draw")
@pytest.mark.parametrize("case", DENSE, ids=lambda case: "x".join(map(str, case[:7])))
def test_dense(case):
    """What no query sees never shows."""
    B, H, G, S, T, D, E, options = case
    if "sinks" in options:
        options = options | {"sinks": normal(3, H, dtype=np.float32)}
    q = normal(0, B, S, H, D).swapaxes(1, 2)
    k, v = normal(1, B, G, T, D), normal(2, B, G, T, E)
    assert_as_on_the_cpu(anyop.attention_with_lse, q, k, v, **options)
    for t in (0, T // 2, T - 1):
        v[0, 0, t, t % E] = np.inf if t % 2 else np.nan
    assert_as_on_the_cpu(anyop.attention_with_lse, q, k, v, **options)


@pytest.mark.skipif("attention" not in DRAWN, reason="another commit's draw")
@pytest.mark.parametrize("window", [127, 300])
def test_packed(window):
    """Each sequence as alone, bit for bit; tokens behind the last are NaN, and none of a sequence."""
    S, T, H, G = [0, 70, 3, 129, 0, 64], [5, 150, 3, 0, 7, 100], 8, 2
    cu_q, cu_k = (np.cumsum([0, *n]).astype(np.int32) for n in (S, T))
    q = normal(0, cu_q[-1] + 9, H, 64)
    k, v = (normal(seed, cu_k[-1] + 5, G, 64) for seed in (1, 2))
    k[cu_k[-1] :] = v[cu_k[-1] :] = np.nan
    options = {"causal": True, "window_left": window}
    out, lse = assert_as_on_the_cpu(anyop.attention_varlen_with_lse, q, k, v, cu_q, cu_k, **options)
    for i in (1, 5):
        mine, keys = slice(cu_q[i], cu_q[i + 1]), slice(cu_k[i], cu_k[i + 1])
        heads = (x.swapaxes(0, 1)[None] for x in (q[mine], k[keys], v[keys]))
        alone = on_fibers(anyop.attention_with_lse)(*heads, offset=T[i] - S[i], **options)
        np.testing.assert_array_equal(out[mine].swapaxes(0, 1), alone[0][0])
        np.testing.assert_array_equal(lse[mine].T, alone[1][0])
    cu_q[2] = 1000
    found = on_fibers(anyop.attention_varlen_with_lse)(q, k, v, cu_q, cu_k, **options)
    assert np.isnan(found[0].astype(float)).all()


def paged(lengths, P, *widths):
    """Caches and a table; NaN behind the ends of sequences and in pages that nobody has."""
    counts = [-(-n // P) for n in lengths]
    pages, random = sum(counts) + 2, np.random.default_rng(0)
    order, table = random.permutation(pages), np.full((len(lengths), max(counts) + 1), 2**30)
    caches = [normal(i, pages, P, *width) for i, width in enumerate(widths)]
    for cache in caches:
        cache[order[sum(counts) :]] = np.nan
    for b, (n, count) in enumerate(zip(lengths, counts)):
        table[b, :count], order = order[:count], order[count:]
        for cache in caches:
            if n % P:
                cache[table[b, count - 1], n % P :] = np.nan
    return (*caches, table.astype(np.int32), np.array(lengths, np.int32))


# Queries of each, H, G, D, E, P: decoding, drafts, chunks.
PAGED = [
    (1, 8, 1, 128, 128, 16, {}), (2, 8, 2, 64, 40, 24, {"window_left": 100, "sinks": True}),
    (1, 6, 2, 64, 64, 32, {"window_left": 150, "sinks": True}), (1, 10, 5, 128, 128, 64, {"softcap": 1.5}),
    (1, 32, 8, 128, 96, 64, {"softcap": 1.5}), (70, 2, 1, 128, 128, 8, {}), (70, 4, 1, 64, 64, 16, {"window_left": 20}),
]  # fmt: skip


@pytest.mark.skipif("attention" not in DRAWN, reason="another commit's draw")
@pytest.mark.parametrize("case", PAGED, ids=lambda case: "x".join(map(str, case[:6])))
def test_pages(case):
    """A wrong page or length makes its sequence NaN alone."""
    each, H, G, D, E, P, options = case
    if "sinks" in options:
        options = options | {"sinks": normal(5, H, dtype=np.float32)}
    *caches, table, lengths = paged([300, 0, 65, 64], P, (G, D), (G, E))
    q = normal(4, 4 * each, H, D)
    run = on_fibers(anyop.attention_paged)
    right = assert_as_on_the_cpu(anyop.attention_paged, q, *caches, table, lengths, **options)
    table[2, 64 // P] = 10**6
    found = run(q, *caches, table, lengths, **options)
    table[2, 64 // P], lengths[2] = 0, -1
    for out, lse in (found, run(q, *caches, table, lengths, **options)):
        assert np.isnan(out[3 * each - 1].astype(float)).all() and np.isnan(lse[3 * each - 1]).all()
        for others in (slice(2 * each), slice(3 * each, None)):
            np.testing.assert_array_equal(out[others], right[0][others])


@pytest.mark.skipif("mla" not in DRAWN, reason="another commit's draw")
@pytest.mark.parametrize("P, W, each, H", [(64, 576, 1, 16), (16, 512, 2, 40), (1, 576, 1, 70)])
def test_latent_pages(P, W, each, H):
    cache, table, lengths = paged([150, 0, 64], P, (W,))
    q = normal(4, 3, each, H, W)
    assert_as_on_the_cpu(anyop.mla_decode, q, cache, table, lengths, scale=0.05)


@pytest.mark.skipif("mla" not in DRAWN, reason="another commit's draw")
@pytest.mark.parametrize("T, H, K", [(2, 16, 70), (3, 100, 200)])
def test_latent_lists(T, H, K):
    """Rows of floats and of bytes; none in places, and a length of each token."""
    random, (N, P) = np.random.default_rng(0), (20, 16)
    latent, rope = normal(1, N * P, 512), normal(2, N * P, 64)
    indices = random.integers(0, N * P, (T, K)).astype(np.int32)
    indices[random.random((T, K)) < 0.1] = -1
    options = {"scale": 0.05, "lengths": random.integers(0, K + 1, T).astype(np.int32)}
    options["sinks"] = normal(3, H, dtype=np.float32)
    q, rows = normal(4, T, H, 576), np.concatenate([latent, rope], 1).reshape(N, P, 576)
    assert_as_on_the_cpu(anyop.mla_sparse, q, rows, indices, **options)
    packed = np.zeros((N, P, 656), np.uint8)
    anyop.append_latent_fp8(packed, latent, rope, np.arange(N * P, dtype=np.int32))
    # Keys and values are rounded to 16 bits behind their scale: so are those of mla_sparse here.
    assert_as_on_the_cpu(anyop.mla_sparse_fp8, q, packed, indices, limit=2.0**-5, **options)
