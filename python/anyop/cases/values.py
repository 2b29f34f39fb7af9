# SPDX-License-Identifier: Apache-2.0
"""Arrays for a case: values drawn with a fixed seed, laid out as the case says; and the same in float64."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anyop.cases.dtype_choices import is_floating, numpy_dtype, result_dtypes
from anyop.cases.good_cases import Case
from anyop.cases.placed import OUTPUT_FILL, Placed, place, place_values
from anyop.cases.sizes import Shape, Sizes, evaluate, product, shape_of
from anyop.cases.subject import Subject


@dataclass
class Built:
    """The arguments of a case: what is passed, and what is watched."""

    arguments: dict[str, Any]  # by name, in the schema's order; absent ones are not in it
    placed: dict[str, list[Placed]] = field(default_factory=dict)  # of each tensor argument
    mutated: frozenset[str] = frozenset()

    def snapshot(self) -> dict[str, list[bytes]]:
        """All bytes of the tensor arguments' memory."""
        return {name: [p.memory.tobytes() for p in placed] for name, placed in self.placed.items()}


def build(subject: Subject, case: Case) -> Built:
    """Draws and lays out the arguments of a case."""
    seed = zlib.crc32(f"{subject.name} {case.choice} {case.label}".encode())
    generator = np.random.default_rng(seed)
    built = Built({}, mutated=frozenset(subject.metadata["mutated"]))
    for param in subject.inputs:
        name = param["name"]
        if param["kind"] != "Tensor":
            dtype = case.choice.names.get(name)
            if name in case.choice.names and (dtype is not None or not param["has_default"]):
                built.arguments[name] = dtype
            elif name in case.point.attributes:
                built.arguments[name] = case.point.attributes[name]
            continue
        if name in case.absent:
            continue
        elements = []
        for index, shape in enumerate(shapes_of(param, case)):
            if param["optional_elements"] and index % 3 == 1:
                continue  # None
            values = draw(subject, param, case, shape, generator)
            elements.append(
                place_values(values, case.layouts.get(name, "plain"), param["alignment"])
            )
        built.placed[name] = elements
        arrays = [placed.array for placed in elements]
        if param["optional_elements"]:
            for index in range(1, len(shapes_of(param, case)), 3):
                arrays.insert(index, None)
        built.arguments[name] = arrays if param["list"] else arrays[0]
    return built


def shapes_of(param: dict[str, Any], case: Case) -> list[Shape]:
    """The shape of a tensor argument; of a list those of its elements."""
    shape, sizes = param["shape"], case.point.sizes
    if not shape["length"]:
        expanded = case.expanded.get(param["name"])
        return [shape_of(shape, sizes) if expanded is None else expanded]
    count = len(sizes.elements[shape["length"]])
    return [shape_of(shape, sizes.of_element(shape["length"], at)) for at in range(count)]


def draw(
    subject: Subject,
    param: dict[str, Any],
    case: Case,
    shape: Shape,
    generator: np.random.Generator,
) -> np.ndarray:
    """Values of one tensor: normal, or from the range that [test] names, in order where it says so; integers small."""
    name = case.choice.names[param["name"]]
    dtype = numpy_dtype(name)
    test = subject.metadata["test"] or {}
    bounds = test.get("range", {}).get(param["name"])
    if bounds:
        bounds = [b if isinstance(b, float) else evaluate(b, case.point.sizes) for b in bounds]
    if is_floating(name):
        return _draw_floats(shape, dtype, bounds, case.special, generator)
    if name == "bool":
        return generator.integers(0, 2, shape).astype(bool)
    low, high = bounds or ((0, 9) if name.startswith("u") else (-8, 9))
    if high <= low:  # an empty range, as of an index into a table without rows
        return np.zeros(shape, dtype)
    if param["name"] in test.get("distinct", ()):
        values = (low + generator.permutation(high - low)[: product(shape)]).reshape(shape)
    else:
        values = generator.integers(low, high, shape)
    values = values.astype(dtype)
    return np.sort(values) if param["name"] in test.get("sorted", ()) else values


def _draw_floats(shape, dtype, bounds, special, generator) -> np.ndarray:
    if bounds:
        values = generator.uniform(*bounds, shape)
    else:
        values = generator.standard_normal(shape)
    if dtype.kind == "c":
        values = values + 1j * generator.standard_normal(shape)
    elif special and values.size and not bounds:
        values = np.array(values)
        places = generator.permutation(values.size)
        for place_at, value in zip(places, (np.nan, np.inf, -np.inf, 0.0, -0.0)):
            values.reshape(-1)[place_at] = value
    return np.asarray(values).astype(dtype)


def in_float64(value: Any) -> Any:
    """What the reference gets: floating arrays as float64 (complex128), everything else as it is; always a copy."""
    if isinstance(value, list) and value and isinstance(value[0], (np.ndarray, type(None))):
        return [in_float64(item) for item in value]
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.kind in "bui":
        return np.array(value)
    return value.astype(np.complex128 if value.dtype.kind == "c" else np.float64)


def reference_arguments(subject: Subject, built: Built) -> dict[str, Any]:
    """The arguments of `reference`, all by name: absent ones are None, defaults stand for attributes not given."""
    found = {}
    for param in subject.inputs:
        name = param["name"]
        value = built.arguments.get(name, param["default"])
        found[name] = in_float64(value)
        if isinstance(value, str) and param["kind"] == "float":
            found[name] = float(value)  # JSON writes infinities as text
    return found


def result_shapes(subject: Subject, case: Case) -> dict[str, Shape]:
    """The shape of every result."""
    sizes = _sizes_of_given(subject, case)
    return {param["name"]: shape_of(param["shape"], sizes) for param in subject.metadata["results"]}


def _sizes_of_given(subject: Subject, case: Case) -> Sizes:
    """Those of the case, without groups that only absent arguments have: broadcasts leave them out."""
    sizes = case.point.sizes
    bound = {
        param["shape"]["group"]
        for param in subject.tensors
        if param["name"] not in case.absent and isinstance(param["shape"]["group"], str)
    }
    groups = {name: shape for name, shape in sizes.groups.items() if name in bound}
    return Sizes(sizes.values, groups, sizes.elements, sizes.texts)


def place_outputs(subject: Subject, case: Case, fill: int = OUTPUT_FILL) -> dict[str, Placed]:
    """Guarded memory for out=."""
    dtypes = result_dtypes(subject.metadata, case.names)
    shapes = result_shapes(subject, case)
    placed = {}
    for param in subject.metadata["results"]:
        name = param["name"]
        kind = case.layouts.get(name, "offset")
        shape = shapes[name]
        dtype = numpy_dtype(dtypes[name][0])
        placed[name] = place(shape, dtype, kind, fill, param["alignment"])
    return placed
