# SPDX-License-Identifier: Apache-2.0
"""Objects that are hostile in what Python asks of them: they raise, lie, call back, change other arguments."""

from __future__ import annotations

import contextlib
import gc
import sys
import time
from typing import Any

import numpy as np
from junk_draft import NOTHING, Draft, Place, Unfit, junk


class OneOf(tuple):
    """Several things that a value may stand for."""


class Hostile(Exception):
    """An error of the caller's own."""


class HostileBase(BaseException):
    """One that `except Exception` does not catch."""


class Silent(Exception):
    """One whose text cannot be had."""

    def __str__(self) -> str:
        raise ZeroDivisionError("no text")

    __repr__ = __str__


ERRORS = (
    Hostile, HostileBase, Silent, TypeError, ValueError, OverflowError, AttributeError, MemoryError, RecursionError,
    StopIteration, GeneratorExit, KeyboardInterrupt, SystemExit, SystemError, BufferError, NotImplementedError,
)  # fmt: skip
METHODS = (
    "__float__", "__index__", "__int__", "__complex__", "__trunc__", "__bool__", "__len__", "__getitem__", "__iter__",
    "__next__", "__eq__", "__hash__", "__str__", "__repr__", "__format__", "__fspath__", "__bytes__", "__call__",
    "__array__", "__dlpack__", "__dlpack_device__", "__buffer__", "__getattr__", "__torch_function__",
    "__jax_array__", "__array_ufunc__", "__array_function__", "__instancecheck__",
)  # fmt: skip
PROPERTIES = (
    "__class__", "__array_interface__", "__array_struct__", "__cuda_array_interface__", "__array_priority__",
    "__dlpack_c_exchange_api__", "__name__", "__module__", "name", "shape", "dtype", "device", "ndim",
    "strides", "data", "requires_grad", "aval", "place", "is_dense",
)  # fmt: skip
BASES = (object, int, float, str, list, tuple, dict, np.ndarray, np.float64, np.float32)
RETURNS = (
    None, "text", b"x", 2**80, -1, float("nan"), 1j, (), [], {}, (1, 0), (2, 0), (1,), ("cpu", 0), object(), 0, True,
    float, {"shape": (3,), "typestr": "<f4", "data": (0x10, False), "version": 3}, (2**70, -1), "float32",
)  # fmt: skip


def _good_value(draft: Draft, place: Place, good: Any, method: str) -> Any:
    """What a well-behaved object would answer."""
    array = good if isinstance(good, np.ndarray) else np.ones(3, np.float32)
    answers = {
        "__float__": lambda: float(good) if isinstance(good, (int, float)) else 0.5,
        "__index__": lambda: good if isinstance(good, int) else 1,
        "__bool__": lambda: bool(good) if isinstance(good, bool) else True,
        "__str__": lambda: good if isinstance(good, str) else "none",
        "__repr__": lambda: good if isinstance(good, str) else "none",
        "__len__": lambda: len(array) if array.ndim else 0,
        "__array__": lambda: array,
        "__dlpack__": array.__dlpack__,
        "__dlpack_device__": lambda: (1, 0),
        "__array_interface__": lambda: array.__array_interface__,
        "__array_struct__": lambda: array.__array_struct__,
        "__buffer__": lambda: memoryview(array),
        "name": lambda: "float32",
        "__name__": lambda: "float32",
        "shape": lambda: array.shape,
        "dtype": lambda: array.dtype,
    }
    answers["__int__"] = answers["__index__"]
    return answers.get(method, lambda: 1)()


def _change_others(draft: Draft) -> None:
    """Changes the other arguments while the call reads them: shapes, lists, what holds them."""
    for value in list(draft.arguments.values()) + draft.positional:
        if isinstance(value, np.ndarray) and type(value) is np.ndarray:
            with contextlib.suppress(Exception):
                value.shape = draft.dice.choice([(value.size,), (1, value.size), (*value.shape, 1)])
        elif isinstance(value, list) and value is not draft.arguments.get("(call)"):
            with contextlib.suppress(Exception):
                value.clear() if draft.dice.random() < 0.5 else value.extend(value[:50])
    for hook in draft.bridge.__dict__.get("changers", ()):
        hook(draft)


def _call_back(draft: Draft) -> None:
    """The operator itself, with good values."""
    from anyop import testing

    good = testing.Good(draft.subject)
    good.run()


def _behave(draft: Draft, place: Place, good: Any, method: str, itself: list) -> Any:
    """What a hostile method does when it is asked."""
    action = draft.action
    if action == "raise":
        raise draft.raising(draft.error("mine"))
    if action == "lie":
        return draft.lie
    if action == "itself":
        return itself[0]
    if action == "change" and not draft.busy:
        draft.busy = True
        _change_others(draft)
        draft.busy = False
    elif action == "call back":
        _call_back(draft)
    elif action == "collect":
        gc.collect()
    elif action == "yield":
        time.sleep(0.0001)
    elif action == "recurse":
        draft.may_recurse, draft.recursions = True, draft.recursions + 1
        if draft.recursions > 3000:  # a method that is asked twice a level would go on for years
            raise draft.raising(Hostile("mine"))
        try:
            draft.subject.function(*draft.positional, **draft.arguments)
        except RecursionError as error:
            raise draft.raising(error) from None
        except Exception as error:  # that call's own business
            raise draft.raising(error) from None
    elif action == "warn":
        sys.exc_info()
    return _good_value(draft, place, good, method)


