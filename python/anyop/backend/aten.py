# SPDX-License-Identifier: Apache-2.0
"""The backend "aten": operators computed by torch's own kernels, as their schemas say, on the caller's memory.

Torch is imported when a call needs it; callers of every framework can have it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import anyop
from anyop import _frameworks
from anyop._routes import explaining
from anyop.backend.aten_calls import AtenCalls
from anyop.backend.aten_plan import Plan, make_plan
from anyop.backend.call_text import CallText, Resolve, compile_call, read_call_text
from anyop.backend.torch_calls import Place, TorchCalls, shape_text
from anyop.codegen.forms.calls import CONSTANTS, WORDS, split_name
from anyop.codegen.schema.source import Mistake
from anyop.native.glues import aten_glue
from anyop.native.library import NotBuilt

_CPU = "cpu"
Run = Callable[[Sequence[Any], int, int, int], None]


def provide(
    op_name: str, text: str | Mapping[str, Any], look_up: Resolve | None = None
) -> Run | str | None:
    """The function that core calls, or why there is none; None where it is to be built, and was only asked about.

    look_up: gives another library's function of an operator and overload, in place of ATen's, or raises LookupError.
    """
    try:
        torch = _frameworks.import_real_torch()
    except ImportError as error:
        return _missing(error)
    metadata = anyop.metadata(op_name)
    names = [param["name"] for param in (*metadata["inputs"], *metadata["results"])]
    try:
        call = read_call_text(text, names)
        return _Call(torch, _calls(torch, look_up), metadata, call, look_up)
    except (Mistake, LookupError) as error:
        return f"its call cannot be used with torch {torch.__version__}: {error}"
    except NotBuilt:
        return None


def _missing(error: ImportError) -> str:
    absent = isinstance(error, ModuleNotFoundError) and error.name == "torch"
    return "needs torch, which is not installed" if absent else f"torch cannot be imported: {error}"


def _calls(torch: ModuleType, look_up: Resolve | None) -> TorchCalls | AtenCalls:
    """By anyop's own entry. Other libraries' functions take torch's tensors, and so does ATen without the glue."""
    if look_up is None and aten_glue.find_loaded(build=not explaining.get()):
        return AtenCalls()
    return TorchCalls(torch)


