# SPDX-License-Identifier: Apache-2.0
"""Bad calls that concern how arguments are given: their number, names, types and the ranges of numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from anyop.adapter.constants import promoted, stated
from anyop.cases.dtype_choices import NAMES, made_here, numpy_dtype
from anyop.cases.subject import Subject
from anyop.testing.refusal import REMOVED, Good, Refusal, has, refuses

_TYPE, _VALUE = (TypeError,), (ValueError,)


def _type_refusal(good: Good, kind: str, name: str, value: Any) -> Refusal:
    label = f"{name}={_short(value)}"
    return Refusal(kind, name, label, _TYPE, good.arguments(**{name: value}))


def _short(value: Any) -> str:
    text = repr(value)
    return type(value).__name__ if len(text) > 40 else text


def _required(subject: Subject) -> list[str]:
    """Arguments that must be given: those without default, but optional tensors may be left out."""
    return [
        param["name"]
        for param in subject.inputs
        if not param["has_default"] and not (param["optional"] and not param["list"])
    ]


@refuses("missing", "arity", lambda s: bool(_required(s)))
def missing(good: Good) -> Iterator[Refusal]:
    """A required argument is not given."""
    for name in _required(good.subject):
        arguments = good.arguments(**{name: REMOVED})
        yield Refusal("missing", name, f"without {name}", _TYPE, arguments)
    yield Refusal("missing", _required(good.subject)[0], "without arguments", _TYPE, {})


@refuses("unknown keyword", "arity")
def unknown_keyword(good: Good) -> Iterator[Refusal]:
    """A keyword that is no argument: misspelt, in another case, private, empty."""
    known = {param["name"] for param in good.subject.inputs + good.subject.results}
    for name in ("nonsense", "", "é", "self", *(f"{name}_" for name in sorted(known))):
        arguments = good.arguments(**{name: 1})
        yield Refusal("unknown keyword", name or None, f"{name!r}", _TYPE, arguments)
    for name in sorted(known):
        if name.upper() not in known:
            arguments = good.arguments(**{name.upper(): 1})
            yield Refusal("unknown keyword", name.upper(), name.upper(), _TYPE, arguments)


def _positional(good: Good) -> list[tuple[str, Any]]:
    """Arguments that may be given by position, with their values."""
    arguments, found = good.arguments(), []
    for param in good.subject.inputs:
        if param["keyword_only"]:
            return found
        found.append((param["name"], arguments.get(param["name"], param["default"])))
    return found


@refuses("given twice", "arity", lambda s: not s.inputs[0]["keyword_only"])
def given_twice(good: Good) -> Iterator[Refusal]:
    """By position and by keyword."""
    positional = _positional(good)
    for at, (name, value) in enumerate(positional):
        before = dict(positional[: at + 1])
        arguments = {n: v for n, v in good.arguments().items() if n not in before} | {name: value}
        values = tuple(before.values())
        yield Refusal("given twice", name, name, _TYPE, arguments, positional=values)


@refuses("too many positional", "arity")
def too_many(good: Good) -> Iterator[Refusal]:
    """More values by position than arguments and results have places."""
    values = [value for _, value in _positional(good)]
    if len(values) == len(good.subject.inputs):
        values += [None] * len(good.subject.results)
    for extra in (1, 2, 100):
        given = (*values, *[None] * extra)
        label = f"{extra} too many"
        yield Refusal("too many positional", None, label, _TYPE, {}, positional=given)


_WRONG = {
    "Tensor": (3, 2.5, "text", True, object(), {}, {1}, np.float32, len, 1j, range(3), Ellipsis),
    "int": (1.5, np.float64(2), "3", [1], (), object(), 1j, b"1", np.arange(2), float("nan")),
    "float": ("1.0", [1.0], object(), 1j, b"1", {}, np.arange(2.0), "nan"),
    "bool": (1, 0, "True", 1.0, [True], object(), np.int64(1), np.array([True, False])),
    "str": (1, b"none", ["none"], object(), 1.5, True, ()),
    "ScalarType": (3, 2.5, object(), b"float32", ["float32"], {}, True, str, np.dtype("O"), len),
}
_WRONG_LISTS = (3.5, "12", object(), {}, {1, 2}, iter(()), True)


@refuses("wrong type", "types")
def wrong_type(good: Good) -> Iterator[Refusal]:
    """Values of another Python type, several for each argument."""
    may_be_numbers = {*promoted(good.subject.metadata), *stated(good.subject.metadata)}
    for at, param in enumerate(good.subject.inputs):
        name, kind = param["name"], param["kind"]
        if not param["list"]:
            for value in _WRONG[kind]:
                if at not in may_be_numbers or type(value) not in (bool, int, float):
                    yield _type_refusal(good, "wrong type", name, value)
            continue
        for value in _WRONG_LISTS:
            if param["fixed_count"] is None or not _is_kind(value, kind):
                yield _type_refusal(good, "wrong type", name, value)
        for value in _WRONG[kind][:5] if kind != "Tensor" else ():
            yield _type_refusal(good, "wrong type", name, [value] * (param["fixed_count"] or 1))


def _is_kind(value: Any, kind: str) -> bool:
    """One value stands for every element of int[2]."""
    numbers = {"int": (int, bool), "float": (int, float, bool), "bool": (bool,), "str": (str,)}
    return isinstance(value, numbers.get(kind, ()))


@refuses("None for a required one", "types", has(optional=False))
def none_given(good: Good) -> Iterator[Refusal]:
    """None where the schema has no '?'."""
    for param in good.subject.inputs:
        if not param["optional"]:
            yield _type_refusal(good, "None for a required one", param["name"], None)


def _takes(*kinds: str):
    return lambda s: any(param["kind"] in kinds for param in s.inputs)


@refuses("out of int64", "ranges of narrow integers", _takes("int"))
def integer_range(good: Good) -> Iterator[Refusal]:
    """Integers that int64 does not hold."""
    for param in good.subject.inputs:
        if param["kind"] == "int":
            for value in (2**63, -(2**63) - 1, 2**64, 10**30, -(10**30)):
                given = [value] * (param["fixed_count"] or 1) if param["list"] else value
                arguments = good.arguments(**{param["name"]: given})
                label = f"{param['name']}={_short(value)}"
                yield Refusal("out of int64", param["name"], label, _VALUE, arguments)


@refuses("out of float64", "ranges of narrow integers", _takes("float"))
def float_range(good: Good) -> Iterator[Refusal]:
    """Integers that float64 does not hold."""
    for param in good.subject.inputs:
        if param["kind"] == "float":
            for value in (10**400, -(10**400)):
                given = [value] * (param["fixed_count"] or 1) if param["list"] else value
                arguments = good.arguments(**{param["name"]: given})
                yield Refusal("out of float64", param["name"], "10**400", _VALUE, arguments)


@refuses("broken text", "types", _takes("str"))
def broken_text(good: Good) -> Iterator[Refusal]:
    """Text that is no UTF-8, or that C would cut short."""
    for param in good.subject.inputs:
        if param["kind"] == "str":
            for value in ("\ud800", "no\0ne", "\0"):
                given = [value] if param["list"] else value
                arguments = good.arguments(**{param["name"]: given})
                yield Refusal("broken text", param["name"], ascii(value), _VALUE, arguments)


def _listed_texts(subject: Subject) -> list[tuple[str, list[str]]]:
    values = (subject.metadata["test"] or {}).get("values", {})
    return [
        (param["name"], values[param["name"]])
        for param in subject.inputs
        if param["kind"] == "str" and not param["list"] and param["name"] in values
    ]


@refuses("unknown text", "types", lambda s: bool(_listed_texts(s)))
def unknown_text(good: Good) -> Iterator[Refusal]:
    """Words that the operator does not know; those that it knows are listed in [test]."""
    for name, known in _listed_texts(good.subject):
        for value in ("", "nonsense", known[0] + " ", known[0].upper() + "x", "ä" * 300):
            if value not in known:
                arguments = good.arguments(**{name: value})
                label = f"{name}={value[:20]!r}"
                yield Refusal("unknown text", name, label, _VALUE, arguments)


@refuses("unknown dtype", "dtype sets and equalities", _takes("ScalarType"))
def unknown_dtype(good: Good) -> Iterator[Refusal]:
    """Names that are no dtype, and dtypes that the argument's list lacks."""
    for param in good.subject.inputs:
        if param["kind"] != "ScalarType" or param["list"]:
            continue
        others = [name for name in NAMES if name not in param["possible_dtypes"]]
        for value in ("", "float33", "Float32", "flaot32", "float32 ", "<f4", "d", *others):
            yield _type_refusal(good, "unknown dtype", param["name"], value)
        for name in made_here(others):
            yield _type_refusal(good, "unknown dtype", param["name"], numpy_dtype(name))


