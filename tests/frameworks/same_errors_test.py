# SPDX-License-Identifier: Apache-2.0
"""A wrong call has the same error in every framework: kind and text are those that NumPy gets."""

from __future__ import annotations

from decimal import Decimal

import anyop
import numpy as np
import pytest

F32 = np.float32


def ones(*shape, dtype=F32):
    return np.ones(shape, dtype)


BAD_CALLS = {
    "shape": (anyop.rms_norm, [ones(2, 4), ones(3)], {}),
    "rank": (anyop.rms_norm, [ones(2, 4), ones(1, 4)], {}),
    "too few sizes": (anyop.linear, [ones(4), ones(4)], {}),
    "dtype": (anyop.rms_norm, [ones(2, 4, dtype=np.int32), ones(4)], {}),
    "two dtypes": (anyop.rms_norm, [ones(2, 4), ones(4, dtype=np.float16)], {}),
    "broadcast": (anyop.mul, [ones(2, 4), ones(3)], {}),
    "condition": (anyop.softmax, [ones(2, 4)], {"dim": 5}),
    "attribute of another kind": (anyop.rms_norm, [ones(2, 4), ones(4)], {"eps": "small"}),
    **{
        f"{type(value).__name__} {at} as float": (
            anyop.rms_norm,
            [ones(2, 4), ones(4)],
            {"eps": value},
        )
        for at, value in enumerate(
            (
                np.void(b"ab"),
                np.complex64(1),
                np.str_("1"),
                np.bytes_(b"1"),
                np.array("x"),
                np.ones(2),
                [1.0],
                b"1",
                np.array(None),
                np.ones(1, [("a", "f4")])[0],
                np.datetime64("2020"),
                1j,
                10**400,
                Decimal("sNaN"),
            )
        )
    },
    "swapped bytes": (anyop.cast, [ones(2)], {"dtype": np.dtype(">f4")}),
    "a float for an int": (anyop.softmax, [ones(2, 4)], {"dim": 1.0}),
    "unknown keyword": (anyop.rms_norm, [ones(2, 4), ones(4)], {"epsilon": 1e-6}),
    "given twice": (anyop.rms_norm, [ones(2, 4), ones(4)], {"x": 1}),
    "missing": (anyop.mul, [ones(2, 4)], {}),
    "none": (anyop.mul, [ones(2, 4), None], {}),
    "no tensor": (anyop.rms_norm, [ones(2, 4), "weight"], {}),
}


def error_of(function, args, kwargs):
    with pytest.raises((TypeError, ValueError, NotImplementedError)) as caught:
        function(*args, **kwargs)
    return type(caught.value), str(caught.value)


@pytest.mark.parametrize("name", BAD_CALLS)
def test_text_is_that_of_numpy(caller, name):
    function, arrays, kwargs = BAD_CALLS[name]
    if caller.backend == "cuda" and "cuda" not in anyop.backends(function.__name__):
        pytest.skip(f"no CUDA kernel of {function.__name__}")
    tensors = [caller.tensor(a) if isinstance(a, np.ndarray) else a for a in arrays]
    assert error_of(function, tensors, kwargs) == error_of(function, arrays, kwargs)


class Own:
    def __float__(self):
        raise self.error


@pytest.mark.parametrize("error", [TypeError("mine"), ValueError("mine"), OverflowError("mine")])
def test_an_objects_own_error_is_kept(caller, error):
    own = Own()
    own.error = error
    with pytest.raises(type(error)) as caught:
        anyop.rms_norm(caller.tensor(ones(2, 4)), caller.tensor(ones(4)), own)
    assert caught.value is error


# Graphs are traced from numbers: an odd value there is its framework's to refuse.
GRAPHS = [
    name
    for name in BAD_CALLS
    if name not in ("none", "no tensor", "swapped bytes") and "as float" not in name
]


@pytest.mark.parametrize("name", GRAPHS)
def test_text_in_a_graph(caller, name):
    """What a framework wraps around the error keeps its text."""
    function, arrays, kwargs = BAD_CALLS[name]
    _, text = error_of(function, arrays, kwargs)
    tensors = [caller.tensor(a) for a in arrays]
    graph = caller.graph(lambda *args: function(*args, **kwargs))
    if graph is None:
        pytest.skip(f"{caller.name} has no graphs")
    with pytest.raises(Exception) as caught:
        graph(*tensors)
    assert text in str(caught.value)


def test_two_frameworks_in_one_call(caller):
    """Nobody converts in silence; the text says which argument is of which framework. JAX takes NumPy's arrays."""
    other = memory_of_another() if caller.name in ("numpy", "jax") else np.ones(4, F32)
    with pytest.raises(TypeError, match=r"rms_norm: weight is a .*expected a .* as the tensors"):
        anyop.rms_norm(caller.tensor(ones(2, 4)), other)
    with pytest.raises(TypeError, match=r"rms_norm: weight is a .*expected a .* as the tensors"):
        anyop.rms_norm(other.reshape(1, 4), caller.tensor(ones(4)))


def memory_of_another():
    return pytest.importorskip("torch", reason="torch is not installed").ones(4)


def test_no_gradient_is_lost(caller):
    """An operator without a gradient, under the framework's differentiation."""
    if not caller.has_gradients:
        pytest.skip(f"{caller.name} has no gradients")
    x, g = caller.tensor(ones(2, 4)), caller.tensor(ones(2, 4))

    def twice(g):
        return anyop.relu_backward(g, x).sum()

    # Paddle makes an OSError of what a backward pass raises; the text stays.
    with pytest.raises((NotImplementedError, OSError), match="relu_backward: has no gradient"):
        caller.gradients(twice, [g])
