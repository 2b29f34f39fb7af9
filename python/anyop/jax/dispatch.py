# SPDX-License-Identifier: Apache-2.0
"""Where a call of anyop.<op> goes when its tensors are JAX's: traced into a program, or run as a compiled function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from anyop._scope import now
from anyop.adapter.object_text import object_text
from anyop.adapter.operators import Operator
from anyop.jax import scope
from anyop.jax.call_site import Site
from anyop.jax.framework import is_array, is_traced
from anyop.jax.primitive import bind, compiled

Entry = Callable[[tuple, dict[str, Any]], Any]

entries: dict[str, Entry] = {}  # by the operator's name
_PLAIN = (float, int, bool, str, type(None))
_KEPT_SITES = 64  # of one operator


def slow_call(way: str, name: str, args: tuple, kwargs: dict[str, Any]) -> Any:
    """What the C function calls when a tensor is JAX's; it sees no difference between its ways here."""
    return entries[name](args, kwargs)


def call_by_name(name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """An operator by the name that anyop.metadata takes."""
    return entries[name](tuple(args), kwargs)


def install(operator: Operator) -> None:
    """Make the entry of one operator."""
    entries[operator.name] = Eager(operator)


def call(operator: Operator, args: tuple, kwargs: dict[str, Any]) -> tuple[Any, Site | None]:
    """The results of anyop.<op>(*args, **kwargs); the site, where nothing was traced."""
    values = operator.bind(args, kwargs)
    inputs = values[: operator.count]
    for at, param in enumerate(operator.inputs):
        convert = _tensors if param["kind"] == "Tensor" else _attribute
        inputs[at] = convert(operator, at, inputs[at])
    use = now()
    site = Site(operator, inputs, _wanted(operator, values[operator.count :]), use)
    flat = site.flatten(inputs)
    if any(map(is_traced, flat)):
        scope.check(operator.name, use)
        return site.results(bind(site, flat)), None
    if site.changed():
        raise _immutable(operator, operator.mutated[0], "an argument that the operator changes")
    return run(site, flat), site


def run(site: Site, flat: Sequence[Any]) -> Any:
    """Arrays that have values, by the compiled function."""
    try:
        return site.results(compiled(site)(*flat))
    except ValueError:
        _refuse_devices(site, flat)
        raise


class Eager:
    """The entry of one operator. A call like one before finds its site by what is no array."""

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self.sites: dict[tuple, Site] = {}
        self.kind: type | None = None  # of arrays that have values

    def __call__(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        arrays: list[Any] = []
        key = self._key(args, kwargs, arrays)
        site = None if key is None else self.sites.get(key)
        if site is not None:
            return run(site, arrays)
        found, site = call(self.operator, args, kwargs)
        if site is not None and key is not None:
            if len(self.sites) >= _KEPT_SITES:
                self.sites.clear()
            self.sites[key] = site
        elif site is not None and self.kind is None:
            self.kind = type(next(filter(is_array, args), None))
        return found

    def _key(self, args: tuple, kwargs: dict[str, Any], arrays: list[Any]) -> tuple | None:
        """What is no array; arrays gets the others. None with traced arrays, lists, or arrays by keyword."""
        key: list[Any] = [now()]
        for value in args:
            kind = type(value)
            if kind is self.kind:
                key.append(kind)
                arrays.append(value)
            elif kind in _PLAIN:
                key += (kind, value.hex() if kind is float else value)
            else:
                return None
        for name, value in kwargs.items():
            kind = type(value)
            if kind not in _PLAIN:
                return None
            key += (name, kind, value.hex() if kind is float else value)
        return tuple(key)


# ---- arguments ----


def _tensors(operator: Operator, at: int, value: Any) -> Any:
    """A tensor argument; TypeError for what is none."""
    param = operator.inputs[at]
    if value is None and operator.optional[at]:
        return None
    if not param["list"]:
        if not is_array(value):
            raise _no_array(operator, at, value, "")
        return value
    if not isinstance(value, (list, tuple)):
        raise _no_array(operator, at, value, "a list of tensors")
    for item in value:
        if not is_array(item) and not (item is None and param["optional_elements"]):
            raise _no_array(operator, at, item, "")
    return list(value)


def _no_array(operator: Operator, at: int, value: Any, expected: str) -> TypeError:
    found = "a jax.Array" if is_array(value) else object_text(value)
    is_tensor = hasattr(value, "__dlpack__") or hasattr(value, "__array_interface__")
    expected = expected or ("a jax.Array as the tensors before it" if is_tensor else "a tensor")
    return TypeError(f"{operator.name}: {operator.names[at]} is {found}, expected {expected}")


def _attribute(operator: Operator, at: int, value: Any) -> Any:
    """An argument that is no tensor, in the form that Site takes."""
    param = operator.inputs[at]
    items = value if isinstance(value, (list, tuple)) else (value,)
    if any(is_array(item) and item.shape != () for item in items):
        raise TypeError(
            f"{operator.name}: {param['name']} is a jax.Array, expected {param['kind']}"
        )
    if any(map(is_traced, items)):
        raise TypeError(
            f"{operator.name}: {param['name']} is a traced value, expected {param['kind']}: it is part of the "
            "compiled program (jax.jit's static_argnames, functools.partial)"
        )
    return operator.convert_in_range(at, value)


def _wanted(operator: Operator, results: list[Any]) -> tuple[bool, ...]:
    """Which results are made. A place for one is refused."""
    for at, (param, value) in enumerate(zip(operator.results, results), operator.count):
        if value is not None and not (value is False and param["optional"]):
            raise _immutable(operator, at, "a place for a result")
    return tuple(value is not False for value in results)


def _immutable(operator: Operator, at: int, what: str) -> ValueError:
    return ValueError(
        f"{operator.name}: {operator.names[at]} is {what}, and JAX's arrays cannot be written; inside jax.jit "
        "the operator returns the new value, in the memory of an argument that donate_argnums gives away"
    )


def _refuse_devices(site: Site, flat: Sequence[Any]) -> None:
    """In the core's words, where arrays lie on different devices."""
    first = flat[0].sharding.device_set
    for at, array in zip(site.owners(), flat):
        if array.sharding.device_set != first:
            raise ValueError(
                f"{site.operator.name}: {site.operator.names[at]} is on device {_text(array)}, expected "
                f"{_text(flat[0])} as the tensors before it; use jax.device_put"
            ) from None


def _text(array: Any) -> str:
    return ", ".join(sorted(map(str, array.sharding.device_set)))
