# SPDX-License-Identifier: Apache-2.0
"""One operator: reads its <op>.toml strictly into the dataclass that every emitter takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..forms.kernels import Kernel, read_kernels
from ..schema import defaults
from ..schema.binding import Binding, bind
from ..schema.dtype_checks import check_rule, possible_dtypes
from ..schema.dtype_rules import parse_rule
from ..schema.expressions import Expr, parse_condition
from ..schema.fields import Field, camel, check_fields, struct_fields
from ..schema.operator_sections import (
    Backward,
    check_keys,
    read_autocast,
    read_backward,
    read_tolerance,
    read_tolerance_on,
    section,
    text_of,
    texts_of,
)
from ..schema.params import Param
from ..schema.schema import Signature, parse_schema
from ..schema.shapes import parse_shape
from ..schema.source import Mistake, Source, check_one_of, listed, nearest
from .aten_overloads import read_overloads
from .cases import read_bench, read_test
from .flops import read_flops
from .formulas import Tree
from .independent import read_independent
from .tangents import read_tangent

_KEYS = (
    "schema", "brief", "math", "source", "inplace", "numbers", "conditions", "arguments", "shapes", "dtypes",
    "layouts", "alignment", "kernels", "launch", "backward", "tangent", "tolerance", "test", "bench", "autocast",
    "flops", "independent", "deterministic", "aten_overloads",
)  # fmt: skip
_COPIED = ("contiguous, copied", "rows, copied")
_LAYOUTS = ("contiguous", "rows", "strided", "dense", *_COPIED)


@dataclass
class Operator:
    """All that one operator file states, checked."""

    source_file: Source
    namespace: str
    name: str
    schema: str
    brief: str
    math: str
    source: str
    inputs: list[Param]
    outputs: list[Param]
    conditions: list[tuple[str, Expr]]
    binding: Binding
    kernels: list[Kernel]
    backward: Backward | None
    tangent: dict[str, Tree] | None  # input -> formula
    autocast: str | None
    flops: tuple[str, Expr] | None
    independent: list[str]  # sizes
    overloads: list[dict[str, Any]]  # of ATen, codegen/operators/aten_overloads.py
    tolerance: dict[str, float]
    tolerance_on: dict[str, dict[str, float]]  # by backend, where it is wider
    test: dict[str, Any]
    bench: dict[str, dict[str, Any]]
    fields: list[Field]

    @property
    def params(self) -> list[Param]:
        return self.inputs + self.outputs

    @property
    def path(self) -> Path:
        return self.source_file.path

    @property
    def full_name(self) -> str:
        return f"{self.namespace}.{self.name}"

    @property
    def symbol(self) -> str:
        """Stem of its C names."""
        return f"{self.namespace}_{self.name}"

    @property
    def struct(self) -> str:
        return camel(self.name) + "Args"


def read_operator(path: Path) -> Operator:
    """Reads and checks one file; raises SchemaError."""
    source = Source(path)
    data = source.data
    for key in data:
        with source.at(key if isinstance(data[key], dict) else None, key):
            check_keys({key: 0}, _KEYS, "section" if isinstance(data[key], dict) else "key")
    schema, signature = _read_schema(source)
    inputs, outputs = signature.inputs, signature.outputs
    texts = _read_texts(source, signature)
    _read_arguments(source, inputs, outputs)
    _read_shapes(source, inputs + outputs)
    _read_dtypes(source, inputs, outputs)
    _read_inplace(source, inputs, outputs)
    _read_numbers(source, inputs)
    _read_memory(source, inputs, outputs)
    conditions = _read_conditions(source)
    with source.at("shapes"):
        binding = bind(inputs, outputs, conditions, source.at)
        fields = struct_fields(inputs + outputs, binding)
        check_fields(fields)
    kernels = read_kernels(
        source,
        f"{signature.namespace}_{signature.name}",
        signature.name,
        inputs + outputs,
        binding,
    )
    return Operator(
        source_file=source,
        namespace=signature.namespace,
        name=signature.name,
        schema=schema,
        **texts,
        inputs=inputs,
        outputs=outputs,
        conditions=conditions,
        binding=binding,
        kernels=kernels,
        backward=read_backward(source, inputs, outputs),
        tangent=read_tangent(source, inputs, outputs),
        autocast=read_autocast(source),
        flops=read_flops(source, binding),
        independent=read_independent(source, inputs, outputs, conditions, binding),
        overloads=read_overloads(source, inputs + outputs, binding, kernels),
        tolerance=(tolerance := read_tolerance(source, inputs + outputs)),
        tolerance_on=read_tolerance_on(source, tolerance, {kernel.device for kernel in kernels}),
        test=read_test(source, inputs, outputs, binding),
        bench=read_bench(source, inputs, binding),
        fields=fields,
    )


def _read_schema(source: Source) -> tuple[str, Signature]:
    with source.at(None, "schema"):
        if "schema" not in source.data:
            raise Mistake(
                "no schema", 'one such as schema = "rms_norm(Tensor x) -> Tensor"', "write it first"
            )
        schema = text_of(source.data["schema"], "schema")
        signature = parse_schema(schema)
        if source.path.stem != signature.name:
            fix = f"rename the file to {signature.name}.toml, or the operator"
            raise Mistake(
                f"operator '{signature.name}' in the file {source.path.name}",
                "one name for both",
                fix,
            )
    return schema, signature


def _read_texts(source: Source, signature: Signature) -> dict[str, str]:
    texts = {"brief": defaults.brief(signature.namespace, signature.name), "math": "", "source": ""}
    for key in texts:
        with source.at(None, key):
            if key in source.data:
                texts[key] = text_of(source.data[key], key)
    return texts


def _read_arguments(source: Source, inputs: list[Param], outputs: list[Param]) -> None:
    table = section(source, "arguments")
    params = {param.name: param for param in inputs + outputs}
    for name, value in table.items():
        with source.at("arguments", name):
            _check_entry(name, params, "arguments")
            params[name].about = text_of(value, f"argument '{name}'")


def _check_entry(name: str, params: dict[str, Param], where: str) -> None:
    if name not in params:
        fix = nearest(name, params, "remove it, or add it to the schema")
        raise Mistake(
            f"[{where}] names '{name}', which the schema lacks", f"one of {listed(params)}", fix
        )


def _check_tensor_entry(name: str, params: dict[str, Param], where: str) -> None:
    _check_entry(name, params, where)
    if not params[name].is_tensor:
        raise Mistake(
            f"[{where}] names '{name}', which is of type {params[name].kind}",
            "a tensor",
            "remove it",
        )


def _read_shapes(source: Source, params: list[Param]) -> None:
    table = section(source, "shapes")
    by_name = {param.name: param for param in params}
    for name, value in table.items():
        with source.at("shapes", name):
            _check_tensor_entry(name, by_name, "shapes")
            if not isinstance(value, str):
                raise Mistake(f"shape of '{name}' is {value!r}", "text", f'write {name} = "* D"')
            by_name[name].shape = parse_shape(value)
    for param in params:
        if param.is_tensor and param.shape is None:
            with source.at("shapes"):
                raise Mistake(
                    f"'{param.name}' has no entry in [shapes]",
                    "one for every tensor",
                    f'write {param.name} = "* D"; "*" accepts any shape',
                )


def _read_dtypes(source: Source, inputs: list[Param], outputs: list[Param]) -> None:
    table = section(source, "dtypes")
    by_name = {param.name: param for param in inputs + outputs}
    earlier: dict[str, Param] = {}
    for name in table:
        with source.at("dtypes", name):
            _check_entry(name, by_name, "dtypes")
            if not by_name[name].is_tensor and by_name[name].kind != "ScalarType":
                _check_tensor_entry(name, by_name, "dtypes")
    for param in inputs + outputs:
        if param.is_tensor and param.name not in table:
            with source.at("dtypes"):
                rule = defaults.dtype_rule(param, inputs + outputs)
                check_rule(param, rule, by_name, earlier)
                param.dtypes, param.possible = rule, possible_dtypes(rule, by_name)
        if param.name in table:
            with source.at("dtypes", param.name):
                attributes = [name for name, other in by_name.items() if other.kind == "ScalarType"]
                rule = parse_rule(
                    table[param.name],
                    [name for name in by_name if name not in attributes],
                    attributes,
                )
                check_rule(param, rule, by_name, earlier)
                param.dtypes, param.possible = rule, possible_dtypes(rule, by_name)
        earlier[param.name] = param


def _named_inputs(source: Source, key: str, inputs: list[Param]) -> list[Param]:
    """The input tensors that a key of the file lists."""
    tensors = {param.name: param for param in inputs if param.is_tensor}
    names = texts_of(source.data.get(key, []), key)
    for name in names:
        check_one_of(name, tensors, f"{key} names '{name}'", "an input tensor", "remove it")
    return [tensors[name] for name in names]


def _read_inplace(source: Source, inputs: list[Param], outputs: list[Param]) -> None:
    """The key `inplace`: tensors that a result may be, lists whose elements those of a written list may be."""
    with source.at(None, "inplace"):
        for param in _named_inputs(source, "inplace", inputs):
            if param.is_list and (param.mutated or not _written_beside(param, inputs)):
                raise Mistake(
                    f"inplace names the list '{param.name}'",
                    "one that is only read, beside a list Tensor(a!)[] of the same shape",
                    "remove it",
                )
            if not param.is_list and not outputs:
                raise Mistake(
                    "inplace in an operator without results",
                    "results",
                    "mark written arguments Tensor(a!) instead",
                )
            param.inplace = True


def _written_beside(read: Param, inputs: list[Param]) -> bool:
    """Whether a written list is walked together with this one."""
    return read.shape.length is not None and any(
        param.mutated and param.is_list and param.shape.text == read.shape.text for param in inputs
    )


def _read_numbers(source: Source, inputs: list[Param]) -> None:
    """The key `numbers`: tensors of one element for which Python's numbers may stand."""
    with source.at(None, "numbers"):
        for param in _named_inputs(source, "numbers", inputs):
            sized = param.shape.terms and not param.shape.expand
            if param.is_list or param.mutated or sized or not param.dtypes.names:
                raise Mistake(
                    f"numbers names '{param.name}'",
                    "one tensor that is only read, which may have no dimension, and whose dtypes are listed",
                    'write its shape as "expand(1)", and a list of dtypes',
                )
            param.number = True


