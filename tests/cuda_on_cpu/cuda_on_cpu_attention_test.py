# SPDX-License-Identifier: Apache-2.0
"""CUDA kernels of attention's family by fibers (cuda_on_cpu_test.py): many tiles, packed sequences, pages, gradients.

Two operators, drawn by the commit, or those of the other file; all with ANYOP_TEST_FULL=1.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import anyop
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from drawn import few
from fibers import OPERATORS, arrays, on_fibers, placed, running, same_bits

pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy is ml_dtypes'")
FAMILY = [name for name, op in OPERATORS.items() if op.path.parent.name == "attention"]
DRAWN = few([name for name in FAMILY if name != "merge_states"], 2, "attention on fibers")
pytestmark = pytest.mark.drawn(2, together="attention on fibers")


@pytest.fixture(scope="module", autouse=True)
def registered(tmp_path_factory):
    with running(tmp_path_factory.mktemp("cuda_on_cpu"), DRAWN):
        yield


ATTENTION = [name for name in ("attention", "attention_with_lse") if name in DRAWN]
# H, G, S, T, D, E: tiles with and without a rest, one query, features of each kind of tile.
HEADS = [
    (2, 1, 130, 200, 64, 64), (4, 2, 1, 300, 128, 100), (1, 1, 70, 129, 200, 13), (2, 2, 257, 65, 17, 40),
]  # fmt: skip
BOUNDS = [
    {}, {"causal": True}, {"window_left": 20, "window_right": 3, "softcap": 3.0},
    {"causal": True, "offset": -60, "sinks": np.array([0.5, -1, 2, 0], np.float32)},
    {"window_left": 0, "alibi_slopes": np.array([0.1, 0, 0.5, 1], np.float32)},
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", ATTENTION)
def test_attention_of_many_tiles(name, dtype):
    """As on the CPU; NaN and infinities that a query does not see do not show; the same bits in any place."""
    function, random = getattr(anyop, name), np.random.default_rng(0)
    limit = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 1e-5}[dtype]
    for H, G, S, T, D, E in few(HEADS, 1, f"{name} {dtype}"):
        q, k, v = (
            random.standard_normal((1, heads, rows, width)).astype(dtype)
            for heads, rows, width in ((H, S, D), (G, T, D), (G, T, E))
        )
        for options in few(BOUNDS, 2, f"{name} {dtype} {S}"):
            options = {key: x[:H] if np.ndim(x) else x for key, x in options.items()}
            expected, found = (run(q, k, v, **options) for run in (function, on_fibers(function)))
            for a, b in zip(arrays(expected), arrays(found)):
                finite = np.isfinite(a.astype(float))
                np.testing.assert_array_equal(b.astype(float)[~finite], a.astype(float)[~finite])
                np.testing.assert_allclose(
                    b.astype(float)[finite], a.astype(float)[finite], rtol=limit, atol=limit
                )
            placed_ones = (placed(x, "odd") for x in (q, k, v))
            assert same_bits(found, on_fibers(function)(*placed_ones, **options))
        options = {"window_left": 1, "causal": True, "offset": 5}
        clean = arrays(on_fibers(function)(q, k, v, **options))[0].astype(float)
        place = T // 2
        k[:, :, place], v[:, :, place, 1], v[:, :, place, 0] = np.nan, np.inf, np.nan
        bad = arrays(on_fibers(function)(q, k, v, **options))[0].astype(float)
        outside = [s for s in range(S) if not s + 4 <= place <= s + 5]
        np.testing.assert_array_equal(bad[:, :, outside], clean[:, :, outside])


VARLEN = [name for name in ("attention_varlen", "attention_varlen_with_lse") if name in DRAWN]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", VARLEN)
def test_packed_sequences(name, dtype):
    """Bit for bit as a sequence alone, and as on the CPU; wrong places give NaN and nothing is read by them."""
    function, random = getattr(anyop, name), np.random.default_rng(0)
    lengths = np.array([[5, 140, 0, 1, 0, 20], [9, 70, 30, 0, 0, 64]])
    cu_q, cu_k = (np.cumsum([2, *row], dtype=np.int32) for row in lengths)
    q, k, v = (
        random.standard_normal((rows, heads, 24)).astype(dtype)
        for rows, heads in ((cu_q[-1] + 3, 2), (cu_k[-1], 1), (cu_k[-1], 1))
    )
    there, options = on_fibers(function), {"causal": True, "window_left": 50}
    found = arrays(there(q, k, v, cu_q, cu_k, **options))
    limit = {"float16": 2e-3, "float32": 1e-5}[dtype]
    for a, b in zip(arrays(function(q, k, v, cu_q, cu_k, **options)), found):
        np.testing.assert_allclose(b.astype(float), a.astype(float), rtol=limit, atol=limit)
    for i in range(6):
        s, t = slice(*cu_q[i : i + 2]), slice(*cu_k[i : i + 2])
        ends = [np.array([0, x.stop - x.start], np.int32) for x in (s, t)]
        one = arrays(there(q[s], k[t], v[t], *ends, **options))
        assert same_bits(tuple(x[s] for x in found), tuple(one))
    far = 2**31 - 1
    for ends in ([0, 9, 3, 20], [-far, 5, 7, 9], [0, 4, far, far], [5, 5, 5, 400]):
        places = np.array(ends, np.int32)
        for given in ((places, cu_k[:4]), (cu_q[:4], places)):
            for x in arrays(there(q, k, v, *given)):
                assert np.isnan(x.astype(float)).all()


def gradients_of_many_tiles():
    """As on the CPU; no NaN of a key that a query does not see; the same bits whatever else is wanted."""
    random, there = np.random.default_rng(0), on_fibers(anyop.attention_backward)
    for (H, G, S, T, D, E), options in few(list(itertools.product(HEADS, BOUNDS)), 3, "gradients"):
        dtype, limit = ("float32", 2e-5) if D == 17 else ("float16", 4e-3)
        options = {key: x[:H] if np.ndim(x) else x for key, x in options.items()}
        q, k, v, grad = (
            random.standard_normal((1, heads, rows, width)).astype(dtype)
            for heads, rows, width in ((H, S, D), (G, T, D), (G, T, E), (H, S, E))
        )
        given = (grad, q, k, v, *anyop.attention_with_lse(q, k, v, **options))
        grad_lse = random.standard_normal((1, H, S)).astype(np.float32)
        expected = anyop.attention_backward(*given, grad_lse, **options)
        found = there(*given, grad_lse, **options)
        for a, b in zip(expected, found):
            a, b = (x.astype(float) for x in (a, b))
            np.testing.assert_allclose(b, a, rtol=limit, atol=limit * (1 + np.abs(a).max()))
        for wanted in ({"grad_k": False, "grad_v": False}, {"grad_q": False, "grad_sinks": False}):
            some = there(*given, grad_lse, **options, **wanted)
            assert same_bits(*zip(*((a, b) for a, b in zip(some, found) if a is not None)))
    options = {"window_left": 1, "causal": True, "offset": 5}
    q, k, v, grad = (random.standard_normal((1, 1, 150, 24)).astype("float16") for _ in range(4))
    given = (grad, q, k, v, *anyop.attention_with_lse(q, k, v, **options))
    clean = there(*given, **options)
    k[:, :, 70], v[:, :, 70, 1] = np.nan, np.inf
    bad, outside = there(*given, **options), [s for s in range(150) if not s + 4 <= 70 <= s + 5]
    assert same_bits(bad[0][:, :, outside], clean[0][:, :, outside])
    assert same_bits(np.delete(bad[1], 70, 2)[:, :, :60], np.delete(clean[1], 70, 2)[:, :, :60])


def gradients_of_packed_sequences():
    """Bit for bit as those of a sequence alone; tokens of none have 0; wrong places give NaN."""
    random, there = np.random.default_rng(0), on_fibers(anyop.attention_varlen_backward)
    lengths = np.array([[5, 90, 0, 1, 20], [9, 70, 30, 0, 64]])
    cu_q, cu_k = (np.cumsum([2, *row], dtype=np.int32) for row in lengths)
    for dtype, limit in (("float16", 4e-3), ("float32", 2e-5)):
        q, grad, k, v = (
            random.standard_normal((rows, heads, 24)).astype(dtype)
            for rows, heads in (
                (cu_q[-1] + 3, 2),
                (cu_q[-1] + 3, 2),
                (cu_k[-1] + 2, 1),
                (cu_k[-1] + 2, 1),
            )
        )
        options = {"causal": True, "window_left": 50, "softcap": 2.0}
        saved = anyop.attention_varlen_with_lse(q, k, v, cu_q, cu_k, **options)
        found = there(grad, q, k, v, *saved, cu_q, cu_k, **options)
        exact = anyop.attention_varlen_backward(grad, q, k, v, *saved, cu_q, cu_k, **options)
        for a, b in zip(exact, found):
            np.testing.assert_allclose(b.astype(float), a.astype(float), rtol=limit, atol=2 * limit)
        for i in range(5):
            s, t = slice(*cu_q[i : i + 2]), slice(*cu_k[i : i + 2])
            ends = [np.array([0, x.stop - x.start], np.int32) for x in (s, t)]
            one = (grad[s], q[s], k[t], v[t], *(x[s] for x in saved), *ends)
            alone = there(*one, **options)
            assert same_bits(alone[:3], (found[0][s], found[1][t], found[2][t]))
        assert not found[0][:2].any() and not found[1][-2:].any() and not found[2][:2].any()
        wrong = np.array([0, 9, 3, 20, 20, 20], np.int32)
        for given in ((wrong, cu_k), (cu_q, wrong)):
            assert all(
                np.isnan(x).all() for x in there(grad, q, k, v, *saved, *given, **options)[:3]
            )


if "attention_backward" in DRAWN:
    test_gradients_of_many_tiles = gradients_of_many_tiles
if "attention_varlen_backward" in DRAWN:
    test_gradients_of_packed_sequences = gradients_of_packed_sequences


def pages_of_many_tiles():
    """As on the CPU: queries shared by warps and not, parts joined, any pages; a wrong page is its sequence's."""
    random, there = np.random.default_rng(0), on_fibers(anyop.attention_paged)
    lengths, H, G, D, E = np.array([300, 0, 65, 7], np.int32), 8, 2, 72, 40
    for P, counts, dtype in (
        (1, [1, 1, 1, 1], "float16"),
        (24, [40, 2, 65, 0], "float16"),
        (16, [3, 1, 0, 2], "float32"),
    ):
        N, M = -(-int(lengths.sum()) // P) + 4, -(-300 // P)
        k, v = (
            random.standard_normal((N, G, P, width)).astype(dtype).swapaxes(1, 2)
            for width in (D, E)
        )
        table = random.permutation(4 * M).reshape(4, M).astype(np.int32) % N
        q = random.standard_normal((sum(counts), H, D)).astype(dtype)
        starts = np.cumsum([0, *counts], dtype=np.int32)
        options = {
            "window_left": 200,
            "softcap": 2.0,
            "sinks": random.standard_normal(H).astype(np.float32),
        }
        given, limit = (q, k, v, table, lengths, starts), {"float16": 2e-3, "float32": 1e-5}[dtype]
        for named in ({}, {"causal": False}, options):
            expected = anyop.attention_paged(*given, **named)
            for split_size in (0, 64, 128):
                found = there(*given, **named, split_size=split_size)
                for a, b in zip(expected, found):
                    np.testing.assert_allclose(
                        b.astype(float), a.astype(float), rtol=limit, atol=limit
                    )
        found, alone = there(*given), table.copy()
        alone[0, 1] = N  # is read by the first sequence alone
        for x, y in zip(there(q, k, v, alone, lengths, starts), found):
            assert np.isnan(x[: starts[1]]).all() and same_bits(x[starts[1] :], y[starts[1] :])


def pages_of_few_rows():
    """As on the CPU, from the same numbers: decoding by warps of their own, in parts; what is behind an end is NaN."""
    import ml_dtypes

    random, there = np.random.default_rng(0), on_fibers(anyop.attention_paged)
    lengths = np.array([700, 0, 65, 1], np.int32)
    for G, group, D, P, dtype, cached, options in (
        (2, 4, 128, 16, "bfloat16", "bfloat16", {"softcap": 2.0}),
        (1, 8, 64, 64, "float16", "float16", {"window_left": 300}),
        (2, 3, 128, 32, "bfloat16", ml_dtypes.float8_e4m3fn, {"window_left": 90}),
        (3, 1, 128, 16, "float16", ml_dtypes.float8_e4m3fn, {}),
    ):
        N, M = 60, -(-700 // P)
        caches = [random.standard_normal((N, G, P, D)).astype(cached).swapaxes(1, 2) for _ in "kv"]
        table = random.permutation(max(N, M * 4)).astype(np.int32)[: 4 * M].reshape(4, M) % (N - 1)
        table[:, 0] = [N - 1, 0, 1, 2]
        table[2, 1 : -(-65 // P)] = 3
        for cache in caches:  # behind the end of the third sequence, whose last page is its own
            last = table[2, 64 // P]
            table[[0, 1, 3]] = np.where(table[[0, 1, 3]] == last, 4, table[[0, 1, 3]])
            cache[last, 65 % P :] = np.nan
        q = (random.standard_normal((4, G * group, D)) * 3).astype(dtype)
        scales = {}
        if cached != dtype:
            scales = {
                "k_scale": np.full(1, 0.5, np.float32),
                "v_scale": np.arange(1, G + 1, dtype=np.float32),
            }
        sinks = random.standard_normal(G * group).astype(np.float32)
        for named in (scales, scales | options | {"sinks": sinks}):
            wide = (x.astype(np.float32) for x in (q, *caches))
            exact, found = (
                anyop.attention_paged(*wide, table, lengths, **named),
                there(q, *caches, table, lengths, **named),
            )
            assert same_bits(found, there(q, *caches, table, lengths, **named))
            for a, b in zip(exact, found):
                np.testing.assert_allclose(
                    b.astype(float), a.astype(float), rtol=1.6e-2, atol=1.6e-2
                )
        wrong, lost = table.copy(), lengths.copy()
        wrong[0, 1], lost[3] = N, 1000
        found, (out, lse) = there(q, *caches, table, lengths), there(q, *caches, wrong, lost)
        for b, same in enumerate((False, True, True, False)):
            assert same_bits(out[b], found[0][b]) if same else np.isnan(out[b].astype(float)).all()
            assert same_bits(lse[b], found[1][b]) if same else np.isnan(lse[b]).all()


if "attention_paged" in DRAWN:
    test_pages_of_few_rows = pages_of_few_rows
    test_pages_of_many_tiles = pages_of_many_tiles


def latent_rows_of_many_tiles():
    """As on the CPU: tiles of 16 and of 64 rows, parts joined; no NaN that a query does not see; wrong pages."""
    random, there = np.random.default_rng(0), on_fibers(anyop.mla_decode)
    lengths, W, R, P, M = np.array([300, 0, 40], np.int32), 80, 72, 8, 40
    for dtype, limit, S, H in (
        ("float16", 2e-3, 1, 5),
        ("bfloat16", 1.6e-2, 2, 40),
        ("float32", 1e-5, 2, 3),
    ):
        cache = random.standard_normal((130, P, W)).astype(dtype)
        table = random.permutation(130)[: 3 * M].reshape(3, M).astype(np.int32)
        q = random.standard_normal((3, S, H, W)).astype(dtype)
        for causal in (True, False):
            expected = anyop.mla_decode(q, cache, table, lengths, R, causal=causal)
            for split_size in (0, 64):
                found = there(q, cache, table, lengths, R, causal=causal, split_size=split_size)
                for a, b in zip(expected, found):
                    a, b = (x.astype(float) for x in (a, b))
                    np.testing.assert_allclose(b, a, rtol=limit, atol=limit)
        found = there(q, cache, table, lengths, R)
        if S == 2:  # the last key is the last query's alone
            cache[table[0, 299 // P], 299 % P, 3] = np.nan
            bad = there(q, cache, table, lengths, R)
            assert same_bits(bad[0][:, 0], found[0][:, 0]) and same_bits(bad[0][1:], found[0][1:])
            assert np.isnan(bad[0][0, 1].astype(float)).all()
        table[0, 20] = 130
        for x, y in zip(there(q, cache, table, lengths, R), found):
            assert np.isnan(x[0].astype(float)).all() and same_bits(x[1:], y[1:])


def listed_rows_of_many_tiles():
    """As on the CPU, from floats and from bytes; a wrong index is its token's."""
    random, there = np.random.default_rng(0), on_fibers(anyop.mla_sparse)
    indices = random.integers(-1, 130 * 8, (3, 200)).astype(np.int32)
    lengths, sinks = np.array([200, 0, 70], np.int32), random.standard_normal(40).astype(np.float32)
    rows = random.standard_normal((130, 8, 576)).astype(np.float32)
    bytes_of = np.zeros((130, 8, 656), np.uint8)
    slots = np.arange(130 * 8, dtype=np.int32)
    on_fibers(anyop.append_latent_fp8)(
        bytes_of, rows[..., :512].reshape(-1, 512), rows[..., 512:].reshape(-1, 64), slots
    )
    for dtype, limit, H in (("float16", 2e-3, 5), ("bfloat16", 1.6e-2, 40), ("float32", 2e-5, 3)):
        q = (0.2 * random.standard_normal((3, H, 576))).astype(dtype)
        named = {"lengths": lengths, "sinks": sinks[:H]}
        listed = (anyop.mla_sparse, (q, rows.astype(dtype), indices))
        packed = (anyop.mla_sparse_fp8, (q, bytes_of, indices))
        for function, given in (listed, packed):
            found = on_fibers(function)(*given, **named)
            for a, b in zip(function(*given, **named), found):
                a, b = (x.astype(float) for x in (a, b))
                np.testing.assert_allclose(b, a, rtol=limit, atol=limit)
        wrong = indices.copy()
        wrong[0, 7], wrong[1, 0] = 130 * 8, -2  # the second token has no index that counts
        bad = there(q, listed[1][1], wrong, **named)
        assert np.isnan(bad[0][0].astype(float)).all()
        right = there(*listed[1], **named)
        assert same_bits(bad[0][1:], right[0][1:])


if "mla_decode" in DRAWN:
    test_latent_rows_of_many_tiles = latent_rows_of_many_tiles
if "mla_sparse" in DRAWN:
    test_listed_rows_of_many_tiles = listed_rows_of_many_tiles


def slots_outside_write_nothing():
    rows = np.ones((5, 1, 8), np.float32)
    for slots in ([0, 8, 3, -2, -1], [0, 2**31 - 1, 3, -(2**31), 8]):
        caches = [np.zeros((2, 4, 1, 8), np.float32) for _ in range(2)]
        on_fibers(anyop.append_kv)(*caches, rows, rows, np.array(slots, np.int32))
        for cache in caches:
            assert cache.reshape(8, 8).any(1).tolist() == [True, False, False, True] + 4 * [False]


if "append_kv" in DRAWN:
    test_slots_outside_write_nothing = slots_outside_write_nothing
