# SPDX-License-Identifier: Apache-2.0
"""What sorting_test.py runs in a process of its own: python sorting_checks.py LIBRARY OPS."""

from __future__ import annotations

import sys

import anyop
import numpy as np
from anyop import testing


def standard_tests(ops: str) -> int:
    """All standard tests of the schema; how many."""
    calls = 0
    (subject,) = testing.find_subjects(ops)
    for choice in testing.dtype_choices(subject.metadata):
        for case in testing.standard_cases(subject, choice):
            testing.check_case(subject, case)
            calls += 1
    good = testing.Good(subject)
    for refusal in testing.refusals(good):
        testing.check_refusal(good, refusal)
        calls += 1
    return calls


def rows(D: int, dtype: str) -> np.ndarray:
    """Few different values, so that most are equal to others; for floats NaN, infinities and -0 among them."""
    random = np.random.default_rng(D)
    x = random.integers(-5, 6, (9, D)).astype(dtype)
    if x.dtype.kind == "i":
        limits = np.iinfo(dtype)
        x[random.random(x.shape) < 0.1], x[random.random(x.shape) < 0.1] = limits.min, limits.max
        return x
    for value in (np.nan, -np.nan, np.inf, -np.inf, -0.0):
        x[random.random(x.shape) < 0.05] = value
    return x


def as_torch(x: np.ndarray):
    import torch

    if x.dtype.name != "bfloat16":
        return torch.from_numpy(x)
    return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)


def same_as_torch() -> int:
    """The order of torch.sort(stable=True), from NumPy's arrays and from tensors; how many rows."""
    import anyop.torch
    import torch

    count = 0
    for dtype in ("float32", "float16", "bfloat16", "int32"):
        for D in (1, 5, 31, 32, 33, 100, 512, 1024, 3000):
            x = rows(D, testing_dtype(dtype))
            for descending in (False, True):
                tensor = as_torch(x)
                expected = torch.sort(tensor, dim=-1, stable=True, descending=descending).indices
                values, indices = anyop.ops.sorting.bitonic_sort(x, descending)
                np.testing.assert_array_equal(indices, expected.numpy())
                assert values.tobytes() == np.take_along_axis(x, indices, -1).tobytes()
                found = torch.ops.sorting.bitonic_sort(tensor, descending)
                assert torch.equal(found[1], expected)
                count += len(x)
    return count


def testing_dtype(name: str):
    import ml_dtypes

    return ml_dtypes.bfloat16 if name == "bfloat16" else np.dtype(name)


def same_in_jax() -> str:
    """The operator under jit, where JAX is installed."""
    try:
        import jax
    except ImportError:
        return "jax is not installed"
    jax.config.update("jax_enable_x64", True)  # indices are int64
    x = rows(100, np.dtype("float32"))
    expected = anyop.ops.sorting.bitonic_sort(x)
    found = jax.jit(anyop.ops.sorting.bitonic_sort)(x)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(one), other)
    return "jax agrees"


def too_long() -> str:
    """The error of a row that no block holds."""
    try:
        anyop.ops.sorting.bitonic_sort(np.zeros((2, 8193), np.float32))
    except ValueError as error:
        return str(error)
    raise AssertionError("a row of 8,193 elements was sorted")


def main() -> None:
    library, ops = sys.argv[1:]
    assert anyop.load(library) == ["sorting.bitonic_sort"]
    print(standard_tests(ops), "standard tests")
    print(same_as_torch(), "rows as torch")
    print(same_in_jax())
    print(too_long())


if __name__ == "__main__":
    main()
