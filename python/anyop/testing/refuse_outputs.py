# SPDX-License-Identifier: Apache-2.0
"""Bad results: no arrays, read-only, elements or memory that overlap, tuples of the wrong form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from anyop.cases.placed import GUARD_BYTES, OUTPUT_FILL, Placed
from anyop.cases.sizes import Shape
from anyop.cases.subject import Subject
from anyop.testing.places import tensors_of, with_array, zeros
from anyop.testing.refusal import Good, Refusal, refuses

_TYPE, _VALUE = (TypeError,), (ValueError,)


def _has_results(s: Subject) -> bool:
    return bool(s.results)


def _writes(s: Subject) -> bool:
    return bool(s.results or s.metadata["mutated"])


@refuses("output type", "types", _has_results)
def output_type(good: Good) -> Iterator[Refusal]:
    """A result that is no array."""
    for param in good.subject.results:
        for value in (3, "out", object(), {}, True, np.float32, range(2)):
            label = type(value).__name__
            yield with_array(good, "output type", param, label, _TYPE, value, allocates=False)
        if not param["optional"]:
            yield with_array(good, "output type", param, "False", _TYPE, False, allocates=False)
        array = good.outputs()[param["name"]].array
        for value in ([array], (array,)):
            if isinstance(value, list) or len(good.subject.results) == 1:
                label = f"in a {type(value).__name__}"
                yield with_array(good, "output type", param, label, _TYPE, value, allocates=False)


def _out_is_tuple(s: Subject) -> bool:
    """out= stands for all results; not where one of several is named so."""
    return len(s.results) > 1 and all(p["name"] != "out" for p in (*s.inputs, *s.results))


@refuses("tuple of outputs", "arity", _out_is_tuple)
def output_tuple(good: Good) -> Iterator[Refusal]:
    """out= of several results: wrong count, a list, one array, or a result given twice."""
    outputs = [placed.array for placed in good.outputs().values()]
    names = [param["name"] for param in good.subject.results]
    if not _out_is_tuple(good.subject):
        return
    for label, value in (
        ("one less", tuple(outputs[:-1])),
        ("one more", (*outputs, None)),
        ("a list", outputs),
        ("one array", outputs[0]),
        ("empty", ()),
    ):
        arguments = good.arguments(out=value)
        yield Refusal("tuple of outputs", "out", label, _TYPE, arguments, allocates=True)
    for name, array in zip(names, outputs):
        arguments = good.arguments(out=tuple(outputs), **{name: array})
        label = f"out and {name}"
        yield Refusal("tuple of outputs", name, label, _TYPE, arguments, allocates=True)


def _written(good: Good) -> Iterator[tuple[dict[str, Any], Shape, np.dtype]]:
    for param, shape, dtype, is_result in tensors_of(good):
        if is_result or param["mutated"]:
            yield param, shape, dtype


@refuses("read-only output", "read-only memory", _writes)
def read_only(good: Good) -> Iterator[Refusal]:
    """Arrays that must not be written."""
    for param, shape, dtype in _written(good):
        placed = zeros(param, shape, dtype, True)
        placed.array.flags.writeable = False
        watched = [placed]
        array = placed.array
        yield with_array(
            good, "read-only output", param, "read-only", _VALUE, array, watched=watched
        )


def _writes_several(s: Subject) -> bool:
    """Elements of one tensor."""
    written = [param for param in s.tensors if param["mutated"]] + s.results
    return any(param["shape"]["text"] not in ("", "1") for param in written)


@refuses("overlapping elements", "overlap of outputs with inputs", _writes_several)
def overlapping_elements(good: Good) -> Iterator[Refusal]:
    """Results whose elements share memory: stride 0, or steps shorter than a row."""
    for param, shape, dtype in _written(good):
        for axis in range(len(shape)):
            if shape[axis] < 2:
                continue
            for step in (0, dtype.itemsize):
                placed = zeros(param, shape, dtype, True)
                strides = list(placed.array.strides)
                if strides[axis] == step:
                    continue
                strides[axis] = step
                array = np.ndarray(shape, dtype, placed.memory.data, placed.offset, tuple(strides))
                watched = [Placed(array, placed.memory, placed.offset, OUTPUT_FILL)]
                label = f"strides {array.strides}"
                yield with_array(
                    good, "overlapping elements", param, label, _VALUE, array, watched=watched
                )


def _together(
    first: tuple[Shape, np.dtype], second: tuple[Shape, np.dtype], distance: int
) -> tuple[np.ndarray, np.ndarray]:
    """Two arrays in one memory; the second begins distance bytes behind the first."""
    size = sum(
        int(np.prod(shape, dtype=np.int64)) * dtype.itemsize for shape, dtype in (first, second)
    )
    memory = np.zeros(8192 + 2 * GUARD_BYTES + 2 * size + abs(distance), np.uint8)
    base = -memory.ctypes.data % 4096 + 4096 * (1 + abs(distance) // 4096) * (distance < 0)
    memory = (
        memory
        if base + size + abs(distance) < memory.size
        else np.zeros(base + 2 * size + 8192, np.uint8)
    )
    base += -(memory.ctypes.data + base) % 4096
    return (
        np.ndarray(first[0], first[1], memory.data, base),
        np.ndarray(second[0], second[1], memory.data, base + distance),
    )


def _distances(near: int, near_item: int, far: int, far_item: int) -> Iterator[int]:
    """Distances at which a second array of far bytes overlaps a first one of near bytes."""
    step = max(near_item, far_item)
    for distance in (step, near - near % step - step, -(far - far % step - step), -step):
        if -far < distance < near and distance:
            yield distance


@refuses(
    "output over an input",
    "overlap of outputs with inputs",
    lambda s: _writes(s) and bool(s.tensors),
)
def input_overlap(good: Good) -> Iterator[Refusal]:
    """A result that covers part of an argument."""
    for param, shape, dtype in _written(good):
        for other, other_shape, other_dtype, is_result in tensors_of(good):
            if is_result or other is param:
                continue
            near = int(np.prod(other_shape, dtype=np.int64)) * other_dtype.itemsize
            far = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            for distance in _distances(near, other_dtype.itemsize, far, dtype.itemsize):
                a, b = _together((other_shape, other_dtype), (shape, dtype), distance)
                arguments = good.with_arrays({other["name"]: a, param["name"]: b})
                label = f"{param['name']} {distance} bytes behind {other['name']}"
                names = (param["name"],)
                yield Refusal("output over an input", names, label, _VALUE, arguments)


@refuses("exactly an input", "overlap of outputs with inputs", lambda s: bool(_not_inplace(s)))
def exactly_an_input(good: Good) -> Iterator[Refusal]:
    """A result that begins where an argument does, and the schema does not allow it."""
    for param, shape, dtype in _written(good):
        for other, other_shape, other_dtype, is_result in tensors_of(good):
            if is_result or other is param:
                continue
            same = other_shape == shape and other_dtype == dtype
            # Of lists a written one may be; else a result.
            if same and other["inplace"] and bool(param.get("mutated")) == bool(other["list"]):
                continue
            a, b = _together((other_shape, other_dtype), (shape, dtype), 0)
            arguments = good.with_arrays({other["name"]: a, param["name"]: b})
            label = f"{param['name']} at {other['name']}"
            yield Refusal("exactly an input", param["name"], label, _VALUE, arguments)


def _not_inplace(s: Subject) -> list[str]:
    """Arguments at whose place no result may be."""
    if not s.results:
        return []
    return [p["name"] for p in s.tensors if not p["inplace"]]


@refuses("outputs over each other", "overlap of outputs with inputs", lambda s: len(s.results) > 1)
def outputs_overlap(good: Good) -> Iterator[Refusal]:
    """Two results in one memory."""
    results = [row for row in tensors_of(good) if row[3]]
    for at, (param, shape, dtype, _) in enumerate(results):
        for other, other_shape, other_dtype, _ in results[:at]:
            near = int(np.prod(other_shape, dtype=np.int64)) * other_dtype.itemsize
            for distance in {0, near - near % 16 - 16} if near >= 32 else {0}:
                a, b = _together((other_shape, other_dtype), (shape, dtype), distance)
                arguments = good.with_arrays({other["name"]: a, param["name"]: b})
                names = (param["name"], other["name"])
                label = f"{param['name']} {distance} bytes behind {other['name']}"
                yield Refusal("outputs over each other", names, label, _VALUE, arguments)
