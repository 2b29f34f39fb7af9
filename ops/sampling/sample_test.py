# SPDX-License-Identifier: Apache-2.0
"""sample: the draws of draw_reference.py, and their distribution."""

import os

import anyop
import numpy as np
import pytest
from draw_reference import assert_drawn, draws, filtered


def reference(logits, seed, offset, temperature, top_k, top_p, min_p, rows, top_k_first):
    return draws(
        logits, seed, offset, temperature, top_k, top_p, min_p, rows, top_k_first, is_probs=False
    )


FILTERS = {
    "all": {},
    "temperature": {"temperature": 0.6},
    "top_k": {"top_k": 20},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.1},
    "top_k_top_p": {"top_k": 30, "top_p": 0.7},
    "joint": {"top_k": 30, "top_p": 0.7, "top_k_first": False},
    "every": {"temperature": 1.5, "top_k": 40, "top_p": 0.9, "min_p": 0.05},
}


@pytest.mark.parametrize("name", FILTERS)
def test_distribution(name):
    """Many draws of one row against what the filter keeps of it: chi-square, p > 1e-6."""
    B = 1_000_000 if os.environ.get("ANYOP_TEST_FULL") else 40_000
    logits = np.random.default_rng(1).standard_normal(111).astype(np.float32) * 2
    given = {"seed": np.full(B, 7), "offset": np.arange(B), "rows": np.zeros(B, np.int32)}
    tokens, _ = anyop.sample(logits[None], **given, **FILTERS[name])
    names = {"top_k": "k"}
    weights = filtered(
        logits.astype(float), **{names.get(k, k): v for k, v in FILTERS[name].items()}
    )
    assert_drawn(tokens, weights)


SIZES = [1, 111, 32_000, 128_256, 262_144]


@pytest.mark.parametrize("V", SIZES)
def test_a_row_alone_and_in_a_batch(V):
    """Tokens are those of the reference, and do not depend on the rows beside them."""
    random = np.random.default_rng(V)
    B = 99 if V < 1000 else 6
    logits = (random.standard_normal((B, V)) * 3).astype(np.float32)
    seed, offset = random.integers(-(2**62), 2**62, (2, B))
    given = {
        "temperature": random.uniform(0, 2, B).astype(np.float32),
        "top_k": random.integers(0, 100, B).astype(np.int32),
        "top_p": random.uniform(0.5, 1.1, B).astype(np.float32),
        "min_p": random.uniform(0, 0.1, B).astype(np.float32),
    }
    tokens, logprob = anyop.sample(logits, seed, offset, **given)
    wanted = {**dict.fromkeys(["rows", "temperature"]), **given, "top_k_first": True}
    expected = reference(logits.astype(float), seed, offset, **wanted)
    # A sum that ends on a filter's edge by rounding may give another token: one in a million.
    np.testing.assert_array_equal(tokens, expected[0])
    np.testing.assert_allclose(logprob, expected[1], atol=3e-6, rtol=1e-6)
    for b in range(0, B, 5):
        alone = {name: value[b : b + 1] for name, value in given.items()}
        token, _ = anyop.sample(logits[b : b + 1], seed[b : b + 1], offset[b : b + 1], **alone)
        assert token[0] == tokens[b]


def test_the_greatest_and_the_first_of_equals():
    logits = np.zeros((5, 700), np.float32)
    logits[:, 300:] = -1
    logits[1, 250], logits[2, :5] = -0.0, -np.inf
    logits[3] = -np.inf
    logits[3, 699] = -3e38
    logits[4, 600:] = 2
    seed = np.arange(5)
    for given in ({"top_k": 1}, {"temperature": 0}, {"top_p": 0}, {"top_p": -1}, {"min_p": np.inf}):
        tokens, _ = anyop.sample(logits, seed, seed, **given)
        if "min_p" in given:  # all of equals
            assert (logits[np.arange(5), tokens] == logits.max(1)).all()
        else:
            np.testing.assert_array_equal(tokens, [0, 0, 5, 699, 600])
    B = 3000
    seed, rows = np.arange(B), np.zeros(B, np.int32)
    for k in (2, 17, 250, 301):
        tokens, _ = anyop.sample(logits, seed, seed, top_k=k, rows=rows)
        assert tokens.max() < k and tokens.max() >= min(k, 300) - 30


def test_bad_rows_and_bad_parameters_give_no_token():
    bad = np.zeros((4, 33), np.float32)
    bad[0, 4], bad[1], bad[2, 32] = np.nan, -np.inf, np.inf
    seed = np.arange(4)
    tokens, logprob = anyop.sample(bad, seed, seed)
    assert (tokens[:3] == -1).all() and 0 <= tokens[3] < 33
    np.testing.assert_array_equal(np.isnan(logprob), [True] * 3 + [False])
    for name in ("temperature", "top_p", "min_p"):
        for value in (np.nan, -1.0) if name == "temperature" else (np.nan,):
            given = {name: np.array([value, value, value, 0.5], np.float32)}
            tokens, logprob = anyop.sample(np.zeros((4, 33), np.float32), seed, seed, **given)
            assert (tokens[:3] == -1).all() and np.isnan(logprob[:3]).all() and tokens[3] >= 0
    rows = np.array([-1, 4, 2**31 - 1, 3], np.int32)
    tokens, _ = anyop.sample(bad, seed, seed, rows=rows)
    assert (tokens[:3] == -1).all() and tokens[3] >= 0
    with pytest.raises(ValueError, match="seed has not one element for each row"):
        anyop.sample(bad, seed[:2], seed[:2])
