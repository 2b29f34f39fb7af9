# SPDX-License-Identifier: Apache-2.0
"""The operators without a GPU: their references against float64 NumPy, and what is said where FlashInfer is missing."""

from __future__ import annotations

import sys
from pathlib import Path

import anyop
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
HERE = Path(__file__).parent


@pytest.fixture(scope="module", autouse=True)
def fi():
    try:
        anyop.load(anyop.build(HERE / "ops", name="fi", backends=["cpu"]))
    except anyop.MissingToolError as error:
        pytest.skip(str(error))
    return anyop.ops.fi


def normal(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def attention(q, k, v, scale):
    """Out and the logarithm of the sum in base 2, float64."""
    times = q.shape[0] // k.shape[1]
    scores = scale * np.einsum("hd,thd->ht", q.astype(float), k.repeat(times, 1).astype(float))
    weights = np.exp(scores - scores.max(1, keepdims=True))
    lse = np.log2(weights.sum(1)) + scores.max(1) / np.log(2)
    out = np.einsum("ht,thd->hd", weights / weights.sum(1, keepdims=True), v.repeat(times, 1))
    return out, lse


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("interleave", [False, True])
def test_rope(fi, interleave):
    q, k, positions = normal(5, 4, 16), normal(5, 2, 16), np.array([0, 1, 7, 1000, 3], np.int32)
    found = fi.rope(q, k, positions, 8, interleave, 2.0, 100.0)
    angles = positions[:, None, None] / 2.0 * 100.0 ** -(np.arange(0, 8, 2) / 8)
    for x, y in zip((q, k), found):
        first, second = (x[..., 0:8:2], x[..., 1:8:2]) if interleave else (x[..., :4], x[..., 4:8])
        # A pair is a complex number, and its angle is added.
        turned = (first + 1j * second) * np.exp(1j * angles)
        parts = (y[..., 0:8:2], y[..., 1:8:2]) if interleave else (y[..., :4], y[..., 4:8])
        close(parts[0], turned.real)
        close(parts[1], turned.imag)
        np.testing.assert_array_equal(y[..., 8:], x[..., 8:])


def test_fused_add_rms_norm(fi):
    x, residual, weight = normal(2, 3, 8), normal(2, 3, 8) + 1, normal(8)
    total = x.astype(float) + residual
    fi.fused_add_rms_norm(x, residual, weight, 1e-3)
    close(residual, total)
    close(x, total / np.sqrt((total**2).mean(-1, keepdims=True) + 1e-3) * weight)


def test_decode(fi):
    q, k, v = normal(6, 8), normal(9, 2, 8), normal(9, 2, 8) + 1
    out, lse = fi.decode(q, k, v, 0.3)
    expected = attention(q, k, v, 0.3)
    close(out, expected[0])
    close(lse, expected[1])


def test_batch_decode(fi):
    q, caches = normal(3, 4, 8), [normal(7, 4, 2, 8), normal(7, 4, 2, 8) + 1]
    pages, last = [[2], [5, 0], [6, 1, 3]], [3, 4, 1]
    ends = np.cumsum([0, *map(len, pages)]).astype(np.int32)
    order = np.concatenate(pages).astype(np.int32)
    plan = np.zeros(0, np.uint8), [], 0
    found = fi.batch_decode(q, *caches, ends, order, np.array(last, np.int32), *plan, 0.3)
    for b in range(3):
        tokens = 4 * (len(pages[b]) - 1) + last[b]
        k, v = (cache[pages[b]].reshape(-1, 2, 8)[:tokens] for cache in caches)
        for result, expected in zip(found, attention(q[b], k, v, 0.3)):
            close(result[b], expected)


def test_sampling(fi):
    probs = np.array([[0.4, 0.05, 0.3, 0.2, 0.05]], np.float32).repeat(20_000, 0)
    for k, p, kept in (
        (5, 1.0, [0, 1, 2, 3, 4]),
        (2, 1.0, [0, 2]),
        (5, 0.6, [0, 2]),
        (1, 0.9, [0]),
    ):
        tokens, valid = fi.sample_top_k_top_p(probs, k, p, 7)
        share = np.bincount(tokens, minlength=5) / len(tokens)
        expected = np.zeros(5)
        expected[kept] = probs[0, kept] / probs[0, kept].sum()
        assert valid.all() and set(np.unique(tokens)) == set(kept)
        # Five standard deviations of a share.
        assert (abs(share - expected) < 5 * np.sqrt(0.25 / len(tokens))).all()


def test_flashinfer_explains_itself(fi, monkeypatch):
    """Every operator has it; on the CPU it is not taken, and its module is not imported."""
    monkeypatch.syspath_prepend(str(HERE))
    import flashinfer_modules

    flashinfer_modules.register()
    for op in (
        "rms_norm",
        "silu_and_mul",
        *(name for name in anyop.list_ops() if name.startswith("fi.")),
    ):
        assert "flashinfer" in anyop.backends(op)
    explained = anyop.explain("rms_norm", normal(2, 8), normal(8))
    reasons = {found["name"]: found["why_not"] for found in explained.candidates}
    assert explained.chosen == "cpu" and "serves cuda" in reasons["flashinfer"]
    assert "flashinfer" not in sys.modules
    anyop.unregister("rms_norm", "flashinfer")
    anyop.unregister("silu_and_mul", "flashinfer")
