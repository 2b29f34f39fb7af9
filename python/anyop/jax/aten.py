# SPDX-License-Identifier: Apache-2.0
"""anyop.aten inside JAX's transformations: a call becomes one custom call of the program, ``anyop_aten`` in jaxprs.

Shapes come from torch's meta kernels while the program is traced. Arrays are values: views are copies, and what would
write is refused. Who runs a program that another process has exported imports this module first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anyop import aten
from anyop.aten._open import opened
from anyop.jax import aten_shapes
from anyop.jax.aten_primitive import Site, bind
from anyop.jax.aten_shapes import torch
from anyop.jax.aten_text import call_text, name_of, plain, words

opened()
_NAMED = ("dtype", "layout", "format")  # kinds of parameters


def call(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What the Python entry calls where an array is traced, with the full name of the overload that it found."""
    return _Call(aten.metadata(name), args, kwargs).run()


def array(holder: Any) -> jax.Array:
    """JAX's array of a result. ValueError where JAX has int32 for int64, and a number does not fit."""
    name = str(holder.dtype).removeprefix("torch.")
    if name in ("int64", "uint64") and not jax.config.jax_enable_x64:
        narrow = aten.call("_to_copy", holder, dtype=name.replace("64", "32"))
        if not aten.call("equal", aten.call("type_as", narrow, holder), holder):
            raise ValueError(
                "a result has numbers that 32 bits do not hold; use "
                'jax.config.update("jax_enable_x64", True)'
            )
        holder = narrow
    found = jax.dlpack.from_dlpack(holder)
    if holder.device == "cpu":
        return found
    # XLA lets go of an array while its kernels still read it, and torch would write there on its own stream.
    with jax.ensure_compile_time_eval():
        return jax.block_until_ready(jnp.copy(found))