ACTIONS = ("raise", "raise", "raise", "lie", "lie", "itself", "change", "change", "call back", "collect", "yield",
           "recurse", "warn")  # fmt: skip


def _make(draft: Draft, place: Place, good: Any, method: str, is_property: bool) -> Any:
    dice = draft.dice
    if method == "__torch_function__" and draft.bridge.name == "torch":
        raise Unfit  # what it gives is its own
    if not hasattr(draft, "action"):
        draft.action = dice.choice(ACTIONS)
        draft.error, draft.lie = dice.choice(ERRORS), dice.choice(RETURNS)
    base = dice.choice(BASES) if dice.random() < 0.4 else object
    itself: list = []

    def asked(self, *positional: Any, **named: Any) -> Any:
        return _behave(draft, place, good, method, itself)

    members: dict[str, Any] = {method: property(asked) if is_property else asked}
    if method == "__eq__":
        members["__hash__"] = lambda self: 1
    if method in ("__dlpack__", "__dlpack_device__"):
        other = "__dlpack__" if method == "__dlpack_device__" else "__dlpack_device__"
        members[other] = lambda self, **_: _good_value(draft, place, good, other)
    if method == "__torch_function__":
        members[method] = classmethod(asked)
    try:
        made = _instance(type("Junk", (base,), members), base, good)
    except BaseException:  # Python itself asks it
        raise Unfit from None
    itself.append(made)
    what = draft.error.__name__ if draft.action == "raise" else repr(draft.lie)
    draft.note(f"{base.__name__} whose {method} does: {draft.action} {what}")
    return draft.means(made, _stands_for(draft, place, good, method, made, base))


def _instance(kind: type, base: type, good: Any) -> Any:
    if base is np.ndarray:
        array = good if isinstance(good, np.ndarray) else np.ones(3, np.float32)
        return np.array(array).view(kind)
    if base in (list, tuple, dict):
        return kind()
    if base is str:
        return kind(good if isinstance(good, str) else "none")
    if base is object:
        return kind()
    return kind(good if isinstance(good, (int, float)) else 1)


def _stands_for(draft: Draft, place: Place, good: Any, method: str, made: Any, base: type) -> Any:
    """The value that a call may take it for."""
    kind = place.kind
    numbers = (int, float, np.float64, np.float32)
    if kind == "Tensor" and base is np.ndarray:
        return np.array(good) if isinstance(good, np.ndarray) else NOTHING
    if kind == "Tensor" and method in ("__dlpack__", "__dlpack_device__", "__buffer__"):
        lends = draft.action not in ("raise", "lie", "itself") or method == "__dlpack_device__"
        lent = np.array(good) if lends and isinstance(good, np.ndarray) else NOTHING
        return OneOf((lent, _of_base(kind, base, good)))  # NumPy's numbers lend themselves
    answers = {
        "float": ("__float__", "__index__"), "int": ("__index__",),
        "ScalarType": ("name", "__name__", "__str__", "__repr__"),
    }  # fmt: skip
    if draft.bridge.name == "jax":
        answers["ScalarType"] += ("dtype",)  # as jnp.float32 has one
    if method in answers.get(kind, ()):
        if draft.action in ("raise", "recurse"):
            return NOTHING if base is object else _of_base(kind, base, good)
        if draft.action == "itself":
            return _of_base(kind, base, good)
        if draft.action == "lie":
            return OneOf((_lie(draft, kind), _of_base(kind, base, good)))
        return OneOf((_good_value(draft, place, good, method), _of_base(kind, base, good)))
    if base in numbers or base is str:
        return _of_base(kind, base, good)
    return NOTHING


def _of_base(kind: str, base: type, good: Any) -> Any:
    value = good if isinstance(good, (int, float)) and not isinstance(good, bool) else 1
    if kind == "float" and base in (int, float, np.float64, np.float32):
        return float(base(value))
    if kind == "int" and base is int:
        return int(value)
    if kind == "str" and base is str:
        return good if isinstance(good, str) else "none"
    if kind == "ScalarType" and base is str:
        return good if isinstance(good, str) else NOTHING
    if kind == "Tensor" and base in (np.float64, np.float32):
        return np.array(base(value))
    return NOTHING


def _lie(draft: Draft, kind: str) -> Any:
    lie = draft.lie
    if kind == "float" and isinstance(lie, (int, float)):
        return float(lie)
    if kind == "int" and isinstance(lie, int):
        return int(lie)
    if kind == "ScalarType" and lie == "float32":
        return lie
    return NOTHING


def _register() -> None:
    for method in METHODS:
        junk("any", label=f"object with {method}")(
            lambda draft, place, good, method=method: _make(draft, place, good, method, False)
        )
    for name in PROPERTIES:
        junk("any", label=f"object with {name}")(
            lambda draft, place, good, name=name: _make(draft, place, good, name, True)
        )


_register()
