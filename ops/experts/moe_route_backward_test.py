# SPDX-License-Identifier: Apache-2.0
"""moe_route_backward in float64, and beside slopes of moe_route's reference."""

import sys
from pathlib import Path

import anyop
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))


def reference(grad_weights, logits, weights, ids, score, renormalize, scale):
    T, E = logits.shape
    grad = np.zeros((T, E))
    with np.errstate(all="ignore"):
        dot = (grad_weights * weights).sum(-1, keepdims=True)
        total = weights.sum(-1, keepdims=True)
        of_all, inside = score == "softmax" and not renormalize, (ids >= 0) & (ids < E)
        mean = np.where(total == 0, 0, dot / total)
        if score == "sigmoid" and not renormalize:
            mean = 0.0
        terms = scale * grad_weights if of_all else weights * (grad_weights - mean)
        if score == "sigmoid":
            at = np.take_along_axis(logits, np.where(inside, ids, 0).astype(int), -1)
            terms = terms * (1 / (1 + np.exp(at)))
        rows = np.broadcast_to(np.arange(T)[:, None], ids.shape)
        np.add.at(grad, (rows[inside], ids[inside].astype(int)), terms[inside])
        if of_all:
            powers = np.exp(logits - np.fmax.reduce(logits, -1, keepdims=True, initial=-np.inf))
            grad = powers / powers.sum(-1, keepdims=True) * (grad - dot)
    return grad


@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("score", ["softmax", "sigmoid", "topk_softmax"])
def test_it_is_the_slope_of_moe_route(score, renormalize):
    from moe_route_test import reference as route

    random = np.random.default_rng(3)
    logits, grad = random.standard_normal((7, 24)), random.standard_normal((7, 4))
    call = (None, 4, 4, 2, score, renormalize, 1.5)
    weights, ids = route(logits, *call)
    lower = [a.astype(np.float32) for a in (grad, logits, weights)]
    found = anyop.moe_route_backward(*lower, ids.astype(np.int32), score, renormalize, 1.5)
    for e in range(24):
        step = np.zeros_like(logits)
        step[:, e] = 1e-6
        slope = (route(logits + step, *call)[0] - route(logits - step, *call)[0]) / 2e-6
        assert np.abs((slope * grad).sum(-1) - found[:, e]).max() <= 1e-5