class _Call:
    """One call. Tensors without memory stand for its arrays, as torch's meta kernels take them."""

    def __init__(
        self, facts: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        self.facts, self.name = facts, aten_shapes.name(facts)
        positional = [p["name"] for p in facts["params"] if not p.get("keyword_only")]
        self.given = {**dict(zip(positional, args)), **kwargs}
        self.values: dict[str, Any] = {}  # as torch's Python takes them
        self.words: dict[str, str] = {}
        self.arrays: list[Any] = []

    def run(self) -> Any:
        """The results, traced."""
        for param in self.facts["params"]:
            if param["name"] in self.given:
                self._read(param, self.given[param["name"]])
        self._refuse_writes()
        found = aten_shapes.results(self.facts, self.values, self._is_seeded())
        tensors = [x for x in _flat(found) if _is_tensor(x)]
        for tensor in tensors:
            self._check_result(tensor)
        if not tensors:
            return _shaped(self.facts, found, iter(()))
        shapes = tuple((tuple(x.shape), _jax_dtype(x)) for x in tensors)
        same = all(_dtype(x) == dtype for x, (_, dtype) in zip(tensors, shapes))
        site = Site(self.name, self._text(found, same), shapes)
        return _shaped(self.facts, found, iter(bind(site, self.arrays)))

    # ---- arguments ----

    def _read(self, param: Mapping[str, Any], value: Any) -> None:
        name, kind = param["name"], param["kind"]
        try:
            if kind == "generator":
                text, value = self._seed(value), None
            elif kind in _NAMED and value is not None:
                text, value = words(name_of(value)), getattr(torch, name_of(value))
            elif kind == "device" and value is not None:
                raise TypeError("cannot be said inside a compiled program: JAX places its arrays")
            elif kind == "Tensor":
                text, value = self._words(plain(value))
            else:
                value = _numbers(param, value)
                text = words(value)
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"{self.name}: {name} {error}") from None
        self.values[name], self.words[name] = value, text

    def _words(self, value: Any) -> tuple[str, Any]:
        """The words, and the value with its arrays replaced."""
        if isinstance(value, list):
            items = [self._words(item) for item in value]
            return " ".join(["[", *(text for text, _ in items), "]"]), [item for _, item in items]
        if not isinstance(value, jax.Array):
            return words(value), value
        aval = jax.typeof(value)
        if str(aval.dtype) not in aten_shapes.DTYPES:
            raise TypeError(f"has dtype {aval.dtype}, which torch has not")
        if not all(isinstance(size, int) for size in aval.shape):
            raise NotImplementedError(
                f"{self.name}: an array has the open shape {aval.shape}, and torch's meta kernels need numbers"
            )
        self.arrays.append(value)
        return "t", aten_shapes.stand_in(aval.shape, str(aval.dtype))

    def _seed(self, value: Any) -> str:
        if value is None:
            return "n"
        if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
            return words(int(value)).replace("i", "g")
        is_array = isinstance(value, jax.Array)
        if not is_array or value.shape != () or not jnp.issubdtype(value.dtype, jnp.integer):
            raise TypeError("is no seed: an int, or one traced integer")
        self.arrays.append(value)
        return "G"

    def _is_seeded(self) -> bool:
        kinds = {param["name"]: param["kind"] for param in self.facts["params"]}
        return any(kinds[name] == "generator" and text != "n" for name, text in self.words.items())

    def _refuse_writes(self) -> None:
        for param in self.facts["params"]:
            condition = param.get("written_unmarked")
            unmarked = condition and self.values.get(param["name"]) is not None
            if unmarked and condition != "always":
                unmarked = self.values.get(condition)
            if param.get("mutable") or unmarked:
                raise NotImplementedError(
                    f"{self.name}: writes {param['name']}, and JAX's arrays cannot be written; use an "
                    "overload that returns the new value"
                )
        if not self.facts["results"]:
            raise NotImplementedError(
                f"{self.name}: returns nothing, and a compiled program keeps what it returns"
            )

    # ---- results ----

    def _check_result(self, tensor: torch.Tensor) -> None:
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
            raise NotImplementedError(f"{self.name}: its result is not dense, and JAX's are")
        if _dtype(tensor) not in aten_shapes.DTYPES:
            raise NotImplementedError(
                f"{self.name}: its result has dtype {_dtype(tensor)}, which JAX has not"
            )

    def _text(self, found: Sequence[Any], is_same_dtype: bool) -> str:
        facts = self.facts
        if is_same_dtype and all(map(_is_tensor, found)):
            facts = aten_shapes.into(facts, self.values, found) or facts
        given = [
            "r" if p.get("mutable") else self.words.get(p["name"], "d") for p in facts["params"]
        ]
        return call_text(aten_shapes.name(facts), given, [_result_words(x) for x in found])


def _numbers(param: Mapping[str, Any], value: Any) -> Any:
    """An argument that is no tensor; arrays of one element that have values stand for numbers, as in torch."""
    if isinstance(value, (list, tuple)):
        return [_numbers({}, item) for item in value]
    value = value.item() if isinstance(value, jax.Array) else plain(value)
    is_spread = param.get("fixed_count") and value is not None  # int[2]: one for all
    return [value] * param["fixed_count"] if is_spread else value


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _jax_dtype(tensor: torch.Tensor) -> str:
    """What JAX has for it: without jax_enable_x64 32 bits for 64."""
    return str(jax.dtypes.canonicalize_dtype(jnp.dtype(_dtype(tensor))))


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _flat(found: Sequence[Any]) -> list[Any]:
    return [x for item in found for x in (item if isinstance(item, (list, tuple)) else [item])]


def _result_words(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return " ".join(["[", *map(_result_words, value), "]"])
    if _is_tensor(value):
        return "t"
    return "n" if value is None else f"i{int(value)}" if isinstance(value, int) else "_"


def _shaped(facts: Mapping[str, Any], found: Sequence[Any], arrays: Any) -> Any:
    """The results as the operator returns them; dtypes by name, as for all callers outside torch."""

    def one(kind: str, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [one(kind, item) for item in value]
        if _is_tensor(value):
            return next(arrays)
        return aten_shapes.dtype_of_code(value) if kind == "dtype" else value

    results = tuple(one(result["kind"], value) for result, value in zip(facts["results"], found))
    return results[0] if len(facts["results"]) == 1 else results
