# SPDX-License-Identifier: Apache-2.0
"""The condition `when` of a kernel, checked: the router reads its text again, and knows no better than this."""

from __future__ import annotations

import re
from collections.abc import Collection

from .binding import Binding
from .dtypes import dtype_name
from .operator_sections import BACKENDS, text_of
from .params import Param
from .source import Mistake, listed, nearest

_TERM = re.compile(r"(\w+)(?:\(([\w*]*)\))?(?:%(\d+))?(!=|<=|>=|=|<|>)([\w|.-]+)", re.ASCII)
_CALLS = ("dtype", "rank", "numel", "contiguous", "address", "given")
_FIX = 'write it like when = "dtype=float32|bfloat16 D<=1024 D%8=0"'


def read_when(value: object, params: list[Param], binding: Binding) -> str:
    """The text with single blanks. Words are joined by blanks and must all hold."""
    words = text_of(value, "when").split()
    for word in words:
        match = _TERM.fullmatch(word)
        if not match:
            raise Mistake(f"'{word}' in when", "a name, a comparison and a value", _FIX)
        _check_term(word, match, params, binding)
    return " ".join(words)


def _check_term(word: str, match: re.Match[str], params: list[Param], binding: Binding) -> None:
    name, argument, modulo, compare, value = match.groups()
    if name == "capability":
        if argument is not None or modulo or not re.fullmatch(r"\d{1,3}\.\d", value, re.ASCII):
            raise Mistake(f"'{word}' in when", "a capability such as capability>=8.0", _FIX)
        return
    if name in ("dtype", "device"):
        if compare not in ("=", "!=") or modulo or (argument is not None and name == "device"):
            raise Mistake(f"'{word}' in when", f"{name}=... or {name}!=...", _FIX)
        _check_words(name, argument, value, params)
        return
    if name in ("rank", "numel") and argument is not None:
        known = [*_tensors(params), *_groups(binding)]
        _check_known(argument, known, f"{name}({argument}) in when", "a tensor or a group")
    elif name == "address" and argument is not None:
        _check_known(argument, _tensors(params), f"address({argument}) in when", "a tensor")
    elif name in ("contiguous", "given") and argument is not None:
        _check_known(argument, _tensors(params), f"{name}({argument}) in when", "a tensor")
        if compare not in ("=", "!=") or modulo or value not in ("0", "1"):
            raise Mistake(f"'{word}' in when", f"{name}({argument})=1 or =0", _FIX)
    elif argument is not None:
        raise Mistake(f"'{word}' in when", listed(f"{call}(...)" for call in _CALLS), _FIX)
    else:
        sizes = [size for size in binding.symbols if size not in binding.element_sizes]
        sizes += [group for group in _groups(binding) if group == "rows"]
        _check_known(
            name,
            sizes if modulo else [*sizes, *(n for n in _numbers(params) if n not in sizes)],
            f"'{name}' in when",
            "dtype, device, capability, a size or an argument",
            more=("dtype", "device", "capability"),
        )
    number = int(value) if re.fullmatch(r"-?\d{1,19}", value) else 2**63
    if not -(2**63) <= number < 2**63 or (modulo and not 0 < int(modulo) < 2**63):
        raise Mistake(f"'{word}' in when", "a whole number of 64 bits", _FIX)


def _check_words(name: str, argument: str | None, value: str, params: list[Param]) -> None:
    if argument is not None:
        _check_known(argument, _tensors(params), f"dtype({argument}) in when", "a tensor")
    for word in value.split("|"):
        if name == "dtype":
            dtype_name(word)
        else:
            _check_known(word, BACKENDS, f"device '{word}' in when", "a device")


def _check_known(
    name: str, known: Collection[str], found: str, expected: str, more: tuple[str, ...] = ()
) -> None:
    if name not in known:
        raise Mistake(
            found, f"{expected} ({listed(known)})", nearest(name, [*known, *more], "correct it")
        )


def _tensors(params: list[Param]) -> list[str]:
    return [param.name for param in params if param.is_tensor and not param.is_list]


def _numbers(params: list[Param]) -> list[str]:
    """Arguments that are one number, yes or no."""
    return [p.name for p in params if p.kind in ("int", "float", "bool") and not p.is_list]


def _groups(binding: Binding) -> list[str]:
    """Names of groups; "rows" is the one without."""
    groups = [group for group in binding.groups if group not in binding.element_groups]
    return ["rows" if group == "_" else group for group in groups]
