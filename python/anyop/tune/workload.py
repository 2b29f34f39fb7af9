# SPDX-License-Identifier: Apache-2.0
"""The kinds of calls to be tuned: read from a record of a run, or from shapes that are given."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import anyop
from anyop.testing.dtype_choices import NAMES, choices_here, result_dtypes
from anyop.testing.draw import Drawer
from anyop.testing.sizes import Misfit, Sizes, match, product, shape_of


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
        """"x float32 64x4096, weight float32 4096, k=10": what there is, in the schema's order."""
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
        shapes = {}
        for name, value in self.inputs.items():
            if isinstance(value, Spec):
                shapes[name] = value.shape
            elif isinstance(value, list):
                shapes[name] = [item.shape if isinstance(item, Spec) else None for item in value]
        integers = {name: self.inputs.get(name) for name in metadata["symbols"]["attributes"]}
        return match(metadata, shapes, integers)


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
    with open(path, encoding="utf-8", errors="replace") as lines:
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
        raise ValueError(f"{place}: found {str(counts)[:40]!r} as counts, expected numbers of calls")
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
    if not all(type(n) is int for n in numbers) or len(shape) != len(strides) or min(shape, default=0) < 0:
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


# ---- given shapes ----


def given_shapes(text: str, device: str) -> Kind:
    """The kind that "rms_norm: rows=2048 D=4096 dtype=float32" says, as in [bench] of a schema.

    X=8x128 is a group of sizes; device= and ints, floats, bools and texts of attributes may be said too.
    """
    operator, _, words = text.partition(":")
    operator = operator.strip()
    metadata = anyop.metadata(operator)
    said = _Said(metadata, text)
    for word in words.split():
        said.take(word)
    return kind_of(operator, said.device or device, said.as_bench(), text)


class _Said:
    """What the words of given shapes mean for an operator."""

    def __init__(self, metadata: dict[str, Any], text: str) -> None:
        self.text, self.device, self.dtype = text, None, None
        self.symbols = metadata["symbols"]
        self.attributes = {p["name"]: p for p in metadata["inputs"] if p["kind"] != "Tensor"}
        self.sizes: dict[str, int] = {}
        self.groups: dict[str, list[int]] = {}
        self.given: dict[str, Any] = {}

    def take(self, word: str) -> None:
        name, equals, value = word.partition("=")
        if not equals or not value:
            raise ValueError(f"'{word}' in '{self.text}': expected a name, = and a value")
        groups = self.symbols["groups"]
        if name in self.attributes:
            self.given[name] = _attribute(self.attributes[name], value, word)
        elif name in ("device", "dtype"):
            setattr(self, name, value)
        elif name in self.symbols["sizes"]:
            (self.sizes[name],) = _numbers(value, word, 1)
        elif name in groups:
            self.groups[name] = _numbers(value, word)
        elif len(groups) == 1 and name.isidentifier():
            self.groups.setdefault(groups[0], []).extend(_numbers(value, word))
        else:
            known = [*self.symbols["sizes"], *groups, *self.attributes, "dtype", "device"]
            raise ValueError(f"'{word}' in '{self.text}': there are {', '.join(known)}")

    def as_bench(self) -> dict[str, Any]:
        needed = [name for name, param in self.attributes.items() if not param["has_default"]]
        given = self.sizes.keys() | self.given.keys()
        if missing := [name for name in (*self.symbols["sizes"], *needed) if name not in given]:
            raise ValueError(f"'{self.text}' says nothing of {', '.join(missing)}")
        return {
            "sizes": self.sizes,
            "groups": self.groups,
            "attributes": self.given,
            "dtype": self.dtype,
        }


def _numbers(value: str, word: str, count: int | None = None) -> list[int]:
    parts = value.split("x")
    if not all(part.isdecimal() for part in parts) or count not in (None, len(parts)):
        raise ValueError(f"'{word}': expected a size such as D=8192, or X=8x128 for a group")
    return list(map(int, parts))


def _attribute(param: dict[str, Any], value: str, word: str) -> Any:
    try:
        plain = json.loads(value.lower() if param["kind"] == "bool" else value)
    except ValueError:
        plain = None if value == "None" else value
    kinds = {"int": int, "bool": bool, "float": (int, float), "str": str, "ScalarType": str}
    fits = isinstance(plain, kinds.get(param["kind"], list)) or (plain is None and param["optional"])
    if not fits:
        raise ValueError(f"'{word}': expected a value of type {param['kind']}")
    return plain


def bench_kinds(operator: str, device: str) -> Iterator[Kind]:
    """Those of the operator's [bench] section."""
    for name, stated in (anyop.metadata(operator)["bench"] or {}).items():
        yield kind_of(operator, device, stated, f"[bench] {name}")


def kind_of(operator: str, device: str, stated: dict[str, Any], place: str) -> Kind:
    """The kind of the call that sizes, groups, attributes and dtype state. ValueError where there is none."""
    metadata = anyop.metadata(operator)
    groups = {name: tuple(sizes) for name, sizes in stated["groups"].items()}
    point = Drawer(metadata).solve(stated["sizes"], groups, stated["attributes"])
    if point is None:
        raise ValueError(f"{operator}: {place}: its conditions do not allow these sizes")
    names = _dtypes(metadata, stated, f"{operator}: {place}")
    inputs = {}
    for param in metadata["inputs"]:
        name = param["name"]
        if param["kind"] == "Tensor":
            inputs[name] = _spec(param, names[name], point.sizes)
        else:
            inputs[name] = point.attributes.get(name, names.get(name) or param["default"])
    dtypes = result_dtypes(metadata, names)
    results = {p["name"]: _spec(p, dtypes[p["name"]][0], point.sizes) for p in metadata["results"]}
    return Kind(operator, device, inputs, results, 1, place)


def _dtypes(
    metadata: dict[str, Any], stated: dict[str, Any], what: str
) -> dict[str, str | None]:
    """The first combination with the dtype that is stated, with as many tensors of it as can be."""
    dtype, attributes = stated["dtype"], stated["attributes"]
    fitting = [
        choice.names
        for choice in choices_here(metadata)
        if dtype in (None, *choice.names.values())
        and all(choice.names[name] == attributes[name] for name in attributes if name in choice.names)
    ]
    if not fitting:
        raise ValueError(f"{what}: it takes no {dtype or 'such dtypes'} here")
    return max(fitting, key=lambda names: list(names.values()).count(dtype)) if dtype else fitting[0]


def _spec(param: dict[str, Any], dtype: str, sizes: Sizes) -> Any:
    def dense(shape: tuple[int, ...]) -> Spec:
        return Spec(dtype, shape, tuple(product(shape[d + 1 :]) for d in range(len(shape))))

    length = param["shape"]["length"]
    if not length:
        return dense(shape_of(param["shape"], sizes))
    count = len(sizes.elements[length])
    return [dense(shape_of(param["shape"], sizes.of_element(length, at))) for at in range(count)]


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
