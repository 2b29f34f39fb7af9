# SPDX-License-Identifier: Apache-2.0
"""linear_packed in float64, with more terms and rows than stay in a cache, and what is refused."""

import anyop
import numpy as np
import pytest
from anyop.cases.dtype_choices import numpy_dtype


def reference(x, weight, bias):
    P, J = weight.shape[:2]
    product = x @ weight.transpose(0, 2, 1, 3).reshape(64 * P, 2 * J).T
    return product if bias is None else product + bias


@pytest.mark.parametrize("M,N,K", [(1, 64, 2), (7, 128, 1026), (16, 192, 2050), (300, 128, 100)])
def test_as_linear(M, N, K):
    """Integers make the sums exact in every order: the results are those of linear, bit by bit."""
    generator = np.random.default_rng(M)
    dtype = numpy_dtype("bfloat16")
    x, weight = (generator.integers(-1, 2, sizes).astype(dtype) for sizes in ((M, K), (N, K)))
    bias = generator.integers(-9, 10, N).astype(dtype)
    packed = anyop.pack_weight(weight)
    before = anyop.get_num_threads()
    try:
        for threads in (1, 2, 3):
            anyop.set_num_threads(threads)
            for b in (None, bias):
                found, expected = anyop.linear_packed(x, packed, b), anyop.linear(x, weight, b)
                np.testing.assert_array_equal(found.astype(float), expected.astype(float))
    finally:
        anyop.set_num_threads(before)


def test_what_does_not_fit_is_refused():
    dtype = numpy_dtype("bfloat16")
    weight, x = np.ones((64, 32), dtype), np.ones((3, 32), dtype)
    for wrong in (np.ones((65, 32), dtype), np.ones((64, 33), dtype)):
        with pytest.raises(ValueError, match="pack_weight: weight has shape"):
            anyop.pack_weight(wrong)
    packed = anyop.pack_weight(weight)
    with pytest.raises(ValueError, match="linear_packed: weight has"):
        anyop.linear_packed(x, weight)
    with pytest.raises(ValueError, match="linear: weight has"):
        anyop.linear(x, packed)
    with pytest.raises(ValueError, match="linear_packed"):
        anyop.linear_packed(np.ones((3, 30), dtype), packed)