@refuses("list for a tensor", "types", has(kind="Tensor", list=False))
def list_for_tensor(good: Good) -> Iterator[Refusal]:
    """A list, a tuple or nested numbers where one tensor belongs."""
    for param in good.subject.tensors:
        if not param["list"]:
            array = good.arguments()[param["name"]]
            for value in ([array], (array,), array.tolist(), []):
                if type(value) in (list, tuple):  # tolist of a 0-dimensional array is a number
                    yield _type_refusal(good, "list for a tensor", param["name"], value)


@refuses("tensor for a list", "types", has(list=True))
def tensor_for_list(good: Good) -> Iterator[Refusal]:
    """One array where a list belongs."""
    for param in good.subject.inputs:
        if param["list"] and param["fixed_count"] is None:
            for value in (np.zeros((2, 3), np.float32), np.arange(2)):
                yield _type_refusal(good, "tensor for a list", param["name"], value)


@refuses("count of a list", "types", lambda s: any(p["fixed_count"] for p in s.inputs))
def fixed_count(good: Good) -> Iterator[Refusal]:
    """int[2] with one or three values."""
    for param in good.subject.inputs:
        if param["fixed_count"]:
            value = (param["default"] or [1])[0]
            for count in (0, param["fixed_count"] - 1, param["fixed_count"] + 1):
                arguments = good.arguments(**{param["name"]: [value] * count})
                label = f"{param['name']} of {count}"
                yield Refusal("count of a list", param["name"], label, _VALUE, arguments)


@refuses("element of a list", "types", has(kind="Tensor", list=True))
def list_element(good: Good) -> Iterator[Refusal]:
    """An element that is no tensor."""
    for param in good.subject.tensors:
        if param["list"]:
            arrays = good.arguments()[param["name"]]
            for value in (
                3,
                "text",
                [arrays[0]],
                object(),
                *([] if param["optional_elements"] else [None]),
            ):
                changed = [*arrays[:-1], value]
                label = f"{param['name']}[-1]={_short(value)}"
                arguments = good.arguments(**{param["name"]: changed})
                yield Refusal("element of a list", param["name"], label, _TYPE, arguments)
