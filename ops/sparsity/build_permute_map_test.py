# SPDX-License-Identifier: Apache-2.0
"""build_permute_map by permuting and sorting; many stripes, ties, bad indices."""

import anyop
import numpy as np
import pytest


def reference(matrix, stripes, permutations):
    found = [_best(matrix, group, permutations) for group in stripes]
    return np.array([f[0] for f in found]), np.array([f[1] for f in found], stripes.dtype)


def _best(matrix, group, permutations):
    columns = (group[:, None] * 4 + np.arange(4)).ravel()
    permuted = np.abs(matrix[:, columns][:, permutations])  # (R, P, 4 W)
    stripes = np.sort(permuted.reshape(*permuted.shape[:2], len(group), 4), -1)
    sums = stripes[..., 2:].sum((-1, -2)).sum(0)
    best = 0
    if not len(sums):
        return 0.0, 0
    for p, one in enumerate(sums):
        best = p if one > sums[best] else best
    with np.errstate(invalid="ignore"):  # infinities
        return sums[best] - sums[0], best


def made(W, dtype=np.int64, P=300, C=48):
    random = np.random.default_rng(W)
    matrix = random.integers(-99, 100, (75, C)).astype(np.float32)
    stripes = np.array([random.permutation(C // 4)[:W] for _ in range(5)], dtype)
    permutations = np.array([np.arange(4 * W), *(random.permutation(4 * W) for _ in range(P - 1))])
    return matrix, stripes, permutations.astype(dtype)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("W", [1, 3, 4, 6])
def test_whole_numbers_are_exact(W, dtype):
    """The first of equal ones is the best: of a single stripe all are equal."""
    inputs = made(W, dtype)
    improvement, best = anyop.build_permute_map(*inputs)
    exact, first = reference(*inputs)
    np.testing.assert_array_equal(best, first)
    np.testing.assert_array_equal(improvement, exact.astype(np.float32))
    assert W > 1 or not best.any()
    for group, one, p in zip(inputs[1], improvement, best, strict=True):
        alone = anyop.check_permutations(inputs[0], group, inputs[2])
        assert (alone[0], alone[1]) == (one, p)


@pytest.mark.parametrize(
    ("name", "place", "value", "limit"),
    [("stripes", (3, 1), 12, 12), ("permutations", (299, 0), -1, 8)],
)
def test_an_index_out_of_range(name, place, value, limit):
    given = dict(zip(("matrix", "stripes", "permutations"), made(2), strict=True))
    given[name][place] = value
    message = rf"{name}\[{place[0]}, {place[1]}\] is {value}, expected 0 <= index < {limit}"
    with pytest.raises(IndexError, match=f"^build_permute_map: {message}$"):
        anyop.build_permute_map(**given)
