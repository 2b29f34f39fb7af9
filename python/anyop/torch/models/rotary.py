# SPDX-License-Identifier: Apache-2.0
"""Puts anyop.rope_qk in the place of the function by which a model of transformers turns queries and keys.

The function is a global of the Python file that the model's attention is written in. It is replaced there while a
model that was given to replace() is, for all models of that file: they compute the same by it.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import anyop
from anyop._routes import unrecorded
from anyop.torch.models import gains, hugging_face

NAME = "apply_rotary_pos_emb"
KIND = "rope"
Types = tuple[torch.dtype, torch.dtype]  # of queries and keys, and of cosines and sines
# Of 16 bits, transformers rounds both products and their sum.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
_own: dict[int, Any] = {}  # by id of the file's globals: its own function, while another is there
_users: defaultdict[int, set[int]] = defaultdict(set)  # likewise, ids of replaced models


class OtherRotation:
    """One more model for which the function of a file is replaced, until undo() or the end of the model."""

    def __init__(self, model: torch.nn.Module, names: dict[str, Any]) -> None:
        _users[id(names)].add(id(model))
        self._end = weakref.finalize(model, _one_less, names, id(model))
        self._end.atexit = False

    def undo(self) -> None:
        self._end()


def _one_less(names: dict[str, Any], model: int) -> None:
    key = id(names)
    _users[key].discard(model)
    if _users[key]:
        return
    own = _own.pop(key)
    if getattr(names.get(NAME), "anyop_stands_for", None) is own:
        names[NAME] = own


def replace_rotary(model: torch.nn.Module, replaced: Any) -> None:
    """Replace the function for each file that a module of model calls it from; replaced is told."""
    files: dict[int, tuple[dict[str, Any], int]] = {}
    for module in model.modules():
        names = _globals(hugging_face.original(module))
        if names is not None:
            files[id(names)] = names, files.get(id(names), (names, 0))[1] + 1
    for key, (names, count) in files.items():
        if id(model) in _users[key]:
            continue
        if key not in _own:
            found = standing_for(names[NAME])
            reason = f"{names['__name__']} has another formula" if found is None else None
            if found is not None and replaced.timed:
                reason = replaced.reason(KIND, gain(model, names[NAME], found))
            if found is None or reason:
                replaced.left[KIND, str(reason)] += count
                continue
            _own[key], names[NAME] = names[NAME], found
        replaced.add(KIND, OtherRotation(model, names), count)


def _globals(kind: Any) -> dict[str, Any] | None:
    """The globals in which the class's forward finds the function, if it calls it."""
    forward: Any = inspect.unwrap(kind.forward)
    code = getattr(forward, "__code__", None)
    if code is None or NAME not in code.co_names or NAME not in forward.__globals__:
        return None
    names: dict[str, Any] = forward.__globals__
    return names


def gain(model: torch.nn.Module, own: Any, found: Any) -> gains.Gain | None:
    """Of queries and keys as they come from the model's products, with a head for each of the keys' four."""
    like = gains.like_of(model)
    D = next((int(m.head_dim) for m in model.modules() if hasattr(m, "head_dim")), 64)

    def calls(rows: int) -> gains.Calls:
        q = gains.numbers((1, rows, 16, D), like.dtype, like.device).transpose(1, 2)
        cos, sin = gains.numbers((2, 1, rows, D), like.dtype, like.device)
        return (lambda: own(q, q[:, :4], cos, sin)), (lambda: found(q, q[:, :4], cos, sin))

    return gains.gain(KIND, (own, D, like.dtype), calls, like.device)


def standing_for(own: Any) -> Callable[..., tuple[Tensor, Tensor]] | None:
    """A function that does by rope_qk what own does, for the calls in which own was seen to do it; None: for none."""
    whole = {types for types in _pairs() if _agrees(own, types, 8)}
    part = {types for types in whole if _agrees(own, types, 4)}
    if not {(torch.float32,) * 2, (torch.bfloat16,) * 2} <= whole:
        return None

    @functools.wraps(own)
    def apply_rotary_pos_emb(q, k, cos, sin, *args, **kwargs):
        known = part if cos.shape[-1] < q.shape[-1] else whole
        if args or kwargs or (q.dtype, cos.dtype) not in known or not _fits(q, k, cos, sin):
            return own(q, k, cos, sin, *args, **kwargs)
        return turned(q, k, cos, sin)

    apply_rotary_pos_emb.anyop_stands_for = own  # type: ignore[attr-defined]
    return apply_rotary_pos_emb


def turned(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Turn q (B, H, S, D) and k (B, G, S, D) by cos and sin (B or 1, S, R); results lie with tokens before heads."""
    q, k = q.transpose(1, 2), k.transpose(1, 2)
    if cos.shape[0] == 1:
        out = [*anyop.rope_qk(q, k, cos[0], sin[0])]
    else:
        B, S = cos.shape[:2]
        tokens = [t.reshape(B * S, *t.shape[2:]) for t in (q, k, cos, sin)]
        out = [t.unflatten(0, (B, S)) for t in anyop.rope_qk(*tokens)]
    return out[0].transpose(1, 2), out[1].transpose(1, 2)


def _fits(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> bool:
    if q.dim() != 4 or k.dim() != 4 or cos.dim() != 3 or cos.shape != sin.shape:
        return False
    if k.dtype is not q.dtype or sin.dtype is not cos.dtype or cos.requires_grad:
        return False
    if q.stride(-1) != 1 or k.stride(-1) != 1 or cos.stride(-1) != 1 or sin.stride(-1) != 1:
        return False
    return cos.shape[0] in (1, q.shape[0]) and cos.shape[1] == q.shape[2] == k.shape[2]


def _pairs() -> list[Types]:
    return [(of_q, of_cos) for of_q in TOLERANCE for of_cos in {of_q, torch.float32}]


@unrecorded()
@torch.no_grad()
def _agrees(own: Any, types: Types, R: int) -> bool:
    """Whether own gives what rope_qk gives on random numbers: angles of each sequence, and one for all."""
    generator = torch.Generator().manual_seed(0)
    random = functools.partial(torch.randn, generator=generator, device="cpu")
    limit = TOLERANCE[types[0]]
    try:
        for batch in (2, 1):
            q, k = random(2, 5, 4, 8).to(types[0]).transpose(1, 2), random(2, 2, 5, 8).to(types[0])
            cos, sin = random(2, batch, 5, R).to(types[1])
            for found, ours in zip(own(q, k, cos, sin), turned(q, k, cos, sin), strict=True):
                same = found.dtype is ours.dtype and found.shape == ours.shape
                if not same or not torch.allclose(found, ours, rtol=limit, atol=limit):
                    return False
    except Exception:  # somebody else's: it may refuse these types or sizes
        return False
    return True
