# SPDX-License-Identifier: Apache-2.0
"""Dtypes of a call: names as schemas write them, torch's objects, the rules of [dtypes]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

NAMES = (
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64",
    "complex128", "float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64",
)  # fmt: skip
BY_NAME: dict[str, torch.dtype] = {name: getattr(torch, name) for name in NAMES}
NAME_OF = {dtype: name for name, dtype in BY_NAME.items()}


def to_torch(value: Any) -> torch.dtype | None:
    """The dtype that "float32", numpy.float32, numpy.dtype("float32") or torch.float32 means; None: unknown."""
    if isinstance(value, torch.dtype):
        return value
    if not isinstance(value, str):
        value = getattr(value, "name", None) or getattr(value, "__name__", None)
    return BY_NAME.get(value)


def name_of(dtype: torch.dtype) -> str:
    """How messages write a dtype."""
    return NAME_OF.get(dtype, str(dtype).removeprefix("torch."))


def is_floating(name: str) -> bool:
    """Whether tensors of this dtype can have gradients."""
    return "float" in name or "complex" in name


def ruled(rule: Mapping[str, Any], known: Mapping[str, Any]) -> torch.dtype | None:
    """The one dtype of a promotion or of an attribute; None where torch refuses to promote."""
    if rule["rule"] == "attribute":
        given = known.get(rule["attribute"])
        return given if given is not None else known[rule["otherwise"]]
    a, b = (known[name] for name in rule["of"])
    try:
        return torch.promote_types(a, b)
    except RuntimeError:
        return None


def allows(rule: Mapping[str, Any], known: Mapping[str, Any], dtype: torch.dtype) -> bool:
    """Whether a given tensor may have this dtype."""
    if rule["rule"] != "one_of":
        return dtype == ruled(rule, known)
    same = rule["same_as"]
    return NAME_OF.get(dtype) in rule["names"] or (same is not None and dtype == known.get(same))


def of_result(rule: Mapping[str, Any], known: Mapping[str, Any]) -> torch.dtype | None:
    """The dtype of a new result."""
    if rule["rule"] != "one_of":
        return ruled(rule, known)
    return known[rule["same_as"]] if rule["same_as"] else BY_NAME[rule["names"][0]]


def expected_text(rule: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    """What a message says was expected."""
    if rule["rule"] != "one_of":
        dtype = ruled(rule, known)
        if dtype is None:
            return "a dtype that the arguments promote to (there is none)"
        return name_of(dtype)
    text = ", ".join(name for name in NAMES if name in rule["names"])
    if not rule["same_as"]:
        return text
    same = f"{name_of(known[rule['same_as']])} as {rule['same_as']}"
    return f"{same} or {text}" if text else same