class _Call:
    """The call of one operator. Core runs its plan where there is one, and calls it for what that cannot do."""

    def __init__(
        self,
        torch: ModuleType,
        calls: TorchCalls | AtenCalls,
        metadata: dict[str, Any],
        text: CallText,
        look_up: Resolve | None,
    ) -> None:
        self.torch, self.calls, self.text, self.name = torch, calls, text, metadata["name"]
        self.inputs = [param["name"] for param in metadata["inputs"]]
        self.results = [param["name"] for param in metadata["results"]]
        self.dtypes = {p["name"] for p in metadata["inputs"] if p["kind"] == "ScalarType"}
        self.words = {name: calls.constant(name) for name in CONSTANTS if name != _CPU}
        self.words[_CPU] = _CPU
        self.words |= {name: getattr(self, f"_{name}") for name in WORDS}
        self.compute = self._compile(text, look_up or self._overload)
        always = not any(param["optional"] for param in metadata["results"])
        into = self._text_into() if always and look_up is None else None
        self.compute_into = into and self._compile(into, self._overload)
        self.plan: Plan | None = None
        if isinstance(calls, AtenCalls):
            self.plan = make_plan(text, into, self.inputs, self.results, self._schema)

    def __call__(
        self, values: Sequence[Any], device_type: int, device_id: int, stream: int
    ) -> None:
        """One call: inputs, then the places of the results, None where one is not wanted."""
        count = len(self.inputs)
        with self.calls.state(device_type, device_id, stream):
            given = [self._argument(*pair) for pair in zip(self.inputs, values)]
            places = [None if view is None else self.calls.place(view) for view in values[count:]]
            tensors = [place and place.tensor for place in places]
            try:
                if self.compute_into and self._can_write(given, places):
                    self._check(self.compute_into(*given, *tensors), values[count:])
                else:
                    self._write(self.compute(*given, *tensors), places, values[count:])
            except IndexError as error:  # core's word for an index out of range
                raise ValueError(str(error)) from None
            except self.torch.OutOfMemoryError as error:
                raise MemoryError(str(error)) from None

    def _argument(self, name: str, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [self._argument(name, each) for each in value]
        if hasattr(value, "__dlpack__"):
            return self.calls.tensor(value)
        return self.calls.constant(value) if name in self.dtypes and value else value

    def _compile(self, text: CallText, resolve: Resolve) -> Callable[..., Any]:
        return compile_call(text, self.inputs, self.results, resolve, self.words)

    def _overload(self, name: str, overload: str | None) -> Any:
        self._schema(name, overload)
        return self.calls.function(name, overload or "")

    def _schema(self, name: str, overload: str | None) -> Any:
        packet = getattr(self.torch.ops.aten, name, None)
        if packet is None:
            raise LookupError(f"torch has no operator aten::{name}")
        if (overload or "default") not in packet.overloads():
            known = ", ".join(f"{name}.{other}" for other in packet.overloads())
            raise LookupError(f"no aten::{name}{'.' + overload if overload else ''}, but {known}")
        return getattr(packet, overload or "default")._schema

    def _text_into(self) -> CallText | None:
        """The text with its results as arguments, where it is one plain call and ATen has it so."""
        single = self.text.single
        if single is None:
            return None
        name, overload = split_name(single.func)
        plain, packet = self._schema(name, overload), getattr(self.torch.ops.aten, name)
        for other in packet.overloads():
            function = getattr(packet, other)
            if self.torch.Tag.generated in function.tags:  # it would compute, then copy
                continue
            schema = function._schema
            outs = [argument.name for argument in schema.arguments if argument.is_out]
            if len(outs) == len(self.results) and _taken(schema) == _taken(plain):
                return CallText(_into(single, name, other, outs, self.results), self.text.sizes)
        return None

    def _can_write(self, given: list[Any], places: list[Place]) -> bool:
        """Not where a result is an argument's memory: not every kernel of ATen can do with that."""
        address = self.calls.address
        each = [one for value in given for one in (value if isinstance(value, list) else [value])]
        taken = {address(value) for value in each if hasattr(value, "data_ptr")}
        return all(p.is_plain and address(p.tensor) not in taken for p in places)

    def _write(self, found: Any, places: list[Place | None], views: Sequence[Any]) -> None:
        self._check(found, views)
        for tensor, place in zip(_several(found), places):
            if place is not None:
                place.write(tensor)

    def _check(self, found: Any, views: Sequence[Any]) -> None:
        """A text may be wrong for some arguments; nothing is broadcast or resized in silence."""
        tensors = _several(found)
        if len(tensors) != len(views):
            raise RuntimeError(f"its call gave {len(tensors)} results, expected {len(views)}")
        for name, tensor, view in zip(self.results, tensors, views):
            if view is not None and tuple(tensor.shape) != tuple(view.shape):
                shapes = f"{shape_text(tensor.shape)}, expected {shape_text(view.shape)}"
                raise RuntimeError(f"its call gave {name} of shape {shapes}")

    # The language's own functions.

    def _dtype(self, tensor: Any) -> Any:
        return self.calls.dtype(tensor)

    @staticmethod
    def _shape(tensor: Any) -> Any:
        return tensor.shape

    def _device(self, tensor: Any) -> str | None:
        return _CPU if self.calls.is_cpu(tensor) else None

    def _opmath(self, tensor: Any) -> Any:
        wide = tensor is None or not self.calls.is_narrow(tensor)
        return tensor if wide else self.calls.widen(tensor)

    def _number(self, value: float, tensor: Any) -> float | int:
        return value if self.calls.is_inexact(tensor) else int(value)


def _several(found: Any) -> Sequence[Any]:
    return found if isinstance(found, (tuple, list)) else (found,)


def _taken(schema: Any) -> list[tuple[str, str]]:
    return [(a.name, str(a.type)) for a in schema.arguments if not a.is_out]


def _into(
    call: ast.Call, name: str, overload: str, outs: list[str], results: list[str]
) -> ast.Module:
    function = ast.Attribute(ast.Name(name, ast.Load()), overload, ast.Load())
    given = [ast.keyword(out, ast.Name(place, ast.Load())) for out, place in zip(outs, results)]
    return ast.Module([ast.Expr(ast.Call(function, call.args, [*call.keywords, *given]))], [])
