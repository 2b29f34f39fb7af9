# SPDX-License-Identifier: Apache-2.0
"""Kinds of calls that nobody recorded: from shapes that are given, or from the [bench] sections of schemas."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import anyop
from anyop._nearest import did_you_mean
from anyop.cases.draw import Drawer
from anyop.cases.dtype_choices import choices_here, result_dtypes
from anyop.cases.sizes import Sizes, product, shape_of
from anyop.tune.workload import Kind, Spec


def given_shapes(text: str, device: str) -> Kind:
    """The kind that "rms_norm: rows=2048 D=4096 dtype=float32" says, as in [bench] of a schema.

    X=8x128 is a group of sizes, weight=None leaves an optional tensor out; device= and ints, floats, bools and texts
    of attributes may be said too. dtype is that of the tensors, and of the result only where the operator must be told.
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
        self.attributes = {
            p["name"]: p
            for p in metadata["inputs"]
            if p["kind"] != "Tensor" and not (p["name"] == "dtype" and p["optional"])
        }
        self.optional = [
            p["name"] for p in metadata["inputs"] if p["kind"] == "Tensor" and p["optional"]
        ]
        self.absent: set[str] = set()
        self.sizes: dict[str, int] = {}
        self.groups: dict[str, list[int]] = {}
        self.given: dict[str, Any] = {}

    def take(self, word: str) -> None:
        name, equals, value = word.partition("=")
        if not equals or not value:
            raise ValueError(f"'{word}' in '{self.text}': expected a name, = and a value")
        groups = self.symbols["groups"]
        known = [*self.symbols["sizes"], *groups, *self.attributes, *self.optional]
        known += ["dtype", "device"]
        if name in self.attributes:
            self.given[name] = _attribute(self.attributes[name], value, word)
        elif name in self.optional and value == "None":
            self.absent.add(name)
        elif name in ("device", "dtype"):
            setattr(self, name, value)
        elif name in self.symbols["sizes"]:
            (self.sizes[name],) = _numbers(value, word, 1)
        elif name in groups:
            self.groups[name] = _numbers(value, word)
        elif len(groups) == 1 and name.isidentifier() and value[0].isdigit():
            self.groups.setdefault(groups[0], []).extend(_numbers(value, word))
        else:
            text = f"'{word}' in '{self.text}': there are {', '.join(known)}"
            raise ValueError(text + did_you_mean(name, known))

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
            "absent": self.absent,
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
    kinds: dict[str, Any] = {
        "int": int,
        "bool": bool,
        "float": (int, float),
        "str": str,
        "ScalarType": str,
    }
    fits = isinstance(plain, kinds.get(param["kind"], list)) or (
        plain is None and param["optional"]
    )
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
    names = _dtypes(metadata, stated, f"{operator}: {place}")
    point = Drawer(metadata, names).solve(stated["sizes"], groups, stated["attributes"])
    if point is None:
        raise ValueError(f"{operator}: {place}: its conditions do not allow these sizes")
    inputs = {}
    for param in metadata["inputs"]:
        name = param["name"]
        if name in stated.get("absent", ()):
            inputs[name] = None
        elif param["kind"] == "Tensor":
            inputs[name] = _spec(param, names[name], point.sizes)
        else:
            inputs[name] = point.attributes.get(name, names.get(name) or param["default"])
    dtypes = result_dtypes(metadata, names)
    results = {p["name"]: _spec(p, dtypes[p["name"]][0], point.sizes) for p in metadata["results"]}
    return Kind(operator, device, inputs, results, 1, place)


def _dtypes(
    metadata: dict[str, Any], stated: dict[str, Any], what: str
) -> Mapping[str, str | None]:
    """The first combination with the dtype that is stated, with as many tensors of it as can be."""
    dtype, attributes = stated["dtype"], stated["attributes"]
    fitting = [
        choice.names
        for choice in choices_here(metadata)
        if dtype in (None, *choice.names.values())
        and all(
            choice.names[name] == attributes[name] for name in attributes if name in choice.names
        )
    ]
    if not fitting:
        all_names = [choice.names for choice in choices_here(metadata)]
        known = {name for names in all_names for name in names.values() if name}
        asked = [dtype, *(attributes[name] for name in attributes if name in all_names[0])]
        unknown = next((word for word in asked if word and word not in known), None)
        near = did_you_mean(unknown, known) if unknown else ""
        raise ValueError(f"{what}: it takes no {unknown or dtype or 'such dtypes'} here{near}")
    tensors = [param["name"] for param in metadata["inputs"] if param["kind"] == "Tensor"]
    return max(fitting, key=lambda names: sum(names[name] == dtype for name in tensors))


def _spec(param: dict[str, Any], dtype: str, sizes: Sizes) -> Any:
    def dense(shape: tuple[int, ...]) -> Spec:
        return Spec(dtype, shape, tuple(product(shape[d + 1 :]) for d in range(len(shape))))

    length = param["shape"]["length"]
    if not length:
        return dense(shape_of(param["shape"], sizes))
    count = len(sizes.elements[length])
    return [dense(shape_of(param["shape"], sizes.of_element(length, at))) for at in range(count)]
