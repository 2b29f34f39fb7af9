# SPDX-License-Identifier: Apache-2.0
"""A call that must be refused: how it is stated, which classes there are, and how it is checked."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from anyop.cases.draw import Drawer, Point
from anyop.cases.dtype_choices import DtypeChoice, dtype_choices
from anyop.cases.good_cases import Case
from anyop.cases.placed import Placed, raw
from anyop.cases.sizes import Shape
from anyop.cases.subject import Subject
from anyop.cases.values import build, place_outputs, result_shapes, shapes_of
from anyop.testing.check import CheckError

REMOVED = object()
# A message is for users: no path, no C++, nothing of another library's.
_FORBIDDEN = re.compile(
    r"/\w+/\w+|\.(?:cc|cpp|cu|h|hpp|so)\b|std::|c10::|at::|torch::Tensor|TORCH_|Check failed|INTERNAL ASSERT|"
    r"static_cast|\n"
)


@dataclass
class Refusal:
    """One bad call and what must come of it."""

    kind: str
    argument: (
        str | tuple[str, ...] | None
    )  # one of these must be named; None: the message has another subject
    label: str
    errors: tuple[type[Exception], ...]
    arguments: dict[str, Any]
    positional: tuple = ()
    context: Callable[[], Any] = contextlib.nullcontext
    watched: list[Placed] = field(default_factory=list)  # must stay untouched
    allocates: bool = True  # is also tried without out=
    call: Callable[[Callable], Any] | None = None  # instead of function(*positional, **arguments)
    is_torchs: bool = False  # the message is torch's own: that it names the operator is enough


class Good:
    """A good call of one operator from which bad ones are made: all arguments given, all sizes above 1."""

    def __init__(self, subject: Subject, choice: DtypeChoice | None = None) -> None:
        self.subject = subject
        self.choice = choice or dtype_choices(subject.metadata)[0]
        self.drawer = Drawer(subject.metadata, self.choice.names)
        point = self.drawer.solve()
        if point is None:
            raise LookupError(f"{subject.name}: no sizes satisfy its conditions; see [test]")
        self.case = self.case_at(point)

    def case_at(self, point: Point) -> Case:
        """The case of other sizes."""
        return Case("good", "base", self.choice, point)

    @cached_property
    def shapes(self) -> dict[str, Any]:
        """By tensor argument: its shape, or those of a list's elements."""
        return {
            p["name"]: shapes_of(p, self.case) if p["list"] else shapes_of(p, self.case)[0]
            for p in self.subject.tensors
        }

    @cached_property
    def result_shapes(self) -> dict[str, Shape]:
        """By result: its shape."""
        return result_shapes(self.subject, self.case)

    def integers(self, **changes: int) -> dict[str, int]:
        """The values of the integer arguments that sizes and conditions name."""
        names = self.drawer.symbols["attributes"]
        return {name: self.case.point.sizes.values[name] for name in names} | changes

    @property
    def texts(self) -> dict[str, str | None]:
        """The texts and dtypes that conditions compare."""
        return self.case.point.sizes.texts

    def arguments(self, /, **changes: Any) -> dict[str, Any]:
        """Fresh good arguments with some replaced, or removed."""
        merged = {**build(self.subject, self.case).arguments, **changes}
        return {name: value for name, value in merged.items() if value is not REMOVED}

    def arrays(self, name: str) -> list[np.ndarray | None]:
        """The arrays of a tensor argument; none for a result."""
        value = self.arguments().get(name, [])
        return value if isinstance(value, list) else [value]

    def with_arrays(self, arrays: dict[str, Any]) -> dict[str, Any]:
        """Fresh good arguments with these arrays; in a list one takes the place of the last element."""
        arguments = self.arguments()
        for name, array in arrays.items():
            before = arguments.get(name)
            arguments[name] = [*before[:-1], array] if isinstance(before, list) else array
        return arguments

    def outputs(self) -> dict[str, Placed]:
        """Fresh guarded results."""
        return place_outputs(self.subject, self.case)

    @cached_property
    def results(self) -> list[bytes]:
        """What the good call returns."""
        return self.run()

    def run(self) -> list[bytes]:
        """Makes the good call once more."""
        arguments = self.arguments()
        with np.errstate(all="ignore"):
            found = self.subject.function(**arguments)
        found = found if isinstance(found, tuple) else (found,)
        mutated = [arguments[name] for name in self.subject.metadata["mutated"]]
        arrays = [a for v in [*found, *mutated] for a in (v if isinstance(v, list) else [v])]
        return [raw(array) for array in arrays if array is not None]


