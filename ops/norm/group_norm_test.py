# SPDX-License-Identifier: Apache-2.0
"""group_norm in float64; torch's own, groups of one element, far means, the same bits for any number of threads."""

import anyop
import ml_dtypes  # noqa: F401  bfloat16
import numpy as np
import pytest


def reference(x, groups, weight, bias, eps, activation):
    N, C, S = len(x), x.shape[1], x.shape[2:]
    by_group = x.reshape(N, groups, -1)
    with np.errstate(all="ignore"):
        count = max(by_group.shape[-1], 1)
        mean = by_group.sum(-1, keepdims=True) / count
        rstd = 1 / np.sqrt(((by_group - mean) ** 2).sum(-1, keepdims=True) / count + eps)
        z = ((by_group - mean) * rstd).reshape(N, C, -1)
        z = z * (1 if weight is None else weight[:, None]) + (0 if bias is None else bias[:, None])
        z = z.reshape(N, C, *S)
        out = z / (1 + np.exp(-z)) if activation == "silu" else z
    return out, mean[..., 0], rstd[..., 0]


def made(shape, dtype="float32"):
    random = np.random.default_rng(shape[0])
    x = (random.standard_normal(shape) + 3).astype(dtype)
    return x, *(random.standard_normal(shape[1]).astype(dtype) for _ in range(2))


def last(x):
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize(
    ("shape", "groups"), [((2, 40, 13, 17), 4), ((3, 1100, 5), 11), ((1, 6), 6)]
)
def test_both_orders_of_channels(shape, groups, dtype, activation):
    """Several parts of pixels, more than a block of channels."""
    x, weight, bias = made(shape, dtype)
    exact = reference(
        x.astype(float), groups, weight.astype(float), bias.astype(float), 1e-5, activation
    )
    values = {"eps": 1e-5, "activation": activation}
    found = anyop.group_norm(x, groups, weight, bias, **values)
    other = anyop.group_norm_channels_last(last(x), groups, weight, bias, **values)
    unit = {"float32": 2e-6, "bfloat16": 2.0**-8, "float16": 2.0**-11, "float64": 1e-13}[dtype]
    for results in (found, (np.moveaxis(other[0], -1, 1), *other[1:])):
        np.testing.assert_allclose(results[0].astype(float), exact[0], rtol=unit, atol=2 * unit)
        limit = min(unit, 2e-6)
        for one, expected in zip(results[1:], exact[1:], strict=True):
            np.testing.assert_allclose(one, expected, rtol=limit, atol=limit)


def test_a_far_mean_does_not_cancel():
    """Numbers around 1,000: the variance is that of the rounded numbers, to 1e-3."""
    x = (np.random.default_rng(0).standard_normal((2, 8, 3000)) + 1000).astype(np.float32)
    exact = reference(x.astype(float), 2, None, None, 1e-5, "none")
    for found in (anyop.group_norm(x, 2), anyop.group_norm_channels_last(last(x), 2)):
        np.testing.assert_allclose(found[2], exact[2], rtol=1e-4)


@pytest.mark.parametrize("arguments", [(0,), (3,), (-1,)])
def test_groups_divide_the_channels(arguments):
    with pytest.raises(ValueError, match=r"^group_norm: "):
        anyop.group_norm(np.ones((2, 8, 3), np.float32), *arguments)


def test_the_same_bits_for_any_number_of_threads():
    (x, weight, bias), before, found = made((5, 64, 900)), anyop.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            anyop.set_num_threads(threads)
            found.append(
                anyop.group_norm(x, 8, weight, bias)
                + anyop.group_norm_channels_last(last(x), 8, weight, bias)
            )
    finally:
        anyop.set_num_threads(before)
    for results in found[1:]:
        assert [r.tobytes() for r in results] == [r.tobytes() for r in found[0]]


def test_as_torch():
    torch = pytest.importorskip("torch")
    import anyop.torch

    x, weight, bias = map(torch.from_numpy, made((2, 12, 5, 7)))
    theirs = torch.nn.functional.group_norm(x, 3, weight, bias)
    torch.testing.assert_close(anyop.group_norm(x, 3, weight, bias)[0], theirs)
