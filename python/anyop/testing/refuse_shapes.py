# SPDX-License-Identifier: Apache-2.0
"""Bad arrays: shapes that the schema forbids, alone or together, and integers that do not fit them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from anyop.cases.dtype_choices import numpy_dtype
from anyop.cases.sizes import Misfit, Shape, letters_in, match
from anyop.cases.subject import Subject
from anyop.cases.values import build
from anyop.testing.places import tensors_of, with_array, zeros
from anyop.testing.refusal import Good, Refusal, refuses

_VALUE = (ValueError,)


def _tensor_names(s: Subject) -> tuple[str, ...]:
    return tuple(param["name"] for param in s.inputs)


def _misfits(good: Good, shapes: Mapping[str, Any]) -> bool:
    try:
        match(good.subject.metadata, {**good.shapes, **shapes}, good.integers(), good.texts)
    except Misfit:
        return True
    return False


def _with_shape(good: Good, kind: str, param: dict[str, Any], shape: Shape) -> Iterator[Refusal]:
    """A refusal when the oracle says that the shape does not fit; another argument may be the one that is named."""
    name = param["name"]
    if param["list"]:
        whole = [*good.shapes[name][:-1], shape]
        arrays: Any = [np.zeros(s, numpy_dtype(good.choice.names[name])) for s in whole]
        fits = not _misfits(good, {name: whole})
    else:
        arrays = np.zeros(shape, numpy_dtype(good.choice.names[name]))
        fits = not _misfits(good, {name: shape})
    if not fits:
        names, label = _tensor_names(good.subject), f"{name} {shape}"
        yield Refusal(kind, names, label, _VALUE, good.arguments(**{name: arrays}))


def _last_shape(good: Good, param: dict[str, Any]) -> Shape:
    shape = good.shapes[param["name"]]
    return shape[-1] if param["list"] else shape


@refuses("size", "symbolic shapes", lambda s: bool(_bound_twice(s) or _conditioned(s)))
def size(good: Good) -> Iterator[Refusal]:
    """One size more or less in every dimension, where that contradicts another one."""
    for param in good.subject.tensors:
        shape = _last_shape(good, param)
        for axis in range(len(shape)):
            for other in (shape[axis] - 1, shape[axis] + 1, 0, 1):
                if other not in (shape[axis], -1):
                    changed = (*shape[:axis], other, *shape[axis + 1 :])
                    yield from _with_shape(good, "size", param, changed)


def _conditioned(s: Subject) -> bool:
    """Whether a condition names letters."""
    letters = set(s.metadata["symbols"]["sizes"])
    stated = [condition["expression"] for condition in s.metadata["conditions"]]
    return any(letters & set(letters_in(expression)) for expression in stated)


def _fixed_rank(s: Subject) -> bool:
    return any(param["shape"]["before"] or param["shape"]["after"] for param in s.tensors)


def _bound_twice(s: Subject) -> list[str]:
    """Terms that are compared: a letter's second use, or more than a letter."""
    seen, found = set(), []
    for param in s.tensors:
        shape = param["shape"]
        terms = shape["before"] + shape["after"]
        found += [str(term) for term in terms if not isinstance(term, str) or shape["expand"]]
        names = [term for term in terms if isinstance(term, str)]
        names += [f"*{shape['group']}"] if isinstance(shape["group"], str) else []
        names += [f"[{shape['length']}]"] if shape["length"] else []
        for name in names:
            found += [name] if name in seen else []
            seen.add(name)
    return found


@refuses("rank", "rank", lambda s: _fixed_rank(s))
def rank(good: Good) -> Iterator[Refusal]:
    """Dimensions too few and too many."""
    for param in good.subject.tensors:
        shape = _last_shape(good, param)
        terms = len(param["shape"]["before"] + param["shape"]["after"])
        fewer = {shape[1:], shape[:-1], shape[: max(terms - 1, 0)], ()} - {shape}
        for changed in [*sorted(fewer), (1, *shape), (*shape, 1), (2, *shape), (1, 1, 1, *shape)]:
            yield from _with_shape(good, "rank", param, changed)


@refuses("more than 32 dimensions", "rank")
def rank_limit(good: Good) -> Iterator[Refusal]:
    """33 and 64 dimensions, which NumPy 2 has."""
    most = 64 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 32
    for param, shape, dtype, is_result in tensors_of(good):
        for ndim in (33, 64):
            if ndim <= most:
                placed = zeros(param, (1,) * (ndim - len(shape)) + shape, dtype, is_result)
                watched = [placed] if is_result else []
                label, array = f"of {ndim} dimensions", placed.array
                yield with_array(
                    good, "more than 32 dimensions", param, label, _VALUE, array, watched=watched
                )