@dataclass(frozen=True)
class RefusalClass:
    """One class of checks; applies says, without generating, whether an operator has any of it."""

    kind: str
    check: str  # as the list of checks words it
    make: Callable[[Good], Iterator[Refusal]]
    applies: Callable[[Subject], bool]


CLASSES: dict[str, RefusalClass] = {}


def refuses(kind: str, check: str, applies: Callable[[Subject], bool] = lambda subject: True):
    """Registers a generator of refusals as the class kind."""

    def add(make: Callable[[Good], Iterator[Refusal]]) -> Callable[[Good], Iterator[Refusal]]:
        assert kind not in CLASSES, kind
        CLASSES[kind] = RefusalClass(kind, check, make, applies)
        return make

    return add


def check_refusal(good: Good, refusal: Refusal) -> int:
    """Makes the bad call, with and without out=; CheckError when it is not refused as it should be. Returns calls."""
    calls = 0
    results = good.results  # before the first bad call
    if refusal.allocates:
        _check_call(good, refusal, refusal.arguments)
        calls += 1
    outputs = good.outputs() if refusal.call is None else {}
    given = {
        name: placed
        for name, placed in outputs.items()
        if name not in refusal.arguments and "out" not in refusal.arguments
    }
    if given or not refusal.allocates:
        arguments = {name: placed.array for name, placed in given.items()}
        if len(refusal.positional) > len(good.subject.inputs):
            arguments = {}  # results are among the positional ones
        _check_call(good, refusal, {**refusal.arguments, **arguments})
        calls += 1
    for placed in [*given.values(), *refusal.watched]:
        if not placed.is_untouched():
            raise _error(good, refusal, "a result was written although the call was refused")
    if good.run() != results:
        raise _error(good, refusal, "a good call gives another result afterwards")
    return calls


def _error(good: Good, refusal: Refusal, what: str) -> CheckError:
    return CheckError(f"{good.subject.name}: {refusal.kind}: {refusal.label}: {what}")


def _check_call(good: Good, refusal: Refusal, arguments: dict[str, Any]) -> None:
    wanted = " or ".join(error.__name__ for error in refusal.errors)
    function = good.subject.function
    try:
        with refusal.context(), np.errstate(all="ignore"):
            if refusal.call:
                refusal.call(function)
            else:
                function(*refusal.positional, **arguments)
    except Exception as error:
        if type(error) not in refusal.errors:
            text = f"raised {type(error).__name__}: {error}; expected {wanted}"
            raise _error(good, refusal, text) from error
        _check_message(good, refusal, str(error))
        return
    raise _error(good, refusal, f"was accepted, expected {wanted}")


def _check_message(good: Good, refusal: Refusal, message: str) -> None:
    if refusal.is_torchs and good.subject.metadata["name"] in message:
        return
    if not message.startswith(f"{good.subject.name}: "):
        raise _error(good, refusal, f"the message does not begin with the operator: {message}")
    body = message.removeprefix(f"{good.subject.name}: ")
    names = refusal.argument
    names = (names,) if isinstance(names, str) else names
    if names and not any(re.search(rf"(?<!\w){re.escape(n)}(?!\w)", body) for n in names):
        raise _error(good, refusal, f"the message names none of {names}: {message}")
    schema = good.subject.metadata["schema"]
    if found := _FORBIDDEN.search(message.replace(schema, "")):
        raise _error(good, refusal, f"the message shows {found[0]!r}: {message}")


def has(**wanted: Any) -> Callable[[Subject], bool]:
    """applies: some argument has these values in its metadata."""
    return lambda s: any(all(p.get(k) == v for k, v in wanted.items()) for p in s.inputs)


def several(s: Subject) -> bool:
    """Whether a call can have two tensors, which can differ."""
    return len(s.tensors) + len(s.results) > 1 or any(p["list"] for p in s.tensors)
