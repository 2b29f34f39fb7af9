# SPDX-License-Identifier: Apache-2.0
"""One operator as an adapter sees it: its arguments in every form of call."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Sequence
from operator import index
from typing import Any

import anyop
from anyop.adapter.constants import promoted, stated
from anyop.adapter.framework import Framework
from anyop.adapter.object_text import object_text


class Operator:
    """Its metadata, and all that follows from them, are read at the first use: most operators never have one."""

    def __init__(self, name: str, framework: Framework) -> None:
        self.name = name  # as anyop.metadata takes it and errors say it: "rms_norm", "acme.scale"
        self.framework = framework
        space, _, self.short = name.rpartition(".")
        self.namespace = space or "anyop"

    def __getattr__(self, attribute: str) -> Any:
        if not self.__dict__.get("is_read"):
            self.read()
        # Another thread may have read it since Python looked here in vain.
        if attribute in self.__dict__:
            return self.__dict__[attribute]
        raise AttributeError(f"{type(self).__name__} has no attribute {attribute}")

    def read(self) -> None:
        """Now, instead of at the first use."""
        self._read()
        self.is_read = True  # last: another thread may ask meanwhile

    def _read(self) -> None:
        self.metadata = anyop.metadata(self.name)
        self.function = getattr(getattr(anyop.ops, self.namespace), self.short)
        self.inputs, self.results = self.metadata["inputs"], self.metadata["results"]
        self.count = len(self.inputs)
        self.names = tuple(p["name"] for p in (*self.inputs, *self.results))
        self.index = {name: at for at, name in enumerate(self.names)}
        self.tensors = tuple(at for at, p in enumerate(self.inputs) if p["kind"] == "Tensor")
        self.promoted = promoted(self.metadata)
        self.numbers = stated(self.metadata)
        self.mutated = tuple(at for at in self.tensors if self.inputs[at]["mutated"])
        keyword_only = [at for at, p in enumerate(self.inputs) if p["keyword_only"]]
        self.positional = keyword_only[0] if keyword_only else self.count  # of the inputs
        self.keywords = self.names[self.positional : self.count]
        self.most_positional = self.positional if keyword_only else len(self.names)
        self.has_optional_results = any(p["optional"] for p in self.results)
        defaults = (self._default(param) for param in self.inputs)
        self.defaults = (*defaults, *(None for _ in self.results))
        self.optional = tuple(map(_may_be_none, self.inputs))

    def _default(self, param: dict[str, Any]) -> Any:
        """What stands for an argument that is not given."""
        if not param["has_default"]:
            absent = param["kind"] == "Tensor" and _may_be_none(param)
            return None if absent else _MISSING
        value = param["default"]
        many = isinstance(value, list)
        items = value if many else [value]
        if param["kind"] == "float":  # JSON has no infinity: it is text
            items = [float(item) if isinstance(item, str) else item for item in items]
        if param["kind"] == "ScalarType":
            items = [item if item is None else self.framework.to_dtype(item) for item in items]
        if param["fixed_count"] is not None and param["fixed_count"] >= 0 and not many:
            return value if value is None else items * param["fixed_count"]
        return items if many else items[0]

    def caller(self, unwanted: Sequence[str] = ()) -> Callable[..., Any]:
        """self.function of a sequence of all inputs, keywords written out: no dict is made for them in a call.

        unwanted: results that are not to be made.
        """
        inputs, function = (ast.Name(name, ast.Load()) for name in ("inputs", "function"))
        values: list[ast.expr] = [
            ast.Subscript(inputs, ast.Constant(at), ast.Load()) for at in range(self.count)
        ]
        named = [*map(ast.keyword, self.keywords, values[self.positional :])]
        named += [ast.keyword(name, ast.Constant(False)) for name in unwanted]
        call = ast.Call(function, values[: self.positional], named)
        arguments = ast.arguments([], [ast.arg("inputs")], None, [], [], None, [])
        written = ast.Expression(ast.Lambda(arguments, call))
        code = compile(ast.fix_missing_locations(written), "<call>", "eval")
        return eval(code, {"function": self.function})

    # ---- arguments ----

    def bind(self, args: tuple, kwargs: dict[str, Any]) -> list[Any]:
        """Values of all inputs, then of all results (None: not given), from any form of call of anyop.<op>."""
        if len(args) > self.most_positional:
            raise TypeError(
                f"{self.name}: got {len(args)} positional arguments, expected at most "
                f"{self.most_positional}: {self.metadata['schema']}"
            )
        values = [*args, *self.defaults[len(args) :]]
        given = set(self.names[: len(args)])
        for name, value in kwargs.items():
            if name == "out" and "out" not in self.index and len(self.results) > 1:
                self._spread(value, values)
            elif name not in self.index:
                raise TypeError(
                    f"{self.name}: there is no argument '{name}' in {self.metadata['schema']}"
                )
            elif name in given:
                raise TypeError(f"{self.name}: {name} is given twice")
            else:
                values[self.index[name]] = value
        for at in range(self.count):
            if values[at] is _MISSING:
                raise TypeError(
                    f"{self.name}: {self.names[at]} is missing in {self.metadata['schema']}"
                )
        return values

    def _spread(self, value: Any, values: list[Any]) -> None:
        """out=(a, b) for an operator with several results."""
        if value is None:
            return
        if not isinstance(value, tuple) or len(value) != len(self.results):
            raise TypeError(f"{self.name}: out must be a tuple of its {len(self.results)} results")
        for at, tensor in enumerate(value, self.count):
            if values[at] is not None:
                raise TypeError(f"{self.name}: {self.names[at]} is given twice")
            values[at] = tensor

    def rest(self, given: int) -> tuple | None:
        """Defaults of the inputs behind the first so many; None where one is missing or must be named."""
        rest = self.defaults[given : self.count]
        return None if given > self.most_positional or _MISSING in rest else rest

    def convert(self, at: int, value: Any) -> Any:
        """An attribute as the adapter passes it on; TypeError for what the C function refuses too."""
        param = self.inputs[at]
        if value is None and self.optional[at]:
            return None
        if self.numbers and not isinstance(value, (int, float)) and hasattr(value, "__dlpack__"):
            raise TypeError(
                f"{self.name}: {param['name']} is {object_text(value)}, expected {param['kind']}: reading it would "
                f"wait for its device; {', '.join(self.names[at] for at in self.numbers)} take tensors"
            )
        if not param["list"]:
            return self._scalar(param, value)
        if not isinstance(value, (list, tuple)):
            if param["fixed_count"] is None or param["fixed_count"] < 0:
                raise self._wrong(param, value)
            value = [value] * param["fixed_count"]
        return [self._scalar(param, item) for item in value]

    def convert_in_range(self, at: int, value: Any) -> Any:
        """The same for a program that is made now and run later: ValueError for what would be refused then."""
        found, param = self.convert(at, value), self.inputs[at]
        problem = _problem(param, found)
        if problem:
            raise ValueError(f"{self.name}: {param['name']} {problem}")
        return found

    def _scalar(self, param: dict[str, Any], value: Any) -> Any:
        kind = param["kind"]
        if kind == "ScalarType":
            if getattr(value, "isnative", True) is False:
                raise TypeError(
                    f"{self.name}: {param['name']} has its bytes swapped, expected the machine's order: "
                    'the dtype\'s .newbyteorder("=")'
                )
            if issubclass(type(value), str):
                value = str.__str__(value)  # as in C: its letters, whatever its own methods say
            elif isinstance(value, str):  # its __class__ lies
                raise self._wrong(param, value, self.framework.dtype_example)
            dtype = self.framework.to_dtype(value)
            if dtype is None:
                raise self._wrong(param, value, self.framework.dtype_example)
            return dtype
        if kind == "str":
            if not isinstance(value, str):
                raise self._wrong(param, value)
        elif kind == "bool":
            if not isinstance(value, self.framework.booleans):
                if type(value).__name__ not in ("bool", "bool_"):  # NumPy's
                    raise self._wrong(param, value)
                return bool(value)
        else:
            return self._number(param, value)
        return value

    def _number(self, param: dict[str, Any], value: Any) -> Any:
        """An int or a float. As in C, a subclass of them is its value, whatever its own methods say."""
        kind, own = param["kind"], type(value)  # its __class__ may lie
        known = self.framework.integers if kind == "int" else self.framework.floats
        if own in (bool, int, float) or not issubclass(own, (int, float)):
            if issubclass(own, known):
                return value
        elif issubclass(own, int if kind == "int" else float):
            return int.__index__(value) if kind == "int" else float.__float__(value)
        lossy = (issubclass(own, float) and kind == "int") or issubclass(own, (str, bytes))
        lossy = lossy or own.__name__.startswith("complex")
        if lossy or not hasattr(value, "__index__" if kind == "int" else "__float__"):
            raise self._wrong(param, value)
        try:
            return index(value) if kind == "int" else float(value)
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            is_own = error.__traceback__.tb_next and not hasattr(value, "__dlpack__")
            if is_own or isinstance(error, RecursionError):
                raise
            if isinstance(error, OverflowError):
                raise ValueError(
                    f"{self.name}: {param['name']} is out of the range of {kind}64"
                ) from None
            raise self._wrong(param, value) from None

    def _wrong(self, param: dict[str, Any], value: Any, expected: str = "") -> TypeError:
        listed = "a list of " if param["list"] else ""
        return TypeError(
            f"{self.name}: {param['name']} is {object_text(value)}, expected "
            f"{listed}{expected or param['kind']}"
        )


def _problem(param: dict[str, Any], value: Any) -> str | None:
    """What is wrong with a converted argument, as the C function says it."""
    if isinstance(value, list):
        fixed = param["fixed_count"]
        if fixed is not None and 0 <= fixed != len(value):
            return f"has {len(value)} values, expected {fixed}"
        return next(filter(None, (_problem(param, item) for item in value)), None)
    if param["kind"] == "int" and value is not None and not -(2**63) <= value < 2**63:
        return "is out of the range of int64"
    if param["kind"] == "float" and isinstance(value, int) and abs(value) > _LARGEST:
        return "is out of the range of float64"
    if isinstance(value, str):
        if "\0" in value:
            return "holds a NUL character"
        if any("\ud800" <= letter <= "\udfff" for letter in value):
            return "is no valid Unicode text"
    return None


class _Missing:
    def __repr__(self) -> str:
        return "<missing>"


_MISSING = _Missing()
_LARGEST = int(sys.float_info.max)


def _may_be_none(param: dict[str, Any]) -> bool:
    return param["optional"] and not (param.get("optional_elements") and not param["has_default"])
