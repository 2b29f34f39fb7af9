# SPDX-License-Identifier: Apache-2.0
"""The backend "aten": operators computed by torch's own kernels, as their schemas say, on the caller's memory.

Torch is imported when a call needs it; callers of every framework can have it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

import anyop
from anyop import _frameworks
from anyop.backend.call_text import CallText, compile_call, read_call_text
from anyop.backend.torch_calls import TorchCalls, shape_text
from anyop.codegen.calls import CONSTANTS, WORDS
from anyop.codegen.source import Mistake

Run = Callable[[Sequence[Any], int, int, int], None]


def provide(op_name: str, text: str) -> Run | str:
    """The function that core calls, or why there is none."""
    try:
        torch = _frameworks.import_real_torch()
    except ImportError as error:
        return _missing(error)
    metadata = anyop.metadata(op_name)
    inputs = [param["name"] for param in metadata["inputs"]]
    results = [param["name"] for param in metadata["results"]]
    try:
        call = read_call_text(text, [*inputs, *results])
        return _Aten(TorchCalls(torch), metadata, call).run
    except (Mistake, LookupError) as error:
        return f"its call cannot be used with torch {torch.__version__}: {error}"


def _missing(error: ImportError) -> str:
    absent = isinstance(error, ModuleNotFoundError) and error.name == "torch"
    return "needs torch, which is not installed" if absent else f"torch cannot be imported: {error}"


class _Aten:
    """One operator."""

    def __init__(self, calls: TorchCalls, metadata: dict[str, Any], text: CallText) -> None:
        self.calls, self.aten, self.text = calls, calls.torch.ops.aten, text
        self.name = metadata["name"]
        self.inputs = [param["name"] for param in metadata["inputs"]]
        self.results = [param["name"] for param in metadata["results"]]
        self.dtypes = {p["name"] for p in metadata["inputs"] if p["kind"] == "ScalarType"}
        self.always = not any(param["optional"] for param in metadata["results"])
        words = {name: getattr(calls.torch, name) for name in CONSTANTS}
        self.words = words | {name: getattr(self, f"_{name}") for name in WORDS}
        self.compute = self._compile(text)
        self.compute_into = self._compile_into()

    def run(self, values: Sequence[Any], device_type: int, device_id: int, stream: int) -> None:
        """One call: inputs, then the places of the results, None where one is not wanted."""
        count = len(self.inputs)
        with self.calls.state(device_type, device_id, stream):
            given = [self._argument(*pair) for pair in zip(self.inputs, values)]
            views = values[count:]
            places = [None if view is None else self.calls.place(view) for view in views]
            try:
                if self.compute_into and self._can_write(given, places):
                    self._check_written(self.compute_into(*given, *places), views)
                else:
                    self._write(self.compute(*given, *places), views)
            except IndexError as error:  # anyop's word for an index out of range
                raise ValueError(str(error)) from None
            except self.calls.torch.OutOfMemoryError as error:
                raise MemoryError(str(error)) from None

    def _argument(self, name: str, value: Any) -> Any:
        if hasattr(value, "__dlpack__"):
            return self.calls.tensor(value)
        return getattr(self.calls.torch, value) if name in self.dtypes and value else value

    def _compile(self, text: CallText) -> Callable[..., Any]:
        return compile_call(text, self.inputs, self.results, self._overload, self.words)

    def _overload(self, name: str, overload: str | None) -> Any:
        packet = getattr(self.aten, name, None)
        if packet is None:
            raise LookupError(f"torch has no operator aten::{name}")
        if (overload or "default") not in packet.overloads():
            known = ", ".join(f"{name}.{other}" for other in packet.overloads())
            raise LookupError(f"no aten::{name}{'.' + overload if overload else ''}, but {known}")
        return getattr(packet, overload or "default")

    def _compile_into(self) -> Callable[..., Any] | None:
        """The call with its results as arguments, where it is a single one and ATen has it so."""
        single = self.text.single
        if single is None or not self.always:
            return None
        plain = self._overload(*self.text.operators[-1])._schema
        packet = getattr(self.aten, plain.name.removeprefix("aten::"))
        for name in packet.overloads():
            schema = getattr(packet, name)._schema
            outs = [argument.name for argument in schema.arguments if argument.is_out]
            if len(outs) == len(self.results) and _taken(schema) == _taken(plain):
                return self._compile(CallText(_into(single, packet, name, outs, self.results), self.text.sizes))
        return None

    def _can_write(self, given: list[Any], places: list[Any]) -> bool:
        """Not where a result is an argument's memory: not every kernel of ATen can do with that."""
        if None in places:
            return False
        taken = {value.data_ptr() for value in given if hasattr(value, "data_ptr")}
        return not any(place.data_ptr() in taken for place in places)

    def _check_written(self, found: Any, views: Sequence[Any]) -> None:
        for tensor, view in zip(found if isinstance(found, tuple) else (found,), views):
            if tuple(tensor.shape) != tuple(view.shape):
                raise RuntimeError(self._wrong(tensor, view))

    def _write(self, found: Any, views: Sequence[Any]) -> None:
        """Copies what was computed to the places."""
        tensors = found if isinstance(found, (tuple, list)) else (found,)
        if len(tensors) != len(views):
            raise RuntimeError(f"the call of {self.name} gave {len(tensors)} results, expected {len(views)}")
        for tensor, view in zip(tensors, views):
            if view is None:
                continue
            if tuple(tensor.shape) != tuple(view.shape):
                raise RuntimeError(self._wrong(tensor, view))
            self.calls.write(view, tensor)

    def _wrong(self, tensor: Any, view: Any) -> str:
        found, expected = shape_text(tensor.shape), shape_text(view.shape)
        return f"the call of {self.name} gave a tensor of shape {found}, expected {expected}"

    # The language's own functions.

    @staticmethod
    def _dtype(tensor: Any) -> Any:
        return tensor.dtype

    @staticmethod
    def _shape(tensor: Any) -> Any:
        return tensor.shape

    def _opmath(self, tensor: Any) -> Any:
        narrow = (self.calls.torch.float16, self.calls.torch.bfloat16)
        return tensor if tensor is None or tensor.dtype not in narrow else tensor.float()

    @staticmethod
    def _number(value: float, tensor: Any) -> float | int:
        return value if tensor.is_floating_point() or tensor.is_complex() else int(value)


def _taken(schema: Any) -> list[tuple[str, str]]:
    return [(a.name, str(a.type)) for a in schema.arguments if not a.is_out]


def _into(call: ast.Call, packet: Any, overload: str, outs: list[str], results: list[str]) -> ast.Module:
    function = ast.Attribute(ast.Name(packet.__name__, ast.Load()), overload, ast.Load())
    given = [ast.keyword(out, ast.Name(name, ast.Load())) for out, name in zip(outs, results)]
    return ast.Module([ast.Expr(ast.Call(function, call.args, [*call.keywords, *given]))], [])
