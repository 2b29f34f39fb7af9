# SPDX-License-Identifier: Apache-2.0
"""Makes calls, right ones and wrong ones, of names that have several overloads: for torch's values and for NumPy's."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class Both:
    """One value, as torch's user gives it and as NumPy's."""

    torch: Any
    numpy: Any


def same(value: Any) -> Both:
    return Both(value, value)


def tensor(array: np.ndarray) -> Both:
    return Both(torch.from_numpy(array), array)


def several(*values: Both, kind: type = list) -> Both:
    return Both(kind(value.torch for value in values), kind(value.numpy for value in values))


F = tensor(np.ones((2, 3), np.float32))
TENSORS = (
    F,
    tensor(np.array(2.5, np.float32)),
    tensor(np.arange(3)),
    tensor(np.ones((2, 3), bool)),
)
TENSORS += (tensor(np.array(2)), tensor(np.ones((), np.complex64)), tensor(np.zeros((0, 2))))
NONE = same(None)
INTS = (same(0), same(1), same(-1), Both(2, np.int64(2)), Both(1, np.int32(1)))
FLOATS = (same(0.5), same(float("nan")), same(2.0), Both(2.5, np.float64(2.5)))
BOOLS = (same(True), same(False), Both(True, np.bool_(True)))
NUMBERS = (*INTS, *FLOATS, *BOOLS, same(1 + 2j), Both(0.25, np.float32(0.25)))
TEXTS = (same("mean"), same("none"), same("floor"), same("N"))
DTYPES = (same(torch.float32), same(torch.int64), NONE)
DEVICES = (same(torch.device("cpu")), Both(torch.device("cpu"), "cpu"), NONE)
# A name stands for a dtype where no overload of the operator takes a text.
NAMED_DTYPES = (Both(torch.float64, "float64"), Both(torch.int32, np.dtype(np.int32)))
NAMED_DTYPES += (Both(torch.bool, np.bool_), Both(torch.complex64, "torch.complex64"))
INT_LISTS = (same([1]), same((0, 1)), same([]), same([1, 2, 3]), same(torch.Size([2, 3])))
INT_LISTS += (Both([1, 2], [np.int64(1), 2]), same([-1]))
WRONG = (
    same(object()),
    same({}),
    same([[1]]),
    same(2**70),
    same(b"x"),
    same([1.5]),
    same(["a", 1]),
)
WRONG += (same([None]), same([True]), same(slice(1)), same({1}), same([1, "a"]), same(range(2)))
LISTS_OF_TENSORS = (several(F, F), several(F), same([]), several(*TENSORS[:3], kind=tuple))

BY_TYPE = {
    "Tensor": TENSORS,
    "number": NUMBERS,
    "int": INTS,
    "float": FLOATS + INTS[:2],
    "complex": (same(1 + 2j),),
    "bool": BOOLS,
    "str": TEXTS,
    "ScalarType": DTYPES[:2],
    "Layout": (same(torch.strided),),
    "MemoryFormat": (same(torch.contiguous_format), same(torch.preserve_format)),
    "Device": DEVICES[:2],
    "Generator": (NONE,),
    "List[Tensor]": LISTS_OF_TENSORS,
    "List[Optional[Tensor]]": (several(F, NONE), several(NONE, tensor(np.arange(2))), same([])),
    "List[number]": (same([1, 2.5]), same([True]), same([])),
    "List[int]": INT_LISTS,
    "List[float]": (same([1.0, 2.5]), same((1, 2)), same([])),
    "List[bool]": (same([True, False]), same((True, False, True)), same([])),
    "List[str]": (several(*TEXTS[:2]),),
}
EVERYTHING = (
    NONE,
    *TENSORS,
    *NUMBERS,
    *TEXTS[:1],
    *DTYPES[:1],
    *INT_LISTS,
    *LISTS_OF_TENSORS,
    *WRONG,
)


@dataclass(frozen=True)
class Call:
    args: tuple[Both, ...]
    kwargs: dict[str, Both]

    def values(self, of: str) -> tuple[tuple, dict]:
        kwargs = {name: getattr(value, of) for name, value in self.kwargs.items()}
        return tuple(getattr(value, of) for value in self.args), kwargs

    def __str__(self) -> str:
        args, kwargs = self.values("numpy")
        return ", ".join([*map(brief, args), *(f"{name}={brief(v)}" for name, v in kwargs.items())])


def brief(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(brief, value)) + "]"
    return repr(value)


def names_of_several() -> list[str]:
    """Names with more than one overload in the dispatcher."""
    found: dict[str, int] = {}
    for full in torch._C._dispatch_get_all_op_names():
        if full.startswith("aten::"):
            name = full.removeprefix("aten::").split(".")[0]
            found[name] = found.get(name, 0) + 1
    return sorted(name for name, count in found.items() if count > 1)


class Maker:
    """Calls of one name, the same in every run."""

    def __init__(self, name: str):
        self.random = random.Random(name)
        overloads = torch._C._jit_get_operation(f"aten::{name}")[1]
        self.schemas = [torch._C._get_schema(f"aten::{name}", overload) for overload in overloads]
        types = {str(a.real_type) for schema in self.schemas for a in schema.arguments}
        self.texts = any("str" in text for text in types)

    def calls(self, per_overload: int) -> Iterator[Call]:
        for schema in self.schemas:
            for number in range(per_overload):
                call = self.good(schema, number)
                yield call if number < 3 else self.changed(call)

    def value(self, argument) -> Both:
        text = str(argument.real_type)
        if text.startswith("Optional["):
            if self.random.random() < 0.3:
                return NONE
            text = text[len("Optional[") : -1]
        found = BY_TYPE.get(text, (NONE,))
        if text == "ScalarType" and not self.texts:
            found += NAMED_DTYPES
        if text == "List[int]" and argument.N and self.random.random() < 0.3:
            return self.random.choice((same([1] * argument.N), same(1)))
        return self.random.choice(found)

    def good(self, schema, number: int) -> Call:
        """All arguments; those without defaults; all by keyword; else as it falls."""
        args, kwargs = [], {}
        for argument in schema.arguments:
            left_out = number == 1 or (number > 2 and self.random.random() < 0.4)
            if argument.has_default_value() and left_out:
                continue
            by_name = argument.kwarg_only or number == 2 or bool(kwargs)
            by_name = by_name or (number > 2 and self.random.random() < 0.15)
            if by_name:
                kwargs[argument.name] = self.value(argument)
            else:
                args.append(self.value(argument))
        return Call(tuple(args), kwargs)

    def changed(self, call: Call) -> Call:
        """One value is another, is missing or is one too many."""
        args, kwargs = list(call.args), dict(call.kwargs)
        places = [*range(len(args)), *kwargs]
        how = self.random.random()
        if how < 0.2 or not places:
            kwargs["no_such" if how < 0.1 else "dim"] = self.random.choice(INTS)
        elif how < 0.3:
            args.append(self.random.choice(EVERYTHING))
        else:
            place = self.random.choice(places)
            held = args if isinstance(place, int) else kwargs
            if how < 0.4:
                del held[place]
            else:
                held[place] = self.random.choice(EVERYTHING)
        return Call(tuple(args), kwargs)
