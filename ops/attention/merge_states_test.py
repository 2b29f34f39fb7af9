# SPDX-License-Identifier: Apache-2.0
"""merge_states in float64; parts of attention joined are attention over all keys."""

import anyop
import numpy as np
import pytest


def reference(outs, lses):
    with np.errstate(all="ignore"):
        lses = np.stack([np.asarray(lse, float) for lse in lses])
        most = np.fmax.reduce(lses, axis=0, initial=-np.inf)
        weights = np.exp(lses - np.where(most == -np.inf, 0, most))
        empty = lses == -np.inf
        weights = np.where(empty, 0, weights)
        total = weights.sum(0)
        parts = np.where(empty[..., None], 0, weights[..., None] * np.stack(outs))
        out = np.where(empty.all(0)[..., None], 0, parts.sum(0) / total[..., None])
        return out, most + np.log(total)


@pytest.mark.parametrize("sinks", [None, np.array([1, -2], np.float32)])
def test_parts_of_the_keys(sinks):
    """A prefix, a part that some queries do not see, and one without keys."""
    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal((1, 2, n, 8)).astype(np.float32) for n in (20, 50, 50))
    whole = {"causal": True, "offset": 20}
    expected = anyop.attention_with_lse(q, k, v, sinks=sinks, **whole)
    parts = [
        anyop.attention_with_lse(q, k[:, :, :10], v[:, :, :10], sinks=sinks, **whole),
        anyop.attention_with_lse(q, k[:, :, 10:], v[:, :, 10:], causal=True, offset=10),
        anyop.attention_with_lse(q, k[:, :, :0], v[:, :, :0]),
    ]
    found = anyop.merge_states([out for out, _ in parts], [lse for _, lse in parts])
    for result, exact in zip(found, expected):
        np.testing.assert_allclose(result, exact, rtol=2e-6, atol=2e-6)


def test_a_part_that_saw_nothing_counts_for_nothing():
    outs = [np.full((2, 3), x, np.float32) for x in (np.nan, 5)]
    lses = [np.array([-np.inf, -np.inf], np.float32), np.array([3, -np.inf], np.float32)]
    out, lse = anyop.merge_states(outs, lses)
    np.testing.assert_array_equal(out, [[5, 5, 5], [0, 0, 0]])
    np.testing.assert_array_equal(lse, [3, -np.inf])


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_parts_are_alike(framework):
    """A part of another dtype or shape is named, from each framework."""
    module = pytest.importorskip(framework, reason=f"{framework} is not installed")
    module = module.numpy if framework == "jax" else module
    half = module.zeros((2, 3), dtype=module.float16)
    x, lse = (module.zeros(shape, dtype=module.float32) for shape in ((2, 3), (2,)))
    with pytest.raises(TypeError, match=r"outs has dtype float16, expected float32 as the others"):
        anyop.merge_states([x, half], [lse, lse])
    with pytest.raises(ValueError, match=r"outs has shape \(2, 2\), expected .*E=3.*element 1"):
        anyop.merge_states([x, x[:, :2]], [lse, lse])
    with pytest.raises(ValueError, match=r"lses has shape \(1\), expected .*element 1"):
        anyop.merge_states([x, x], [lse, lse[:1]])


def test_bad_parts():
    x, lse = np.zeros((2, 3), np.float32), np.zeros(2, np.float32)
    with pytest.raises(ValueError, match="at least one part"):
        anyop.merge_states([], [])
    with pytest.raises(ValueError, match="merge_states"):
        anyop.merge_states([x, x], [lse])
    with pytest.raises(ValueError, match="merge_states"):
        anyop.merge_states([x, x[:, :2].copy()], [lse, lse])
