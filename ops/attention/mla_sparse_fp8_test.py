# SPDX-License-Identifier: Apache-2.0
"""mla_sparse_fp8 in float64 over rows that NumPy reads from their bytes; what nobody lists; wrong places."""

import anyop
import numpy as np
import pytest
from mla_sparse_test import listed
from mla_sparse_test import reference as over_listed


def numbers_of(rows):
    """The 576 numbers of rows of bytes (…, 656), in float64."""
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="float8 in NumPy is ml_dtypes'")
    bytes_of = (np.ascontiguousarray(part) for part in np.split(rows, [512, 528], -1))
    types = ml_dtypes.float8_e4m3fn, np.float32, ml_dtypes.bfloat16
    latent, scales, key = (x.view(t).astype(float) for x, t in zip(bytes_of, types))
    return np.concatenate([latent * np.repeat(scales, 128, -1), key], -1)


def reference(q, cache, indices, scale, lengths, sinks):
    rows = numbers_of(cache)
    return over_listed(q, rows, indices, 512, scale, lengths, sinks)


T, H, N, P, K = 7, 5, 4, 16, 40
NONE = {"scale": None, "lengths": None, "sinks": None}


def chosen(dtype=np.float32):
    """Tokens that append_latent_fp8 wrote; bytes that no token lists, or behind its length, are NaN."""
    random = np.random.default_rng(0)
    latent = random.standard_normal((N * P, 512)) * 10.0 ** random.integers(-3, 1, (N * P, 1))
    rope = random.standard_normal((N * P, 64))
    cache = np.full((N, P, 656), 0xFF, np.uint8)  # NaN in each of the three types
    indices = np.stack([random.permutation(N * P)[:K] for _ in range(T)]).astype(np.int32)
    indices[random.random((T, K)) < 0.2] = -1
    lengths = np.array([0, 1, K, 3, 17, 30, 12], np.int32)
    seen = np.unique(np.concatenate([listed(indices, lengths, t) for t in range(T)]))
    assert len(seen) < N * P
    halves = (x.astype(np.float32)[seen] for x in (latent, rope))
    anyop.append_latent_fp8(cache, *halves, seen.astype(np.int32))
    q = random.standard_normal((T, H, 576)).astype(dtype)
    return {"q": q, "cache": cache, "indices": indices, "lengths": lengths}


@pytest.mark.parametrize("dtype, tolerance", [(np.float32, 2e-5), (np.float16, 1e-3)])
@pytest.mark.parametrize("sinks", [None, np.array([0.5, -np.inf, 3, 0, -2], np.float32)])
def test_as_in_float64_from_the_same_bytes(sinks, dtype, tolerance):
    given, options = chosen(dtype), {"sinks": sinks, "scale": 192**-0.5}
    found = anyop.mla_sparse_fp8(**given, **options)
    for result, exact in zip(found, reference(**NONE | given | options)):
        np.testing.assert_allclose(result, exact, rtol=tolerance, atol=tolerance)
    assert not found[0][0].any()  # a token that sees nothing


def test_as_mla_sparse_over_the_numbers():
    """Bit for bit: each is rounded once."""
    given = chosen()
    with np.errstate(all="ignore"):
        cache = numbers_of(given["cache"]).astype(np.float32)
    expected = anyop.mla_sparse(**given | {"cache": cache})
    for found, right in zip(anyop.mla_sparse_fp8(**given), expected):
        np.testing.assert_array_equal(found, right)


def test_a_token_has_the_bits_that_it_has_alone():
    """Whatever the others list; from rows at odd bytes, too."""
    given = chosen()
    room = np.zeros((N, P + 1, 659), np.uint8)
    room[:, :P, 1:657] = given["cache"]
    out, lse = anyop.mla_sparse_fp8(**given)
    for t in range(T):
        own = {name: given[name][t : t + 1] for name in ("q", "indices", "lengths")}
        one, logs = anyop.mla_sparse_fp8(**given | own | {"cache": room[:, :P, 1:657]})
        np.testing.assert_array_equal(one[0], out[t])
        np.testing.assert_array_equal(logs[0], lse[t])


def test_nan_shows_where_it_is_listed():
    given = chosen()
    row = given["indices"][2][given["indices"][2] >= 0][0]
    given["cache"].reshape(-1, 656)[row, 7] = 0x7F
    _, lse = anyop.mla_sparse_fp8(**given)
    sees = [row in listed(given["indices"], given["lengths"], t) for t in range(T)]
    assert 0 < sum(sees) < T
    np.testing.assert_array_equal(np.isnan(lse).all(1), sees)
    assert not np.isnan(lse[~np.array(sees)]).any()


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"indices": [[0, 64]]}, IndexError, r"indices\[0, 1\] is 64, expected -1 <= index < 64"),
        ({"lengths": [3]}, IndexError, r"lengths\[0\] is 3, expected 0 to 2"),
        ({"q": np.ones((1, 3, 512), np.float32)}, ValueError, "q has shape"),
        ({"cache": np.ones((4, 16, 576), np.uint8)}, ValueError, "cache has shape"),
        ({"cache": np.ones((4, 16, 656), np.int8)}, TypeError, "cache has dtype int8"),
    ],
    ids=lambda x: "-".join(x) if isinstance(x, dict) else "",
)
def test_bad_input(change, error, message):
    """Nothing is written."""
    given = {
        "q": np.ones((1, 3, 576), np.float32),
        "cache": np.zeros((4, 16, 656), np.uint8),
        "indices": np.array([[0, -1]], np.int32),
    }
    change = {k: np.array(v, np.int32) if isinstance(v, list) else v for k, v in change.items()}
    out = np.full((1, 3, 512), 7, np.float32)
    with pytest.raises(error, match=message):
        anyop.mla_sparse_fp8(**given | change, out=out)
    assert (out == 7).all()