def _read_memory(source: Source, inputs: list[Param], outputs: list[Param]) -> None:
    """[layouts] and [alignment]."""
    params = {param.name: param for param in inputs + outputs}
    for name, value in section(source, "layouts").items():
        with source.at("layouts", name):
            _check_tensor_entry(name, params, "layouts")
            found = f"layout {value!r} of '{name}'"
            check_one_of(value, _LAYOUTS, found, fix="use one of these")
            param, param.layout = params[name], value.removesuffix(", copied")
            param.copied = value in _COPIED
            if param.copied and (param.output or param.mutated or param.inplace):
                raise Mistake(
                    f"layout {value!r} of '{name}', which the kernel may write",
                    "that of an input that is only read: what is written to a copy is lost",
                    f'write {name} = "{param.layout}"',
                )
    _check_dense(source, inputs)
    for name, value in section(source, "alignment").items():
        with source.at("alignment", name):
            _check_tensor_entry(name, params, "alignment")
            if type(value) is not int or not 2 <= value <= 4096 or value & (value - 1):
                raise Mistake(
                    f"alignment {value!r} of '{name}'",
                    "a power of two from 2 to 4096, in bytes",
                    "correct it, or leave it out",
                )
            params[name].alignment = value


def _check_dense(source: Source, inputs: list[Param]) -> None:
    """Dense lists of one length have one shape: their tensors lie in the same order."""
    firsts: dict[str, Param] = {}
    for param in inputs:
        if param.layout != "dense" or param.shape.length is None:
            continue
        first = firsts.setdefault(param.shape.length, param)
        if first.shape.text != param.shape.text:
            with source.at("layouts", param.name):
                raise Mistake(
                    f"the dense lists '{first.name}' ('{first.shape.text}') and '{param.name}' ('{param.shape.text}')",
                    "one shape, for their tensors have the same strides",
                    "use one shape, or another layout",
                )


def _read_conditions(source: Source) -> list[tuple[str, Expr]]:
    with source.at(None, "conditions"):
        texts = texts_of(source.data.get("conditions", []), "conditions")
    conditions = []
    for text in texts:
        with source.at(None, "conditions", text):
            condition, _, words = text.partition("#")  # what messages say in place of the condition
            conditions.append(
                (" ".join(words.split()) or condition.strip(), parse_condition(condition))
            )
    return conditions
