# SPDX-License-Identifier: Apache-2.0
"""Compares what a call gave from NumPy values with what torch recorded: the same bits, or nearly."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from opinfo_record import DTYPES, Frozen, Leaf

# The same kernel may take another path for memory of another alignment: some last bits differ.
TOLERANCE = {2: 1e-2, 4: 2e-5, 8: 1e-10}


def nothing_set(leaf: Leaf) -> bool:
    """Whether memory of the result was never written, by torch either."""
    name = leaf.function._schema.name.removeprefix("aten::")
    return "empty" in name or name in ("resize_", "resize_as_", "resize")


def difference(leaf: Leaf, results: Any, arguments: dict[str, Any]) -> str | None:
    """What is wrong with a call; None: nothing. arguments: by name, as they are after it."""
    if text := differs(leaf.results, results, "result", nothing_set(leaf)):
        return text
    if leaf.tagged("inplace_view") or nothing_set(leaf):
        return None  # an array's own shape cannot change: the result has it
    for name, expected in leaf.written.items():
        if text := differs(expected, arguments[name], name, False):
            return text
    return None


def differs(expected: Any, found: Any, what: str, shape_only: bool) -> str | None:
    if isinstance(expected, Frozen):
        return tensor_differs(expected, found, what, shape_only)
    if isinstance(expected, (list, tuple)) and not isinstance(expected, torch.Size):
        if not isinstance(found, (list, tuple)) or len(found) != len(expected):
            return f"{what}: {kind(found)}, expected {len(expected)} values"
        pairs = enumerate(zip(expected, found))
        texts = (differs(a, b, f"{what}[{i}]", shape_only) for i, (a, b) in pairs)
        return next(filter(None, texts), None)
    if isinstance(expected, (bool, int, float, complex)):
        right = type(found) is type(expected) and (found == expected or found != found)
        return None if right else f"{what}: {found!r}, expected {expected!r}"
    if isinstance(expected, (torch.dtype, torch.device, torch.layout)):
        right = str(found).removeprefix("torch.") == str(expected).removeprefix("torch.")
        return None if right else f"{what}: {found!r}, expected {expected!r}"
    return (
        None if expected is None and found is None else f"{what}: {kind(found)}, not {expected!r}"
    )


def kind(value: Any) -> str:
    return type(value).__name__ + (f" of {len(value)}" if hasattr(value, "__len__") else "")


def tensor_differs(expected: Frozen, found: Any, what: str, shape_only: bool) -> str | None:
    if not isinstance(found, np.ndarray):
        return f"{what}: a {kind(found)}, expected an array"
    if found.shape != expected.sizes or found.dtype != DTYPES[expected.dtype]:
        of = f"{found.dtype}{list(found.shape)}"
        return f"{what}: {of}, expected {DTYPES[expected.dtype]}{list(expected.sizes)}"
    wanted = expected.array({})
    if shape_only or same_bits(wanted, found) or nearly(wanted, found):
        return None
    return f"{what}: other values"


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()


def nearly(a: np.ndarray, b: np.ndarray) -> bool:
    if a.dtype.kind not in "fcV" or (a.dtype.kind == "V" and a.dtype.itemsize > 2):
        return False
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    size = a.dtype.itemsize // (2 if a.dtype.kind == "c" else 1)
    limit = TOLERANCE.get(size, 0.0)
    with np.errstate(all="ignore"):
        return np.allclose(a.astype(wide), b.astype(wide), rtol=limit, atol=limit, equal_nan=True)
