# SPDX-License-Identifier: Apache-2.0
"""What the core asks of a call, asked of tensors without memory: devices, dtypes, shapes, conditions.

The order and the messages are those of src/core/call/call.cc. Layout, alignment and overlap are memory's: only a real
call can ask for them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from anyop.adapter import dtypes
from anyop.adapter.operators import Operator
from anyop.adapter.shapes import Unbound, asks_for_texts_alone, sizes_text

_MAX_RANK = 32  # the core's


class Check:
    """One call whose inputs fit; gives the shapes and dtypes of its results."""

    def __init__(self, operator: Operator, inputs: Sequence[Any]) -> None:
        self.operator = operator
        self.framework = operator.framework
        self.first: Any = None  # tensor
        self.known: dict[str, str | None] = {}  # dtypes of tensors, and ScalarType arguments
        symbols = operator.metadata["symbols"]
        attributes = symbols["attributes"]
        self.sizes = self.framework.sizes(
            {name: inputs[operator.index[name]] for name in attributes},
            (*symbols["sizes"], *attributes),
        )
        texts = symbols.get("texts", ())
        of_dtypes = [name for name in texts if name.startswith("dtype(")]
        self.sizes.texts = {
            name: inputs[operator.index[name]] for name in texts if name not in of_dtypes
        }
        self._conditions(of_texts=True)
        self._inputs(inputs)
        known = {name: self.known.get(name[len("dtype(") : -1]) for name in of_dtypes}
        self.sizes.texts = {
            name: known[name] or "an unknown dtype" if name in known else self.sizes.texts[name]
            for name in texts
        }
        self._joins(inputs)
        self._conditions(of_texts=False)

    @property
    def device(self) -> Any:
        """That of all tensors."""
        if self.first is None:
            name = self.operator.results[0]["name"] if self.operator.results else "results"
            raise ValueError(
                f"{self.operator.name}: expected at least one tensor, or a place for {name}"
            )
        return self.framework.device(self.first)

    def result(self, param: Mapping[str, Any]) -> tuple[tuple[Any, ...], str]:
        """Shape and dtype of a new result."""
        where = f"{self.operator.name}: "
        try:
            shape = self.sizes.shape(param["shape"])
        except Unbound:
            raise ValueError(
                f"{where}the shape ({param['shape']['text']}) of {param['name']} has no value"
                f"{self._known(param['shape'])}"
            ) from None
        dtype = dtypes.of_result(param["dtypes"], self.known)
        if dtype is None:
            expected = dtypes.expected_text(param["dtypes"], self.known)
            raise TypeError(f"{where}{param['name']} has no dtype: expected {expected}")
        self.known[param["name"]] = dtype
        if 0 not in shape:
            self.refuse_overflow(param["name"], shape, dtype)
        return shape, dtype

    def refuse_overflow(self, result: str, shape: Sequence[Any], dtype: str) -> None:
        """Refuse sizes whose product no memory can hold, whatever 0 is among them. Symbolic ones are not looked at."""
        known = all(isinstance(size, int) for size in shape)
        bytes_ = (
            math.prod(size for size in shape if size) * dtypes.item_bytes(dtype) if known else 0
        )
        if bytes_ >= 2**63:
            raise ValueError(
                f"{self.operator.name}: {result} would have shape {sizes_text(shape)}: its size in "
                "bytes overflows 64 bits"
            )

    def given(self, param: Mapping[str, Any], tensor: Any, element: int = -1) -> None:
        """Everything that is asked of one tensor."""
        where = f"{self.operator.name}: {param['name']}"
        behind = f" [element {element}]" if element >= 0 else ""
        rank = len(self.framework.shape(tensor))
        if rank > _MAX_RANK:
            raise ValueError(f"{where} has {rank} dimensions, expected at most {_MAX_RANK}{behind}")
        if self.first is None:
            self.first = tensor
        device = self.framework.device(tensor)
        if device != self.device:
            raise ValueError(
                f"{where} is on device {device}, expected {self.device} as the tensors before it{behind}"
            )
        before = self.known.get(param["name"])
        dtype = self.known[param["name"]] = self.framework.dtype_name(tensor)
        if not dtypes.allows(param["dtypes"], self.known, dtype):
            expected = dtypes.expected_text(param["dtypes"], self.known)
            raise TypeError(f"{where} has dtype {dtype}, expected {expected}{behind}")
        if element > 0 and param.get("alike") and dtype != before:
            raise TypeError(f"{where} has dtype {dtype}, expected {before} as the others{behind}")
        shape = self.framework.shape(tensor)
        self.sizes.match(
            param["shape"],
            shape,
            lambda: (
                f"{where} has shape {sizes_text(shape)}, expected "
                f"({param['shape']['text']}){self._known(param['shape'])}{behind}"
            ),
        )

    def _known(self, shape: Mapping[str, Any]) -> str:
        return self.sizes.known_text(*shape["before"], *shape["after"])

    def _inputs(self, inputs: Sequence[Any]) -> None:
        for param, value in zip(self.operator.inputs, inputs):
            if param["kind"] == "ScalarType" and not param["list"]:
                self._attribute(param, value)
            elif param["kind"] == "Tensor" and not param["list"] and value is not None:
                self.given(param, value)
        lists = [
            (param, value)
            for param, value in zip(self.operator.inputs, inputs)
            if param["kind"] == "Tensor" and param["list"] and value is not None
        ]
        if lists:
            self._lists(lists)

    def _attribute(self, param: Mapping[str, Any], value: Any) -> None:
        name = None if value is None else self.framework.dtype_argument_name(value)
        self.known[param["name"]] = name
        possible = param["possible_dtypes"]
        if name is not None and possible and name not in possible:
            raise TypeError(
                f"{self.operator.name}: {param['name']} is {name}, expected {', '.join(possible)}"
            )

    def _lists(self, lists: list[tuple[Mapping[str, Any], Sequence[Any]]]) -> None:
        symbols = self.operator.metadata["symbols"]
        for param, value in lists:
            length = param["shape"]["length"]
            known = self.sizes.values.setdefault(length, len(value))
            if known != len(value):
                raise ValueError(
                    f"{self.operator.name}: {param['name']} has {len(value)} tensors, expected {known}"
                )
        for element in range(max(len(value) for _, value in lists)):
            for letter in symbols["element_sizes"]:
                self.sizes.values.pop(letter, None)
            for group in symbols["element_groups"]:
                self.sizes.groups.pop(group, None)
            for param, value in lists:
                if element < len(value) and value[element] is not None:
                    self.given(param, value[element], element)

    def _joins(self, inputs: Sequence[Any]) -> None:
        def message() -> str:
            return self._join_text(inputs)

        for join in self.operator.metadata["symbols"]["joins"]:
            try:
                self.sizes.group(join)
            except ValueError:
                raise ValueError(message()) from None
        self.sizes.match_joined(message)

    def _join_text(self, inputs: Sequence[Any]) -> str:
        """Which shapes do not broadcast together, or do not fit what others broadcast to."""
        parts, joined = [], ""
        for param, value in zip(self.operator.inputs, inputs):
            if param["kind"] != "Tensor" or value is None or param["shape"]["expand"]:
                continue
            text = (
                f"{param['name']} {sizes_text(self.framework.shape(value))}"
                if not param["list"]
                else ""
            )
            if isinstance(param["shape"]["group"], list):
                joined = text
            elif param["expanded"]:
                parts.append(text)
        if joined:
            return (
                f"{self.operator.name}: {joined} does not fit the broadcast of {', '.join(parts)}"
            )
        return f"{self.operator.name}: shapes cannot be broadcast together: {', '.join(parts)}"

    def _conditions(self, of_texts: bool) -> None:
        """Those that ask for texts alone, before any shape is looked at; then the others."""
        for condition in self.operator.metadata["conditions"]:
            expression, text = condition["expression"], condition["text"]
            if asks_for_texts_alone(expression) != of_texts:
                continue
            message = f"{self.operator.name}: expected {text}{self.sizes.known_text(expression)}"
            try:
                truth = self.sizes.evaluate(expression)
            except Unbound:
                raise ValueError(message) from None
            self.sizes.require(truth, partial(str, message))
