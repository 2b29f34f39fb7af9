# SPDX-License-Identifier: Apache-2.0
"""Asks the router what calls would run, by tensors without memory: no device need be here."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from itertools import count
from typing import Any, NamedTuple

import anyop
from anyop._load import core
from anyop.tune.stated_kinds import kind_of
from anyop.tune.workload import Kind, Spec

_DEVICES = {"cpu": 1, "cuda": 2, "hip": 10}
_APART = 1 << 36  # bytes between tensors that are not there


class Call(NamedTuple):
    """What is asked: an operator on a device with a dtype, at sizes that have a name."""

    operator: str
    device: str
    dtype: str
    sizes: str


class Answer(NamedTuple):
    """What runs, None when nothing does, and the rule that says so."""

    chosen: str | None
    reason: str


def about(pattern: str) -> dict[str, Any]:
    """The operators that fit a pattern, and the rules in force that concern them, first to last."""
    found = json.loads(core.rules_about(pattern, []))
    return {**found, "operators": [n for n in anyop.list_ops() if n in set(found["operators"])]}


def compared(rules: list[dict[str, Any]]) -> set[tuple[str, int]]:
    """(name of a size, group or argument, number) of all words of their conditions that compare one."""
    return {(name, value) for rule in rules for name, value in rule["numbers"]}


Numbers = Collection[tuple[str, int]]


def calls(operators: list[str], devices: list[str], numbers: Numbers) -> dict[Call, dict[str, Any]]:
    """The arguments for all dtypes, at base sizes, those of [bench] and those around these numbers."""
    return {
        call: arguments(kind)
        for operator in operators
        for device in devices
        for call, kind in _kinds(operator, device, numbers)
    }


def ask(calls: dict[Call, dict[str, Any]]) -> dict[Call, Answer]:
    """The answers to these calls, by the rules in force."""
    return {call: _explain(call.operator, given) for call, given in calls.items()}


def _kinds(operator: str, device: str, numbers: Numbers) -> Iterator[tuple[Call, Kind]]:
    metadata = anyop.metadata(operator)
    stated = {"": {"sizes": {}, "groups": {}, "attributes": {}}}
    stated.update(
        {f"[bench] {name}": dict(case) for name, case in (metadata["bench"] or {}).items()}
    )
    for name, value in numbers:
        for near in (value - 1, value, value + 1):
            part = _part(metadata, name, near)
            if part:
                stated[f"{name}={near}"] = {**stated[""], **part}
    first = next((p for p in metadata["inputs"] if p["kind"] == "Tensor" and p["dtypes"]), None)
    for sizes, case in stated.items():
        for dtype in _dtypes(first):
            try:
                kind = kind_of(operator, device, {**case, "dtype": dtype}, sizes)
            except (ValueError, LookupError):
                continue  # conditions of the schema forbid it
            yield Call(operator, device, dtype or "", sizes), kind


def _dtypes(first: dict[str, Any] | None) -> list[str | None]:
    return list(first["possible_dtypes"]) if first else [None]


def _part(metadata: dict[str, Any], name: str, value: int) -> dict[str, Any]:
    """Where a size of this name has this value; empty when the operator has none."""
    symbols = metadata["symbols"]
    group = "_" if name == "rows" else name
    if name in symbols["sizes"] and value >= 0:
        return {"sizes": {name: value}}
    if name in symbols["attributes"]:
        return {"attributes": {name: value}}
    if group in symbols["groups"] and value >= 0:
        return {"groups": {g: [value] for g in symbols["groups"]}}
    return {}


def arguments(kind: Kind) -> dict[str, Any]:
    """All arguments but the results; tensors have no memory."""
    addresses = count(_APART, _APART)

    def tensor(value: Any) -> Any:
        if isinstance(value, list):
            return [tensor(item) for item in value]
        return _Absent(value, kind.device, next(addresses)) if isinstance(value, Spec) else value

    return {name: tensor(value) for name, value in kind.inputs.items() if value is not None}


def _explain(operator: str, given: dict[str, Any]) -> Answer:
    try:
        explained = anyop.explain(operator, **given)
    except (NotImplementedError, ValueError, TypeError) as error:
        return Answer(None, str(error))
    return Answer(explained.chosen, explained.reason)


def _Absent(spec: Spec, device: str, address: int) -> Any:  # noqa: N802
    import numpy as np

    from anyop.testing.dlpack import DlpackArray, dtype_code

    where = (_DEVICES[device], 0)
    none = np.zeros(1, np.uint8)
    return DlpackArray(
        none, shape=spec.shape, strides=spec.strides, dtype=dtype_code(spec.dtype), device=where, data=address
    )  # fmt: skip
