# SPDX-License-Identifier: Apache-2.0
"""A Python number beside a tensor takes its dtype, in add and mul, in every framework; so do graphs and gradients."""

from __future__ import annotations

import anyop
import numpy as np
import pytest

# dtype of the tensor, number -> dtype of the result
RESULTS = [
    ("float32", 2, "float32"), ("float32", 2.5, "float32"), ("float32", True, "float32"), ("float16", 2.5, "float16"),
    ("int8", -3, "int8"), ("int8", True, "int8"), ("int8", 2.5, "float32"), ("uint8", 255, "uint8"),
    ("int64", 2**62, "int64"), ("bool", True, "bool"), ("bool", 2, "int64"), ("bool", 0.5, "float32"),
]  # fmt: skip


def value_of(caller, tensor):
    return np.asarray(caller.array(tensor))


@pytest.mark.parametrize(("dtype", "number", "expected"), RESULTS)
def test_the_number_takes_the_dtype(caller, dtype, number, expected):
    if not caller.has_dtype(dtype) or not caller.has_dtype(expected):
        pytest.skip(f"{caller.name} has no {dtype} or {expected} here")
    array = np.arange(3).astype(dtype)
    for function, reference in ((anyop.add, np.add), (anyop.mul, np.multiply)):
        wide = reference(array.astype(expected), np.asarray(number).astype(expected))
        for found in (
            function(caller.tensor(array), number),
            function(number, caller.tensor(array)),
            function(y=number, x=caller.tensor(array)),
        ):
            found = value_of(caller, found)
            assert str(found.dtype) == expected
            np.testing.assert_array_equal(found, wide)


@pytest.mark.parametrize(("dtype", "number"), [("int8", 300), ("uint8", -1), ("int64", 2**63)])
def test_a_number_that_the_dtype_cannot_hold(caller, dtype, number):
    if not caller.has_dtype(dtype):
        pytest.skip(f"{caller.name} has no {dtype} here")
    with pytest.raises(ValueError, match=f"^add: y is {number}, which {dtype} cannot hold"):
        anyop.add(caller.tensor(np.ones(2, dtype)), number)


@pytest.mark.parametrize(
    ("dtype", "number"), [("uint16", 2**16), ("uint32", -1), ("uint64", 2**64)]
)
def test_a_number_that_numpys_dtype_cannot_hold(dtype, number):
    with pytest.raises(ValueError, match=f"^mul: y is .*, which {dtype} cannot hold"):
        anyop.mul(np.ones(2, dtype), number)


def test_a_number_beside_a_dtype_without_numbers():
    with pytest.raises(TypeError, match=r"^mul: x is a bool, expected a tensor"):
        anyop.mul(False, np.void(b"ab"))


def test_only_beside_a_tensor_and_where_dtypes_are_promoted(caller):
    with pytest.raises(TypeError, match=r"^add: x is an int, expected a tensor"):
        anyop.add(2, 3)
    with pytest.raises(TypeError, match=r"^rms_norm: weight is an int, expected a "):
        anyop.rms_norm(caller.tensor(np.ones((2, 4), np.float32)), 3)


def test_graphs(caller):
    graph = caller.graph(lambda x: anyop.add(anyop.mul(x, 2.5), 1))
    if graph is None:
        pytest.skip(f"{caller.name} has no graphs")
    found = graph(caller.tensor(np.ones(3, np.float32)))
    np.testing.assert_array_equal(value_of(caller, found), np.full(3, 3.5, np.float32))


def test_gradients():
    torch = pytest.importorskip("torch")
    x = torch.ones(3, requires_grad=True)
    anyop.mul(anyop.add(x, 1), 3.0).sum().backward()
    assert x.grad.tolist() == [3.0, 3.0, 3.0]
