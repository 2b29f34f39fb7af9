# SPDX-License-Identifier: Apache-2.0
"""A million draws of each filter on a GPU against the exact distribution (chi-square, p > 1e-6, fixed seeds), verified
chains and trees against the target's, and the CPU's tokens for every vocabulary and batch.
"""

from __future__ import annotations

import sys
from pathlib import Path

import anyop
import numpy as np
import pytest
from anyop.testing.torch_memory import on_device

ROOT = next(folder for folder in Path(__file__).parents if (folder / "ops").is_dir())
sys.path.insert(0, str(ROOT / "ops" / "sampling"))

import on_cuda  # noqa: E402, F401  skips without a device
import sample_test  # noqa: E402
import verify_chain_test  # noqa: E402
import verify_tree_test  # noqa: E402
from draw_reference import assert_drawn, filtered  # noqa: E402

DRAWS = 1_000_000


class OnCuda:
    """anyop, whose operators take NumPy's arrays and run on CUDA."""

    def __getattr__(self, name):
        return on_device(getattr(anyop, name), "cuda")


@pytest.fixture(autouse=True)
def as_on_the_cpu(monkeypatch):
    """The tests of ops/sampling, with as many draws as in their long form."""
    monkeypatch.setenv("ANYOP_TEST_FULL", "1")
    for module in (sample_test, verify_chain_test, verify_tree_test):
        monkeypatch.setattr(module, "anyop", OnCuda())


@pytest.mark.parametrize("name", sample_test.FILTERS)
def test_sample(name):
    sample_test.test_distribution(name)


@pytest.mark.parametrize(
    "name", [n for n in sample_test.FILTERS if "temperature" not in sample_test.FILTERS[n]]
)
def test_sample_probs(name):
    given = sample_test.FILTERS[name]
    probs = np.random.default_rng(2).dirichlet(np.full(111, 0.3)).astype(np.float32)
    seed, rows = np.full(DRAWS, 11), np.zeros(DRAWS, np.int32)
    tokens = OnCuda().sample_probs(probs[None], seed, np.arange(DRAWS), rows=rows, **given)
    names = {"top_k": "k"}
    kept = {names.get(key, key): value for key, value in given.items()}
    assert_drawn(tokens, filtered(probs.astype(float), is_probs=True, **kept))


@pytest.mark.parametrize("module", [verify_chain_test, verify_tree_test])
def test_verify(module):
    module.test_tokens_have_the_distribution_of_the_target()


@pytest.mark.parametrize("V", [1, 111, 32_000, 128_256, 262_144])
def test_a_row_alone_and_in_a_batch(V):
    sample_test.test_a_row_alone_and_in_a_batch(V)


@pytest.mark.parametrize("B", [1, 99, 989])
@pytest.mark.parametrize("V", [1, 111, 32_000, 128_256, 262_144])
def test_the_tokens_of_the_cpu(V, B):
    """No sum of these rows ends on a filter's edge by rounding."""
    random = np.random.default_rng(V + B)
    logits = (random.standard_normal((min(B, 16), V)) * 3).astype(np.float32)
    seed, offset = random.integers(-(2**62), 2**62, (2, B))
    given = {
        "temperature": random.uniform(0.1, 2, B).astype(np.float32),
        "top_k": random.integers(0, 200, B).astype(np.int32),
        "top_p": random.uniform(0.3, 1.1, B).astype(np.float32),
        "min_p": random.uniform(0, 0.1, B).astype(np.float32),
        "rows": random.integers(0, len(logits), B).astype(np.int32),
    }
    tokens, logprob = OnCuda().sample(logits, seed, offset, **given)
    expected, expected_logprob = anyop.sample(logits, seed, offset, **given)
    np.testing.assert_array_equal(tokens, expected)
    np.testing.assert_allclose(logprob, expected_logprob, atol=6e-6, rtol=2e-6)
