# SPDX-License-Identifier: Apache-2.0
"""Dtypes of a call, as names: the rules of [dtypes], and what messages say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyop._load import core

NAMES = (
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64",
    "complex128", "float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64",
)  # fmt: skip
BY_NAME = {name: number for number, name in enumerate(NAMES)}  # AnyopDtype


def is_floating(name: str) -> bool:
    """Whether tensors of this dtype can have gradients."""
    return "float" in name or "complex" in name


def item_bytes(name: str) -> int:
    """Of one element."""
    digits = "8" if name == "bool" or name.startswith("float8") else name.lstrip("abcdefilmnoptux")
    return int(digits) // 8


def ruled(rule: Mapping[str, Any], known: Mapping[str, Any]) -> str | None:
    """The one dtype of a promotion, an attribute or the first tensor given; None where there is none."""
    if rule["rule"] == "attribute":
        given = known.get(rule["attribute"])
        return given if given is not None else known[rule["otherwise"]]
    if rule["rule"] == "first_given":
        return next(filter(None, map(known.get, rule["of"])), None)
    first, second = rule["of"]  # an argument, and another or a dtype
    return core.promote(known[first], known.get(second, second))


def allows(rule: Mapping[str, Any], known: Mapping[str, Any], dtype: str) -> bool:
    """Whether a given tensor may have this dtype."""
    if rule["rule"] != "one_of":
        return dtype == ruled(rule, known)
    same = rule["same_as"]
    return dtype in rule["names"] or (same is not None and dtype == known.get(same))


def of_result(rule: Mapping[str, Any], known: Mapping[str, Any]) -> str | None:
    """The dtype of a new result."""
    if rule["rule"] != "one_of":
        return ruled(rule, known)
    return known.get(rule["same_as"]) if rule["same_as"] else rule["names"][0]


def expected_text(rule: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    """What a message says was expected."""
    if rule["rule"] != "one_of":
        return ruled(rule, known) or "a dtype that the arguments promote to (there is none)"
    text = ", ".join(name for name in NAMES if name in rule["names"])
    if not rule["same_as"]:
        return text
    same = f"{known.get(rule['same_as'], 'the dtype')} as {rule['same_as']}"
    return f"{same} or {text}" if text else same
