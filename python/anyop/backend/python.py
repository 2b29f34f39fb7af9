# SPDX-License-Identifier: Apache-2.0
"""Python callables as implementations: `run` as core calls it, and those that stand in operators' schema files.

A callable gets all inputs in the schema's order, by keyword those that it takes only so. It may lack a keyword-only
one of the schema: a call that gives it another value than its default is an error then. One that has parameters named
as the results gets their places (None for a result that nobody wants) and writes them; what another one returns, an
array or a tuple of arrays, is copied there.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from anyop import _operators
from anyop._paths import is_installed
from anyop.adapter.dtypes import NAMES
from anyop.backend.arrays import FRAMEWORKS, Numpy, Torch
from anyop.backend.sources import load_source

Run = Callable[[tuple, int, int, int], None]

_REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Signature:
    """How a callable is to be called for an operator. Raises TypeError where it cannot be."""

    def __init__(self, op: str, function: Callable) -> None:
        metadata = _operators.metadata(op)
        inputs = [param["name"] for param in metadata["inputs"]]
        self.lacks: dict[str, Any] = {}  # inputs that it does not take, and their defaults
        self.what = f"{op}: {describe(function)}"
        self.results = [result["name"] for result in metadata["results"]]
        self.dtypes = [p["kind"] == "ScalarType" for p in metadata["inputs"]]
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):  # compiled code that does not say: all by position
            self.by_keyword, self.writes = [None] * len(inputs), False
            return
        found = signature.parameters
        only = {name for name, param in found.items() if param.kind is param.KEYWORD_ONLY}
        if not any(param.kind in _REST for param in found.values()):
            self.lacks = {
                param["name"]: param["default"]
                for param in metadata["inputs"]
                if param["keyword_only"] and param["has_default"] and param["name"] not in found
            }
        only |= self.lacks.keys()
        self.by_keyword = [name if name in only else None for name in inputs]
        places = [name for name in self.results if name in found and name not in inputs]
        self.writes = bool(places)
        self._check(op, signature, inputs, places)

    def _check(self, op, signature, inputs, places) -> None:
        if places and places != self.results:
            missing = ", ".join(name for name in self.results if name not in places)
            raise TypeError(
                f"{self.what} has no parameter {missing}: it takes places for all results or none"
            )
        by_position = [name for name, key in zip(inputs, self.by_keyword) if key is None]
        keywords = dict.fromkeys(
            name for name in (*self.by_keyword, *places) if name and name not in self.lacks
        )
        try:
            signature.bind(*by_position, **keywords)
        except TypeError as error:
            expected = ", ".join(inputs) or "none"
            raise TypeError(
                f"{self.what} does not take the arguments of {op} ({expected}): {error}"
            ) from None

    def leave_out(self, keywords: dict[str, Any]) -> None:
        """Takes what the callable lacks out of the keywords. Raises NotImplementedError where a value matters."""
        for name, default in self.lacks.items():
            value = keywords.pop(name)
            if value != default:
                raise NotImplementedError(
                    f"{self.what} takes no {name}, which is {value!r}, expected {default!r}"
                )


def describe(function: Callable) -> str:
    """`my_norm (file.py:12)`."""
    name = getattr(function, "__name__", None) or type(function).__name__
    return f"{name} ({source_of(function)})"


def source_of(function: Callable) -> str:
    """File and line of a callable; its module where it has no source."""
    inner = inspect.unwrap(function) if callable(function) else function
    inner = getattr(inner, "py_func", inner)  # numba's
    code = getattr(getattr(inner, "__func__", inner), "__code__", None)
    if code is None and not isinstance(inner, type):
        code = getattr(type(inner).__call__, "__code__", None)
    if code is None:
        return getattr(inner, "__module__", None) or type(inner).__module__
    return f"{code.co_filename}:{code.co_firstlineno}"


def missing(modules: Sequence[str]) -> str | None:
    """Why modules cannot be imported: the first that is missing. "module:package" where pip calls it otherwise."""
    for needed in modules:
        name, _, package = needed.partition(":")
        if not package:
            name = package = name.partition(".")[0]
        if sys.modules.get(name) is None and not is_installed(name):
            return f"needs {name}, which is not installed (pip install {package})"
    return None


def runner(op: str, function: Callable, framework: str, needs: Sequence[str] = ()) -> Run | str:
    """What core calls; or why the callable cannot run here."""
    try:
        why = missing([framework, *needs])
        return why or _runner(function, FRAMEWORKS[framework](), Signature(op, function))
    except ImportError as error:
        return f"needs {framework}, which cannot be imported: {error}"
    except TypeError as error:
        return str(error)


def _runner(function: Callable, arrays: Numpy, how: Signature) -> Run:
    count, names = len(how.by_keyword), how.results

    def convert(value: Any, is_dtype: bool) -> Any:
        if isinstance(value, list):
            return [convert(item, is_dtype) for item in value]
        if is_dtype and value is not None:
            return arrays.dtype(NAMES[value] if isinstance(value, int) else value)
        return arrays.take(value) if hasattr(value, "data_ptr") else value

    def run(values: tuple, device_type: int, device_id: int, stream: int) -> None:
        with arrays.scope(device_type, device_id, stream):
            positional, keywords = [], {}
            for value, key, is_dtype in zip(values, how.by_keyword, how.dtypes):
                if key is None:
                    positional.append(convert(value, is_dtype))
                else:
                    keywords[key] = convert(value, is_dtype)
            how.leave_out(keywords)
            if how.writes:
                _write(function, arrays, positional, keywords, dict(zip(names, values[count:])))
            else:
                found = function(*positional, **keywords)
                _put(function, arrays, dict(zip(names, values[count:])), found)

    if isinstance(arrays, Torch) and how.writes and not how.lacks:
        run.__dict__["direct"] = function, (*how.by_keyword, *names)  # see kernel_values.h
    return run


def _write(
    function: Callable, arrays: Numpy, positional: list, keywords: dict, views: dict[str, Any]
) -> None:
    """Calls what writes its results."""
    places = {name: None if view is None else arrays.place(view) for name, view in views.items()}
    apart = {n: arrays.new(v) for n, v in views.items() if v is not None and places[n] is None}
    function(*positional, **keywords, **{**places, **apart})
    for name, array in apart.items():
        arrays.put(views[name], array)


def _put(function: Callable, arrays: Numpy, views: dict[str, Any], found: Any) -> None:
    """Copies what a callable returned; an error where it does not fit, never a broadcast or a cast."""
    if not views:
        return
    found = found if isinstance(found, (tuple, list)) else (found,)
    if len(found) != len(views):
        raise _wrong(ValueError, function, f"{len(found)} results", ", ".join(views))
    for (name, view), array in zip(views.items(), found):
        if view is None:
            continue
        if not arrays.is_array(array):
            what = f"a {type(array).__name__} for {name}"
            raise _wrong(TypeError, function, what, "an array")
        if tuple(array.shape) != tuple(view.shape):
            what = f"{name} of shape {tuple(array.shape)}"
            raise _wrong(ValueError, function, what, tuple(view.shape))
        dtype = arrays.dtype_name(array)
        if dtype != view.dtype:
            raise _wrong(TypeError, function, f"{name} of {dtype}", view.dtype)
        arrays.put(view, array)


def _wrong(kind: type[Exception], function: Callable, found: str, expected: object) -> Exception:
    return kind(f"{describe(function)} returned {found}, expected {expected}")


def provide(op: str, text: str) -> Run | str:
    """The provider of form "python": a function of a file that stands in an operator's schema."""
    form = json.loads(text)
    needs = form.get("needs") or []
    try:
        why = missing([form["framework"], *needs])
        if why:
            return why
        module = load_source(op, form["file"], form["source"])
        return runner(op, getattr(module, form["function"]), form["framework"], needs)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        return missing([package]) or f"{form['file']} cannot be loaded: {error}"
    except Exception as error:  # whatever the file does when it is run
        return f"{form['file']} cannot be loaded: {type(error).__name__}: {error}"