@refuses("output shape", "symbolic shapes", lambda s: bool(s.results))
def output_shape(good: Good) -> Iterator[Refusal]:
    """A result of another shape is given."""
    for param in good.subject.results:
        shape = good.result_shapes[param["name"]]
        dtype = good.outputs()[param["name"]].array.dtype
        shapes = {(1, *shape), (*shape, 1), (*shape, 2), shape[1:], shape[:-1], (), shape[::-1]}
        for axis in range(len(shape)):
            for other in (shape[axis] - 1, shape[axis] + 1, 0, 1):
                shapes.add((*shape[:axis], other, *shape[axis + 1 :]))
        for changed in sorted(s for s in shapes - {shape} if min(s, default=0) >= 0):
            placed = zeros(param, changed, dtype, True)
            more = {"watched": [placed]}
            label = str(changed)
            yield with_array(good, "output shape", param, label, _VALUE, placed.array, **more)


@refuses("condition", "symbolic shapes", lambda s: bool(s.metadata["conditions"]))
def condition(good: Good) -> Iterator[Refusal]:
    """Sizes and integers that break one condition."""
    for at, stated in enumerate(good.subject.metadata["conditions"]):
        for _ in range(8):
            point = good.drawer.solve(breaks=at, wild=True)
            if point is None:
                continue
            arguments = build(good.subject, good.case_at(point)).arguments
            names = (*_tensor_names(good.subject), stated["text"])
            label = f"{stated['text']} {point.sizes.values} {point.sizes.groups}"
            yield Refusal("condition", names, label, _VALUE, arguments, allocates=True)


def _integer_attributes(s: Subject) -> list[str]:
    return s.metadata["symbols"]["attributes"]


@refuses("extreme integer", "symbolic shapes", lambda s: bool(_integer_attributes(s)))
def extreme_integer(good: Good) -> Iterator[Refusal]:
    """Negative and huge integers, where sizes or conditions forbid them."""
    for name in _integer_attributes(good.subject):
        for value in (-1, -2, -9, 9, 10**6, 2**31, 2**32 + 1, 2**62, 2**63 - 1, -(2**31), -(2**63)):
            try:
                integers = good.integers(**{name: value})
                match(good.subject.metadata, good.shapes, integers, good.texts)
            except Misfit:
                names = (*_tensor_names(good.subject), name)
                label = f"{name}={value}"
                arguments = good.arguments(**{name: value})
                yield Refusal("extreme integer", names, label, _VALUE, arguments)


@refuses("broadcast", "symbolic shapes", lambda s: bool(s.metadata["symbols"]["joins"]))
def broadcast(good: Good) -> Iterator[Refusal]:
    """Leading sizes that do not broadcast together."""
    pairs = (
        ((2, 3), (2,)),
        ((3,), (4,)),
        ((0,), (2,)),
        ((2, 3), (3, 3)),
        ((5, 1), (2, 7)),
        ((2,), (0, 3)),
    )
    symbols = good.subject.metadata["symbols"]
    for join in symbols["joins"]:
        for first, second in zip(join, join[1:]):
            for shapes in pairs:
                changed = {}
                for param in good.subject.tensors:
                    shape, name = param["shape"], param["name"]
                    if shape["group"] in (first, second) and not shape["expand"]:
                        kept = good.shapes[name]
                        before, after = len(shape["before"]), len(shape["after"])
                        middle = shapes[shape["group"] == second]
                        tail = kept[len(kept) - after :]
                        changed[name] = (*kept[:before], *middle, *tail)
                if _misfits(good, changed):
                    arrays = {
                        name: np.zeros(shape, numpy_dtype(good.choice.names[name]))
                        for name, shape in changed.items()
                    }
                    names, arguments = tuple(changed), good.arguments(**arrays)
                    yield Refusal("broadcast", names, str(shapes), _VALUE, arguments)


@refuses("lists of two lengths", "symbolic shapes", lambda s: bool(_paired_lists(s)))
def list_length(good: Good) -> Iterator[Refusal]:
    """Lists that are walked together, one shorter or longer."""
    for name in _paired_lists(good.subject):
        arrays = good.arguments()[name]
        for changed in (arrays[:-1], [*arrays, arrays[-1]], []):
            label = f"{name} of {len(changed)}"
            arguments = good.arguments(**{name: changed})
            names = tuple(_paired_lists(good.subject))
            yield Refusal("lists of two lengths", names, label, _VALUE, arguments)


def _paired_lists(s: Subject) -> list[str]:
    lengths = [param["shape"]["length"] for param in s.tensors]
    return [
        p["name"]
        for p in s.tensors
        if p["list"] and not p["optional"] and lengths.count(p["shape"]["length"]) > 1
    ]
