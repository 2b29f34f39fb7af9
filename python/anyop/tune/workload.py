# SPDX-License-Identifier: Apache-2.0
"""The kinds of calls to be tuned: as a record of a run has them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import anyop
from anyop.cache.dependencies import open_regular
from anyop.cases.dtype_choices import NAMES
from anyop.cases.sizes import Misfit, Sizes, match, product


@dataclass(frozen=True)
class Spec:
    """All of a tensor but its values; strides in elements."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    inplace: str | None = None  # of a result: the argument that it is written over

    def __str__(self) -> str:
        return f"{self.dtype} {'x'.join(map(str, self.shape)) or 'scalar'}"


@dataclass
class Kind:
    """Calls of one operator that differ in nothing but values."""

    operator: str
    device: str
    inputs: dict[str, Any]  # Spec, list of Spec or None; attributes as they are
    results: dict[str, Spec | None]  # None: not wanted
    count: int
    place: str  # "run.jsonl:12"

    def __str__(self) -> str:
        """What there is, in the schema's order: "x float32 64x4096, weight float32 4096, k=10"."""
        words = []
        for name, value in self.inputs.items():
            if isinstance(value, Spec):
                words.append(f"{name} {value}")
            elif isinstance(value, list) and any(isinstance(item, Spec) for item in value):
                words.append(f"{name} {len(value)} tensors")
            elif value is not None:
                words.append(f"{name}={value}")
        return ", ".join(words)

    @property
    def key(self) -> str:
        """Equal for equal kinds."""
        return repr((self.operator, self.device, self.inputs, self.results))

    def sizes(self) -> Sizes:
        """Letters and groups; Misfit where the operator's schema is no longer that of the record."""
        metadata = anyop.metadata(self.operator)
        shapes: dict[str, Any] = {}
        for name, value in self.inputs.items():
            if isinstance(value, Spec):
                shapes[name] = value.shape
            elif isinstance(value, list):
                shapes[name] = [item.shape if isinstance(item, Spec) else None for item in value]
        integers = {name: self.inputs.get(name) for name in metadata["symbols"]["attributes"]}
        return match(metadata, shapes, integers, self._texts(metadata))

    def _texts(self, metadata: dict[str, Any]) -> dict[str, str | None]:
        """The texts and dtypes that conditions compare; defaults are not recorded."""
        found: dict[str, str | None] = {}
        defaults = {param["name"]: param.get("default") for param in metadata["inputs"]}
        for name in metadata["symbols"].get("texts", ()):
            tensor = self.inputs.get(name[len("dtype(") : -1])
            is_dtype = name.startswith("dtype(")
            found[name] = (
                (tensor.dtype if isinstance(tensor, Spec) else None)
                if is_dtype
                else self.inputs.get(name, defaults[name])
            )
        return found


def merged(kinds: Iterable[Kind]) -> list[Kind]:
    """Equal kinds as one, with the sum of their counts."""
    found: dict[str, Kind] = {}
    for kind in kinds:
        if kind.key in found:
            kind = replace(found[kind.key], count=found[kind.key].count + kind.count)
        found[kind.key] = kind
    return list(found.values())


# ---- records ----


def read_record(path: str | os.PathLike) -> tuple[list[Kind], list[str]]:
    """The kinds of calls in a record, and notes on what it lacks. ValueError with file and line."""
    kinds: dict[str, Kind] = {}
    counts: dict[str, Any] = {}
    with open(path, encoding="utf-8", errors="replace", opener=open_regular) as lines:
        for number, line in enumerate(lines, 1):
            place = f"{os.path.basename(os.fspath(path))}:{number}"
            row = _row(line, place)
            if "counts" in row:
                counts = row
            else:
                kinds[str(row.get("id"))] = _kind(row, place)
    if not kinds:
        raise ValueError(f"{os.fspath(path)}: no calls are recorded in it")
    return _counted(kinds, counts, os.fspath(path))


