# SPDX-License-Identifier: Apache-2.0
"""ATen's schema notation: `[namespace::]name(arguments) -> results`, read into parameters."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .names import check_argument_name, check_namespace, check_operator_name
from .params import KINDS, Param, parse_default, split, unquoted
from .source import Mistake, listed, nearest

_SPELLINGS = {**{kind: kind for kind in KINDS}, "SymInt": "int"}
_SIGNATURE = re.compile(r"\s*(?:(?P<namespace>\w+)::)?(?P<name>\w+)\s*\((?P<rest>.*)", re.DOTALL)
_TYPE = r"(?P<type>\w+)(?P<alias>\(\s*\w+\s*!?\s*\))?(?P<suffix>(?:\?|\[\s*\d*\s*\])*)"
_ARGUMENT = re.compile(_TYPE + r"\s+(?P<name>\w+)\s*(?:=\s*(?P<default>.+))?", re.DOTALL)
_RESULT = re.compile(_TYPE + r"(?:\s+(?P<name>\w+))?")
_EXAMPLE = "write it like 'rms_norm(Tensor x, float eps=1e-6) -> Tensor'"


@dataclass
class Signature:
    """A schema taken apart."""

    namespace: str
    name: str
    inputs: list[Param]
    outputs: list[Param]


def parse_schema(text: str) -> Signature:
    """Reads a whole schema."""
    match = _SIGNATURE.fullmatch(text)
    if not match:
        raise Mistake(f"the schema '{text}'", "'[namespace::]name(arguments) -> results'", _EXAMPLE)
    arguments, results = _split_arrow(match["rest"], text)
    namespace, name = match["namespace"] or "anyop", match["name"]
    check_namespace(namespace)
    check_operator_name(namespace, name)
    inputs, outputs = _parse_arguments(arguments), _parse_results(results)
    _check_names(inputs + outputs)
    return Signature(namespace, name, inputs, outputs)


def _split_arrow(rest: str, text: str) -> tuple[str, str]:
    """Cuts 'arguments) -> results'; a default may hold any bracket or arrow in quotes."""
    for at, _, depth in unquoted(rest):
        if depth < 0:
            arrow = re.fullmatch(r"\s*->\s*(.+)", rest[at + 1 :], re.DOTALL)
            if arrow:
                return rest[:at], arrow[1].strip()
            break
    raise Mistake(
        f"the schema '{text}'",
        "')' and '-> results' at its end",
        "write '-> ()' when it returns nothing",
    )


def _parse_arguments(text: str) -> list[Param]:
    params: list[Param] = []
    keyword_only = False
    for part in split(text) if text.strip() else []:
        if part == "*" and not keyword_only:
            keyword_only = True
            continue
        param = _parse_argument(part)
        param.keyword_only = keyword_only
        if not keyword_only and not param.has_default and params and params[-1].has_default:
            raise Mistake(
                f"argument '{param.name}' has no default and follows '{params[-1].name}'",
                "arguments with defaults last",
                f"give '{param.name}' a default, move it forward, or write '*' before it",
            )
        params.append(param)
    if keyword_only and not (params and params[-1].keyword_only):
        raise Mistake(
            "'*' with nothing behind it", "keyword-only arguments behind it", "remove '*'"
        )
    return params


def _parse_argument(text: str) -> Param:
    match = _ARGUMENT.fullmatch(text)
    if not match:
        raise Mistake(f"argument '{text}'", "'type name' or 'type name=default'", _EXAMPLE)
    param = _typed(match, f"argument '{match['name']}'")
    check_argument_name(param.name)
    if match["default"] is not None:
        param.default = parse_default(param, match["default"].strip())
    return param


def _typed(match: re.Match[str], what: str) -> Param:
    """A parameter from type, alias mark and suffixes."""
    kind = _SPELLINGS.get(match["type"])
    if kind is None:
        fix = nearest(match["type"], _SPELLINGS, "use one of these")
        raise Mistake(f"{what} has unknown type '{match['type']}'", listed(KINDS), fix)
    param = Param(match["name"] or "", kind)
    if alias := match["alias"]:
        if kind != "Tensor" or "!" not in alias:
            raise Mistake(
                f"{what} has the mark '{alias}'",
                "'(a!)' on a Tensor that is written",
                "operators return no views: remove the mark",
            )
        param.mutated = True
    _apply_suffix(param, re.sub(r"\s", "", match["suffix"]), what)
    return param


def _apply_suffix(param: Param, suffix: str, what: str) -> None:
    match = re.fullmatch(r"(?P<inner>\?)?(?:\[(?P<count>\d*)\](?P<outer>\?)?)?", suffix)
    if not match:
        raise Mistake(
            f"{what} has the suffix '{suffix}'",
            "?, [], [N], []? or ?[]",
            "lists of lists cannot be passed: use one level",
        )
    param.is_list = match["count"] is not None
    param.optional = bool(match["outer"] if param.is_list else match["inner"])
    param.optional_elements = param.is_list and bool(match["inner"])
    if param.optional_elements and param.kind != "Tensor":
        raise Mistake(
            f"{what} is a list of optional {param.kind}",
            "optional elements of tensor lists only",
            f"write {param.kind}[]?",
        )
    if match["count"]:
        if param.kind in ("Tensor", "str"):
            raise Mistake(
                f"{what} has a fixed count",
                "one on int, float, bool and ScalarType lists only",
                "write []",
            )
        param.fixed_count = int(match["count"])


def _parse_results(text: str) -> list[Param]:
    inside = text
    if text.startswith("("):
        if not text.endswith(")"):
            raise Mistake(f"results '{text}'", "')' at the end", "close the bracket")
        inside = text[1:-1]
    parts = split(inside) if inside.strip() else []
    if len(parts) > 1 and inside is text:
        raise Mistake(f"results '{text}'", "several results in brackets", f"write ({text})")
    return [
        _parse_result(part, "out" if len(parts) == 1 else f"out{i}") for i, part in enumerate(parts)
    ]


def _parse_result(text: str, default_name: str) -> Param:
    match = _RESULT.fullmatch(text)
    if not match:
        raise Mistake(
            f"result '{text}'",
            "'Tensor', 'Tensor name' or 'Tensor?'",
            "write '-> (Tensor values, Tensor indices)'",
        )
    what = f"result '{match['name'] or text}'"
    if match["alias"]:
        raise Mistake(
            f"{what} carries {match['alias']}",
            "results that are new tensors",
            "mark the argument, and return '()' or a new tensor",
        )
    param = _typed(match, what)
    if not param.is_tensor or param.is_list:
        raise Mistake(
            f"{what} is no Tensor",
            "Tensor or Tensor?",
            "return numbers as tensors of no dimension, lists as several results",
        )
    param.name, param.output = param.name or default_name, True
    check_argument_name(param.name)
    return param


def _check_names(params: list[Param]) -> None:
    seen: set[str] = set()
    for param in params:
        if param.name in seen:
            raise Mistake(
                f"two parameters are called '{param.name}'",
                "names that differ (a single result is called 'out')",
                "rename one",
            )
        seen.add(param.name)
    if len(params) > 64:
        raise Mistake(f"{len(params)} arguments and results", "at most 64", "pass lists")
