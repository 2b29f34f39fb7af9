# SPDX-License-Identifier: Apache-2.0
"""Types that were asked for their memory are remembered, and none is kept alive."""

from __future__ import annotations

import gc
import weakref

import anyop
import numpy as np
import pytest
from anyop.testing.dlpack import DlpackArray

X = np.random.default_rng(3).standard_normal((4, 64)).astype(np.float32)
W = np.linspace(0.5, 1.5, 64, dtype=np.float32)


def reference(x):
    d = x.astype(np.float64)
    return d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-6) * W


def test_no_subclass_is_kept():
    """Of NumPy's arrays, and of every other type that was asked for its memory."""
    gone = []
    for base in (np.ndarray, DlpackArray, bytearray):
        kind = type("Sub", (base,), {})
        array = X.view(kind) if base is np.ndarray else kind(X) if base is DlpackArray else kind(64)
        call = anyop.rms_norm if base is not bytearray else anyop.relu
        try:
            call(array, W) if base is not bytearray else call(array)
        except TypeError as error:
            assert "dtype" in str(error)
        gone.append(weakref.ref(kind))
        del kind, array
    gc.collect()
    assert [reference() for reference in gone] == [None] * 3


def test_no_subclass_of_a_framework_is_kept():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    kind = type("Sub", (torch.Tensor,), {})
    tensor = torch.ones(2, 64).as_subclass(kind)
    assert anyop.relu(tensor).shape == (2, 64)
    anyop.aten.relu(tensor)
    gone = weakref.ref(kind)
    del kind, tensor
    torch.compiler.reset()
    gc.collect()
    assert gone() is None


def test_many_classes_are_told_apart():
    """More than are remembered, and addresses that come again."""
    for number in range(200):
        base = np.ndarray if number % 2 else DlpackArray
        kind = type(f"Sub{number}", (base,), {})
        array = X.view(kind) if base is np.ndarray else kind(X)
        np.testing.assert_allclose(anyop.rms_norm(array, W), reference(X), rtol=1e-5, atol=1e-6)
        del kind, array
        if number % 50 == 0:
            gc.collect()