def _counted(kinds: dict[str, Kind], counts: dict, path: str) -> tuple[list[Kind], list[str]]:
    notes = []
    known = counts.get("counts", {})
    if not known:
        notes.append(f"{path} has no counts, for the run was killed early: each kind counts once")
    if counts.get("others"):
        notes.append(f"{path}: {counts['others']:,} calls of further kinds were not noted")
    for name, kind in kinds.items():
        kind.count = known.get(name, 1)
    return list(kinds.values()), notes


def _row(line: str, place: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{place}: no line of a record: {error}") from None
    if not isinstance(row, dict):
        raise ValueError(f"{place}: found {line.strip()[:40]!r}, expected a JSON object")
    counts = row.get("counts", {})
    good = isinstance(counts, dict) and all(type(n) is int and n > 0 for n in counts.values())
    if not good:
        raise ValueError(
            f"{place}: found {str(counts)[:40]!r} as counts, expected numbers of calls"
        )
    return row


def _kind(row: dict[str, Any], place: str) -> Kind:
    try:
        inputs = {name: _value(value) for name, value in row["inputs"].items()}
        results = {name: _value(value) for name, value in row["results"].items()}
        kind = Kind(str(row["operator"]), str(row["device"]), inputs, results, 1, place)
        for spec in results.values():
            if spec and spec.inplace and not isinstance(inputs[spec.inplace], Spec):
                raise TypeError(f"a result in place of {spec.inplace}")
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{place}: no call of an operator: {error!r}") from None
    _check(kind)
    return kind


def _value(value: Any) -> Any:
    if isinstance(value, list):
        return [_value(item) for item in value]
    if not isinstance(value, dict):
        return float(value) if value in ("inf", "-inf", "nan", "-nan") else value
    shape, strides = value["shape"], value["strides"]
    numbers = [*shape, *strides] if isinstance(shape, list) and isinstance(strides, list) else [""]
    if (
        not all(type(n) is int for n in numbers)
        or len(shape) != len(strides)
        or min(shape, default=0) < 0
    ):
        raise TypeError(f"shape {shape} with strides {strides}")
    if value["dtype"] not in NAMES:
        raise TypeError(f"dtype {value['dtype']}")
    return Spec(value["dtype"], tuple(shape), tuple(strides), value.get("inplace"))


def _check(kind: Kind) -> None:
    """ValueError where the call does not fit the operator as it is loaded here."""
    if kind.operator not in anyop.list_ops():
        return  # said later, with the option that loads it
    metadata = anyop.metadata(kind.operator)
    for what in ("inputs", "results"):
        known, found = [param["name"] for param in metadata[what]], list(getattr(kind, what))
        if known != found:
            raise ValueError(
                f"{kind.place}: {kind.operator} has the {what} {', '.join(found)} there, and "
                f"{', '.join(known)} here"
            )
    try:
        kind.sizes()
    except (Misfit, KeyError, TypeError) as error:
        raise ValueError(f"{kind.place}: {kind.operator} takes no such shapes: {error}") from None


def features(kind: Kind) -> dict[str, Any]:
    """What a route's condition can ask of such calls: numbers by their names there; names of dtypes."""
    symbols, sizes = anyop.metadata(kind.operator)["symbols"], kind.sizes()
    letters = [n for n in symbols["sizes"] if n not in symbols["element_sizes"]]
    found: dict[str, Any] = {
        name: sizes.values[name]
        for name in (*letters, *symbols["attributes"])
        if isinstance(sizes.values.get(name), int)
    }
    if "_" in sizes.groups:
        found["rows"] = product(sizes.groups["_"])
    tensors = [(name, v) for name, v in kind.inputs.items() if isinstance(v, Spec)]
    for name, spec in tensors:
        found["dtype" if name == tensors[0][0] else f"dtype({name})"] = spec.dtype
        found[f"numel({name})"] = math.prod(spec.shape)
        found[f"rank({name})"] = len(spec.shape)
        found[f"contiguous({name})"] = int(_is_contiguous(spec))
    return found


def _is_contiguous(spec: Spec) -> bool:
    step = 1
    for size, stride in zip(reversed(spec.shape), reversed(spec.strides)):
        if size not in (0, 1) and stride != step:
            return 0 in spec.shape
        step *= size
    return True
