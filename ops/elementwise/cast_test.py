# SPDX-License-Identifier: Apache-2.0
"""cast: every dtype to every other, bit for bit as torch has it; rounding to 16 bits to nearest even."""

import itertools

import anyop
import numpy as np
import pytest


def reference(x, dtype):
    return x.astype(float) if "float" in dtype else x.astype(dtype)


def test_other_dtypes_are_refused():
    for dtype in ("complex64", "float8_e5m2", "uint16"):
        with pytest.raises(TypeError, match="cast: dtype is " + dtype):
            anyop.cast(np.ones(3, np.float32), dtype)


DTYPES = [
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
]


@pytest.mark.parametrize(("source", "target"), list(itertools.product(DTYPES, DTYPES)))
def test_every_pair_is_as_in_torch(source, target):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = torch.tensor([0, 1, 2, 3.5, 100, 7, 0.25, 126.75]).to(getattr(torch, source))
    if source not in ("bool", "uint8"):
        x = torch.cat([x, -x])
    if target == "uint8" and source.startswith(("float", "bfloat")):
        x = x.abs()  # what a negative float becomes as uint8 is undefined in C, and so in torch
    found, expected = anyop.cast(x, target), x.to(getattr(torch, target))
    assert found.dtype == expected.dtype and torch.equal(found, expected)


@pytest.mark.parametrize("target", ["float16", "bfloat16"])
def test_rounding_is_to_nearest_even_for_every_pattern(target):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    bits = torch.arange(0, 2**32, 4099, dtype=torch.int64).to(torch.int32)
    x = bits.view(torch.float32)
    x = torch.cat(
        [
            x[~x.isnan()],
            torch.tensor([65519.99, 65520.0, 65504.0, 5.96e-8, 2.98e-8, -0.0, float("inf")]),
        ]
    )
    found, expected = anyop.cast(x, target), x.to(getattr(torch, target))
    assert torch.equal(found.view(torch.int16), expected.view(torch.int16))
    assert anyop.cast(torch.tensor([float("nan"), -float("nan")]), target).isnan().all()
    back = expected[~expected.isnan()]
    assert torch.equal(anyop.cast(back, "float32"), back.float())
