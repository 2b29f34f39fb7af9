# SPDX-License-Identifier: Apache-2.0
"""All of ATen for every framework: ``anyop.aten.add(x, y, alpha=2)``, with torch's own overload resolution.

Operators are those of the torch that is installed. Torch is imported when the first one is asked for.
"""

from __future__ import annotations

import operator as _operator
from typing import Any

from anyop.aten import _table

__all__ = ["call", "metadata", "overloads", "resolve", "schema"]  # operators are found by dir()


def call(name: str, /, *args: Any, **kwargs: Any) -> Any:
    """Call an operator by its name: "add", or one overload: "add.Tensor", "sum.default"."""
    return _function(name)(*args, **kwargs)


def resolve(name: str, /, *args: Any, **kwargs: Any) -> str:
    """Which overload the same call takes: "add.Tensor". Nothing runs. Raises TypeError where none fits."""
    _check(name)
    return str(_core().aten_resolve(_plain(name), args, kwargs))


def schema(name: str) -> str:
    """Torch's text of one overload: "add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"."""
    return str(_table.overload(name)["schema"])


def overloads(name: str) -> list[str]:
    """The overloads of an operator in the order in which torch tries them: ["add.Tensor", "add.Scalar", …]."""
    _check(name)
    known = _table.schemas()[_plain(name).partition(".")[0]]
    return [text[: text.index("(")] for text in known]


def metadata(name: str) -> dict[str, Any]:
    """What the schema of one overload says, taken apart, and whether it can be called from here (docs/aten.md)."""
    return _table.overload(name)


_functions: dict[str, Any] = {}


def _function(name: str) -> Any:
    found = _functions.get(name)
    if found is None:
        _check(name)
        found = _functions[name] = _core().aten_function(_plain(name))
    return found


def _core() -> Any:
    from anyop.aten._open import opened

    return opened()


def _plain(name: str) -> str:
    return name.removeprefix("aten::")


def _check(name: str) -> None:
    if "." in _plain(name):
        _table.overload(name)
    elif _plain(name) not in _table.schemas():
        raise LookupError(_table.unknown(_plain(name)))


def __getattr__(name: str) -> Any:
    # Python and tools ask a module for __path__, __wrapped__ …; ATen has __and__, __lshift__ …
    special = name.startswith("__") and not hasattr(_operator, name)
    if special or name not in _table.schemas():
        text = "" if special else f": {_table.unknown(name)}"
        raise AttributeError(f"module 'anyop.aten' has no attribute {name!r}{text}")
    globals()[name] = _function(name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*__all__, *_table.schemas()})
