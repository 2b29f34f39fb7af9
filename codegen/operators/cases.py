# SPDX-License-Identifier: Apache-2.0
"""The sections [test] and [bench]: which sizes and values the standard tests and benchmarks try."""

from __future__ import annotations

import math
import re
from typing import Any

from ..schema.binding import Binding
from ..schema.dtypes import DTYPES, dtype_name
from ..schema.expressions import Expr, letters, parse_expression, refuse_texts
from ..schema.operator_sections import BACKENDS, check_keys, section, text_of, texts_of
from ..schema.params import Param
from ..schema.source import Mistake, Source, listed, nearest

_KEYS = ("sizes", "values", "range", "rank", "sorted", "distinct", "finite")


def read_test(
    source: Source, inputs: list[Param], outputs: list[Param], binding: Binding
) -> dict[str, Any]:
    """[test] with its expressions parsed: sizes, values, range, rank; sorted, distinct and finite as they are."""
    table = section(source, "test")
    with source.at("test"):
        check_keys(table, _KEYS, "key of [test]")
    by_name = {param.name: param for param in inputs}
    attributes = [param.name for param in inputs if not param.is_tensor]
    ranged = [param.name for param in inputs if param.kind in ("Tensor", "int", "float")]
    known = {"sizes": binding.sizes, "values": attributes, "range": ranged, "rank": binding.groups}
    result: dict[str, Any] = {}
    for key, entries in table.items():
        with source.at("test", key):
            if key in ("sorted", "distinct", "finite"):
                result[key] = texts_of(entries, key)
                names = BACKENDS if key == "finite" else ranged
                check_keys(dict.fromkeys(result[key]), names, f"name in {key} of [test]")
                continue
            if not isinstance(entries, dict):
                raise Mistake(f"{key} is {entries!r}", "a table", "write it like { D = [1, 2] }")
            check_keys(entries, known[key], f"name in {key} of [test]")
            result[key] = {
                name: _test_values(key, name, values, by_name, binding)
                for name, values in entries.items()
            }
    return result


def _test_values(
    key: str, name: str, values: object, params: dict[str, Param], binding: Binding
) -> list[Any]:
    if not isinstance(values, list) or not values or (key == "range" and len(values) != 2):
        shape = "[low, high]" if key == "range" else "a list of at least one value"
        raise Mistake(f"{key} of '{name}' is {values!r}", shape, "correct it")
    if key == "rank":
        if not all(type(value) is int and 0 <= value <= 8 for value in values):
            raise Mistake(f"rank of '{name}' is {values!r}", "integers from 0 to 8", "correct it")
        return values
    if key == "values":
        return [_attribute_value(params[name], value, binding) for value in values]
    return [_number(f"{key} of '{name}'", value, binding, key == "range") for value in values]


def _number(what: str, value: object, binding: Binding, floats: bool) -> Expr | float:
    """A number, or an expression of letters."""
    if isinstance(value, str):
        expression = parse_expression(value)
        refuse_texts(expression, what)
        for letter in letters(expression):
            check_keys({letter: 0}, binding.symbols, "letter")
        return expression
    if type(value) is int or (floats and type(value) is float and math.isfinite(value)):
        return value
    raise Mistake(f"{what} has {value!r}", "numbers or expressions of letters", "correct it")


def _attribute_value(param: Param, value: object, binding: Binding) -> Any:
    if value == "None" and param.optional:
        return None
    if isinstance(value, list) and param.is_list:
        return value
    if param.is_list:
        raise Mistake(
            f"value {value!r} of '{param.name}'", f"lists of {param.kind}", "write [[...], [...]]"
        )
    if param.kind == "int":
        return _number(f"values of '{param.name}'", value, binding, False)
    if param.kind == "ScalarType" and isinstance(value, str):
        return dtype_name(value)
    types = {"float": (int, float), "bool": (bool,), "str": (str,)}.get(param.kind, ())
    if type(value) in types:
        return value
    raise Mistake(f"value {value!r} of '{param.name}'", f"one of type {param.kind}", "correct it")


def read_bench(source: Source, inputs: list[Param], binding: Binding) -> dict[str, dict[str, Any]]:
    """[bench]: `name = "B=64 D=8192 k=4 X=8x128 dtype=bfloat16"`.

    Where there is one group, letters that the schema lacks (B) are its sizes, in order.
    """
    cases = {}
    for name, value in section(source, "bench").items():
        with source.at("bench", name):
            cases[name] = _bench_case(text_of(value, name), inputs, binding)
    return cases


def _bench_case(text: str, inputs: list[Param], binding: Binding) -> dict[str, Any]:
    attributes = {param.name: param for param in inputs if not param.is_tensor}
    case: dict[str, Any] = {
        "text": text,
        "sizes": {},
        "groups": {},
        "attributes": {},
        "dtype": None,
    }
    for word in text.split():
        key, _, value = word.partition("=")
        if key in binding.sizes:
            case["sizes"][key] = _bench_sizes(word, value, 1)[0]
        elif key in binding.groups:
            case["groups"][key] = _bench_sizes(word, value, None)
        elif key in attributes:
            case["attributes"][key] = _bench_attribute(attributes[key], word, value, binding)
        elif key == "dtype" and value in DTYPES:
            case["dtype"] = value
        elif len(binding.groups) == 1 and re.fullmatch(r"[A-Za-z]\w*", key):
            case["groups"].setdefault(binding.groups[0], []).extend(_bench_sizes(word, value, 1))
        else:
            known = [*binding.sizes, *binding.groups, *attributes, "dtype"]
            raise Mistake(
                f"'{word}' in '{text}'",
                f"a value of {listed(known)}",
                nearest(key, known, 'write it like "B=64 D=8192"'),
            )
    missing = [letter for letter in binding.sizes if letter not in case["sizes"]]
    if missing:
        raise Mistake(
            f"no size for {listed(missing, 'and')} in '{text}'",
            "a value for every letter",
            f"add {missing[0]}=...",
        )
    return case


def _bench_sizes(word: str, value: str, count: int | None) -> list[int]:
    if not re.fullmatch(r"\d+(x\d+)*", value) or (count and "x" in value):
        raise Mistake(f"'{word}'", "a size such as D=8192, or X=8x128 for a group", "correct it")
    return [int(size) for size in value.split("x")]


def _bench_attribute(param: Param, word: str, value: str, binding: Binding) -> Any:
    plain = {"true": True, "false": False, "True": True, "False": False}
    if param.kind == "bool" and value in plain:
        return plain[value]
    if param.kind in ("str", "ScalarType"):
        return _attribute_value(param, value, binding)
    try:
        return int(value) if param.kind == "int" else float(value)
    except ValueError:
        raise Mistake(f"'{word}'", f"a value of type {param.kind}", "correct it") from None
