# SPDX-License-Identifier: Apache-2.0
"""Moves the arguments of an OpInfo sample to a device as they lie in memory, and compares results of two devices."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

NEAR = "near"  # within the tolerance of torch.testing, other bits


def moved(value: Any, source: str, target: str) -> Any:
    """A copy of a tree: tensors of source and arguments that name it go to target, views still share their memory."""
    storages: dict[int, torch.Tensor] = {}
    seen: dict[int, torch.Tensor] = {}

    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.device.type == source:
            if id(leaf) not in seen:
                seen[id(leaf)] = move_tensor(leaf, target, storages)
            return seen[id(leaf)]
        if isinstance(leaf, torch.device):
            return torch.device(target) if leaf.type == source else leaf
        named = isinstance(leaf, str) and leaf.partition(":")[0] == source
        return target if named else leaf

    return tree_map(move, value)


def move_tensor(tensor: torch.Tensor, target: str, storages: dict[int, torch.Tensor]):
    plain = tensor.detach()
    if plain.layout is not torch.strided or plain.is_quantized:
        return plain.clone().to(target).requires_grad_(tensor.requires_grad)
    storage = plain.untyped_storage()
    if storage._cdata not in storages:
        flat = torch.empty(0, dtype=torch.uint8, device=plain.device).set_(storage)
        storages[storage._cdata] = flat.clone().to(target)
    there = torch.empty(0, dtype=plain.dtype, device=target)
    memory = storages[storage._cdata].untyped_storage()
    there.set_(memory, plain.storage_offset(), plain.size(), plain.stride())
    there = there.conj() if plain.is_conj() else there
    there = torch._neg_view(there) if plain.is_neg() else there
    return there.requires_grad_(tensor.requires_grad)


def difference(
    expected: Any, found: Any, source: str, target: str, values: bool = True
) -> str | None:
    """What is wrong with a tree of results; NEAR: other bits within the tolerance; None: nothing."""
    (a, _), (b, _) = tree_flatten(expected), tree_flatten(found)
    if len(a) != len(b):
        return f"{len(b)} results, expected {len(a)}"
    texts = [leaf_difference(x, y, source, target, values) for x, y in zip(a, b)]
    return next((text for text in texts if text and text != NEAR), None) or (
        NEAR if NEAR in texts else None
    )


def leaf_difference(
    expected: Any, found: Any, source: str, target: str, values: bool
) -> str | None:
    if not isinstance(expected, torch.Tensor):
        if isinstance(expected, torch.device):
            expected = moved(expected, source, target)
            return None if expected.type == found.type else f"{found}, expected {expected}"
        same = type(expected) is type(found) and (expected == found or expected != expected)
        return None if same else f"{found!r}, expected {expected!r}"
    if not isinstance(found, torch.Tensor):
        return f"a {type(found).__name__}, expected a tensor"
    device = target if expected.device.type == source else expected.device.type
    if found.device.type != device:
        return f"a tensor of {found.device.type}, expected {device}"
    for what in ("layout", "dtype", "shape", "requires_grad"):
        if getattr(expected, what) != getattr(found, what):
            return f"{what} is {getattr(found, what)}, expected {getattr(expected, what)}"
    return values_difference(expected, found) if values else None


def values_difference(expected: torch.Tensor, found: torch.Tensor) -> str | None:
    a, b = plain_values(expected), plain_values(found)
    if torch.equal(bits(a), bits(b)):
        return None
    try:
        torch.testing.assert_close(b, a, equal_nan=True)
    except AssertionError as error:
        return "other values: " + " ".join(str(error).split())[:160]
    return NEAR


def plain_values(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach().cpu()
    if tensor.is_quantized:
        return tensor.dequantize()
    tensor = tensor if tensor.layout is torch.strided else tensor.to_dense()
    return tensor.resolve_conj().resolve_neg()


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).clone(memory_format=torch.contiguous_format).view(torch.uint8)


def other_strides(expected: Any, found: Any) -> bool:
    """Whether a tensor of a tree lies otherwise in memory."""
    return any(
        isinstance(a, torch.Tensor)
        and isinstance(b, torch.Tensor)
        and a.layout is b.layout is torch.strided
        and a.stride() != b.stride()
        for a, b in zip(tree_leaves(expected), tree_leaves(found))
    )
