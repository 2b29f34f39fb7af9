# SPDX-License-Identifier: Apache-2.0
"""moe_route in float64, by sorting; its ties, its groups, and the gradient by slopes."""

import anyop
import numpy as np
import pytest


def _softmax(x):
    with np.errstate(all="ignore"):
        powers = np.exp(x - np.fmax.reduce(x, -1, keepdims=True, initial=-np.inf))
        return powers / powers.sum(-1, keepdims=True)


def _sigmoid(x):
    with np.errstate(all="ignore"):
        return 1 / (1 + np.exp(-x))


SCORES = {"softmax": _softmax, "sigmoid": _sigmoid, "topk_softmax": lambda x: x}


def _first(keys, k):
    return np.argsort(-keys, -1, kind="stable")[..., :k]


def reference(logits, bias, top_k, groups, top_groups, score, renormalize, scale):
    T, E = logits.shape
    keys = logits if bias is None else SCORES[score](logits) + bias
    keys = np.where(np.isnan(keys), -np.inf, keys)
    if top_groups < groups:
        members = -np.sort(-keys.reshape(T, groups, E // groups), -1)
        with np.errstate(all="ignore"):
            of_group = members[..., : 1 if bias is None else 2].sum(-1)
        of_group = np.where(np.isnan(of_group), -np.inf, of_group)
        chosen = np.zeros((T, groups), bool)
        np.put_along_axis(chosen, _first(of_group, top_groups), True, -1)
        closed = np.repeat(~chosen, E // groups, -1)
    else:
        closed = np.zeros((T, E), bool)
    order = np.lexsort((np.broadcast_to(np.arange(E), keys.shape), -keys, closed), -1)
    ids = order[:, :top_k]
    logit = np.take_along_axis(logits, ids, -1)
    if score == "topk_softmax" or (score == "softmax" and renormalize):
        return _softmax(logit) * scale, ids
    weights = np.take_along_axis(SCORES[score](logits), ids, -1)
    if renormalize:
        weights = weights / (weights.sum(-1, keepdims=True) + 1e-20)
    return weights * scale, ids


@pytest.mark.parametrize("score", SCORES)
def test_equal_scores_go_to_the_lower_expert(score):
    logits = np.random.default_rng(1).integers(-2, 3, (64, 256)).astype(np.float32)
    for bias in (None, np.zeros(256, np.float32)):
        _, ids = anyop.moe_route(logits, bias, top_k=32, groups=8, top_groups=4, score=score)
        expected = reference(logits, bias, 32, 8, 4, score, True, 1.0)[1]
        assert (ids == expected).all()


@pytest.mark.parametrize("E", [1, 8, 60, 128, 256, 384, 1024])
def test_sizes_of_models(E):
    logits = np.random.default_rng(E).standard_normal((65, E)).astype(np.float32)
    k = min(E, 8)
    weights, ids = anyop.moe_route(logits, top_k=k, score="sigmoid", scale=2.5)
    expected = reference(logits.astype(float), None, k, 1, 1, "sigmoid", True, 2.5)
    assert (ids == expected[1]).all()
    assert np.abs(weights - expected[0]).max() <= 5e-6 * 2.5


def test_nan_is_chosen_last():
    logits = np.array([[np.nan, 1, -np.inf, 2]], np.float32)
    weights, ids = anyop.moe_route(logits, top_k=4, score="sigmoid", renormalize=False)
    assert ids.tolist() == [[3, 1, 0, 2]]
    assert np.isnan(weights[0]).tolist() == [False, False, True, False]


@pytest.mark.parametrize("wrong", [{"top_k": -1}, {"top_k": 9}, {"groups": 3}, {"groups": 0},
                                   {"groups": 4}, {"score": "other"}, {"top_groups": 2}])  # fmt: skip
def test_bad_sizes_are_refused(wrong):
    with pytest.raises(ValueError, match="moe_route"):
        anyop.moe_route(np.zeros((2, 8), np.float32), **{"top_k": 4, **wrong})
