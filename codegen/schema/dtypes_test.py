# SPDX-License-Identifier: Apache-2.0
"""Element types agree with anyop/kernel.h, and promotion with torch."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from ..conftest import INCLUDE
from .dtype_checks import possible_dtypes
from .dtype_rules import parse_rule
from .dtypes import DTYPES, promote

# Of torch.promote_types. Where torch is installed, all pairs are compared.
KNOWN = [
    ("bool", "int8", "int8"), ("uint8", "int8", "int16"), ("int32", "float16", "float16"),
    ("float16", "bfloat16", "float32"), ("float64", "complex64", "complex128"),
    ("float32", "complex64", "complex64"),
    ("uint16", "float32", "float32"), ("uint16", "int32", None), ("float8_e5m2", "float32", None),
    ("float8_e5m2", "float8_e5m2", "float8_e5m2"),
]  # fmt: skip


def test_numbers_are_those_of_the_header():
    text = (INCLUDE / "anyop" / "kernel.h").read_text()
    found = {
        name.lower(): int(number)
        for name, number in re.findall(r"  kAnyop(\w+) = (\d+),", text.split("} AnyopDtype;")[0])
    }
    assert {name.replace("_", ""): i for i, name in enumerate(DTYPES)} == {
        k: v for k, v in found.items() if v < len(DTYPES)
    }
    assert found["numdtypes"] == len(DTYPES)


@pytest.mark.parametrize("a, b, expected", KNOWN)
def test_promotion(a, b, expected):
    assert promote(a, b) == promote(b, a) == expected


def test_promotion_is_that_of_torch():
    torch = pytest.importorskip(
        "torch", reason="torch is not installed: only the pairs written here are compared"
    )
    for a in DTYPES:
        for b in DTYPES:
            try:
                expected = str(
                    torch.promote_types(getattr(torch, a), getattr(torch, b))
                ).removeprefix("torch.")
            except RuntimeError:
                expected = None
            assert promote(a, b) == expected, (a, b)


def test_promotion_with_a_dtype():
    """Of one argument and a dtype; a name that is both is the argument."""
    rule = parse_rule("promote(x, float32)", ["x"], [])
    assert (rule.promote, rule.with_dtype, rule.parameters) == (("x",), "float32", ("x",))
    assert rule.mask == 1 << DTYPES.index("float32")
    halves = {"x": SimpleNamespace(possible=("float16", "bfloat16", "float64"))}
    assert possible_dtypes(rule, halves) == ("float32", "float64")
    other = parse_rule("promote(x, float32)", ["x", "float32"], [])
    assert (other.promote, other.with_dtype) == (("x", "float32"), None)
