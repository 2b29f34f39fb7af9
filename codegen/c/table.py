# SPDX-License-Identifier: Apache-2.0
"""The C table of an operator, as anyop/table.h wants it: data only, no code."""

from __future__ import annotations

import math
import re
from typing import Any

from ..forms.kernels import Kernel
from ..operators.operator_file import Operator
from ..schema.dtype_rules import DtypeRule
from ..schema.dtypes import DTYPES
from ..schema.operator_sections import DEVICES
from ..schema.params import Param
from ..text.c_text import braced, c_comment, c_string
from .header import hash_macro, header_path
from .programs import Code

_KINDS = {
    "Tensor": "kAnyopTensor", "int": "kAnyopInt", "float": "kAnyopFloat", "bool": "kAnyopBoolean",
    "str": "kAnyopStr", "ScalarType": "kAnyopScalarType",
}  # fmt: skip
_LAYOUTS = {
    "contiguous": "kAnyopContiguous", "rows": "kAnyopRows", "strided": "kAnyopStrided",
    "dense": "kAnyopDense",
}  # fmt: skip
_LIST_TYPES = {"float": ("double", "AnyopFloatList"), "str": ("AnyopString", "AnyopStringList")}
DEVICE_GUARDS = {"cuda": "ANYOP_WITH_CUDA", "hip": "ANYOP_WITH_HIP", "mlu": "ANYOP_WITH_MLU"}


def write_table(op: Operator, doc: str, metadata: str) -> str:
    """The .c file of one operator."""
    code = Code(op.binding, [param.name for param in op.params])
    lists: list[str] = []
    with op.source_file.at("shapes"):
        params = [_param(op, param, code, lists) for param in op.params]
        conditions = [
            f"    {{{c_string(text)}, {code.expression(expr)}, 0}}," for text, expr in op.conditions
        ]
    joins = code.joins()
    kernels = _kernels(op)
    index = [param.name for param in op.params].index
    parts = [
        f"/* Generated from {c_comment(op.path.name)}; do not edit. The table of {op.full_name}. */",
        f'#include "anyop/table.h"\n#include "{header_path(op)}"\n',
        '#if defined(__GNUC__)\n#pragma GCC diagnostic ignored "-Woverlength-strings"\n#endif\n',
        *(
            ["#include <math.h>\n"]
            if any(re.search("INFINITY|NAN", text) for text in params + lists)
            else []
        ),
        *lists,
        _array("AnyopParam", "kParams", params),
        _words("int32_t", "kCode", code.words),
        _array(
            "char* const", "kSymbols", [f"    {c_string(name)}," for name in op.binding.symbols]
        ),
        _words("uint16_t", "kAttributes", [index(name) for name in op.binding.attributes]),
        _words("AnyopJoin", "kJoins", joins),
        _array("AnyopCondition", "kConditions", conditions),
        _array("AnyopKernelEntry", "kKernels", kernels),
        _operator(op, code, doc, metadata),
    ]
    return "\n".join(part for part in parts if part)


def table_symbol(op: Operator) -> str:
    """The C name of the table."""
    return f"anyop_table_{op.symbol}"


def _array(kind: str, name: str, rows: list[str]) -> str:
    return f"static const {kind} {name}[] = {{\n" + "\n".join(rows) + "\n};\n" if rows else ""


def _words(kind: str, name: str, words: list[int]) -> str:
    if not words:
        return ""
    lines = [", ".join(map(str, words[at : at + 16])) for at in range(0, len(words), 16)]
    return f"static const {kind} {name}[] = {{\n    " + ",\n    ".join(lines) + "};\n"


def _flags(param: Param) -> str:
    flags = {
        "kAnyopOptional": param.optional or param.optional_elements,
        "kAnyopList": param.is_list,
        "kAnyopMutated": param.mutated,
        "kAnyopOutput": param.output,
        "kAnyopHasDefault": param.has_default,
        "kAnyopKeywordOnly": param.keyword_only,
        "kAnyopInplace": param.inplace,
        "kAnyopExpanded": param.expanded,
        "kAnyopOptionalElements": param.optional_elements,
        "kAnyopCopied": param.copied,
        "kAnyopNumber": param.number,
    }
    return " | ".join(name for name, on in flags.items() if on) or "0"


def _param(op: Operator, param: Param, code: Code, lists: list[str]) -> str:
    rule, index = param.dtypes or DtypeRule(), [p.name for p in op.params].index
    kind, a, b = _dtype_rule(rule)
    length = param.shape.length if param.shape else None
    rows = {
        "name": c_string(param.name),
        "shape_text": c_string(param.shape.text if param.shape else None),
        "offset": f"offsetof({op.struct}, {param.name})",
        "shape": code.shape(param.shape) if param.shape else -1,
        "flags": _flags(param),
        "kind": _KINDS[param.kind],
        "layout": _LAYOUTS[param.layout],
        "dtype_rule": kind,
        "align_log2": param.alignment.bit_length() - 1 if param.alignment else 0,
        "dtype_a": index(a) if a else -1,
        "dtype_b": index(b) if b else -1,
        "dtype_set": f"{rule.mask:#x}ull",
        "value": f"{{{_default(param, lists)}}}",
        "length": op.binding.symbols.index(length) if length else -1,
        "fixed_count": -1 if param.fixed_count is None else param.fixed_count,
    }
    zero = ("0", "NULL", "0x0ull", "{.s = NULL}", "{.i = 0}", "kAnyopContiguous", "kAnyopOneOf")
    return braced([f".{name} = {value}" for name, value in rows.items() if str(value) not in zero])


def _dtype_rule(rule: DtypeRule) -> tuple[str, str | None, str | None]:
    if rule.promote:
        return "kAnyopPromote", rule.promote[0], (*rule.promote, None)[1]
    if rule.attribute:
        return "kAnyopFromAttribute", rule.attribute, rule.otherwise
    if rule.first_given:
        return "kAnyopFirstGiven", *rule.first_given
    return "kAnyopOneOf", rule.same_as, None


def _default(param: Param, lists: list[str]) -> str:
    """The initialiser of AnyopParam::value; a list becomes a constant of its own."""
    name, value = param.name, param.default if param.has_default else None
    if param.is_list:
        if value is None:
            return ".list = NULL"
        element, kind = _LIST_TYPES.get(param.kind, ("int64_t", "AnyopIntList"))
        rows = ", ".join(_element(param.kind, item) for item in value) or (
            "{NULL, 0}" if param.kind == "str" else "0"
        )
        lists.append(f"static const {element} kDefaultOf_{name}[] = {{{rows}}};")
        lists.append(
            f"static const {kind} kDefault_{name} = {{kDefaultOf_{name}, {len(value)}}};\n"
        )
        return f".list = &kDefault_{name}"
    if param.kind in ("str", "Tensor"):
        return f".s = {c_string(value)}"
    if (
        value is None
    ):  # of an optional scalar, as the core reads it; of any other there is no default
        none = param.has_default and param.optional
        return (
            f".f = {'NAN' if none else '0'}"
            if param.kind == "float"
            else f".i = {'INT64_MIN' if none else '0'}"
        )
    return f".{'f' if param.kind == 'float' else 'i'} = {_scalar(param.kind, value)}"


def _scalar(kind: str, value: Any) -> str:
    if kind == "ScalarType":
        return f"{DTYPES.index(value)} /* {value} */"
    if kind == "float":
        if math.isfinite(value):
            return repr(value)
        return "NAN" if math.isnan(value) else "INFINITY" if value > 0 else "-INFINITY"
    value = int(value)
    return (
        f"{value}"
        if abs(value) < 2**31
        else f"INT64_C({value})"
        if value > -(2**63)
        else "INT64_MIN"
    )


def _element(kind: str, value: Any) -> str:
    return (
        f"{{{c_string(value)}, {len(value.encode())}}}" if kind == "str" else _scalar(kind, value)
    )


def _guard(kernel: Kernel) -> str | None:
    """The macro under which the kernel is there; other forms need nothing of the device's compiler."""
    return DEVICE_GUARDS.get(kernel.device) if kernel.form in ("source", "object") else None


def _kernels(op: Operator) -> list[str]:
    rows = []
    for kernel in op.kernels:
        row, guard = _kernel(op, kernel), _guard(kernel)
        rows.append(f"#ifdef {guard}\n{row}\n#endif" if guard else row)
    if rows and all(map(_guard, op.kernels)):
        rows.append("    {.backend = NULL}, /* so that the array is never empty */")
    return rows


def _kernel(op: Operator, kernel: Kernel) -> str:
    file, foreign = kernel.files[0] if kernel.files else op.path, kernel.foreign
    rows = {
        "backend": c_string(kernel.backend),
        "source": c_string(file.name),
        "run": f"(AnyopKernel){kernel.function}" if kernel.is_compiled else "NULL",
        "device_type": DEVICES.get(kernel.device, 0),
        "priority": kernel.priority,
        "name": c_string(kernel.name),
        "when": c_string(kernel.when),
        "form": c_string(kernel.form) if foreign else "NULL",
        "text": c_string(foreign.json) if foreign else "NULL",
        "flags": "kAnyopDeterministic" if kernel.deterministic else "0",
        "choices": str(kernel.choices),
    }
    return braced(
        [f".{key} = {value}" for key, value in rows.items() if value not in ("NULL", "0")]
    )


def _kernel_count(op: Operator) -> str:
    if not op.kernels:
        return "0"
    empty = all(map(_guard, op.kernels))
    return "sizeof(kKernels) / sizeof(kKernels[0])" + (" - 1" if empty else "")


def _operator(op: Operator, code: Code, doc: str, metadata: str) -> str:
    binding = op.binding
    symbols = binding.symbols
    first_size = op.fields[len(op.params)].name if len(op.fields) > len(op.params) else None
    rows = {
        "size": "sizeof(AnyopOp)",
        "abi_version": "ANYOP_ABI_VERSION",
        "name_space": c_string(op.namespace),
        "name": c_string(op.name),
        "schema": c_string(op.schema),
        "doc": c_string(doc),
        "metadata": c_string(metadata),
        "params": "kParams" if op.params else "NULL",
        "code": "kCode" if code.words else "NULL",
        "symbols": "kSymbols" if symbols else "NULL",
        "attributes": "kAttributes" if binding.attributes else "NULL",
        "joins": "kJoins" if binding.joins else "NULL",
        "conditions": "kConditions" if op.conditions else "NULL",
        "kernels": "kKernels" if op.kernels else "NULL",
        "param_size": "sizeof(AnyopParam)",
        "kernel_size": "sizeof(AnyopKernelEntry)",
        "num_inputs": len(op.inputs),
        "num_outputs": len(op.outputs),
        "args_size": f"sizeof({op.struct})",
        "sizes_offset": f"offsetof({op.struct}, {first_size})"
        if first_size
        else f"sizeof({op.struct})",
        "code_words": len(code.words),
        "num_symbols": len(symbols),
        "num_sizes": len(binding.sizes),
        "num_groups": len(binding.groups),
        "num_joins": len(binding.joins),
        "num_conditions": len(op.conditions),
        "num_kernels": _kernel_count(op),
        "element_symbols": _mask(binding.element_sizes, symbols),
        "element_groups": _mask(binding.element_groups, binding.groups),
        "args_hash": hash_macro(op),
    }
    body = "\n".join(f"    .{name} = {value}," for name, value in rows.items())
    symbol = table_symbol(op)
    return f"extern const AnyopOp {symbol};\nconst AnyopOp {symbol} = {{\n{body}\n}};\n"


def _mask(names: list[str], among: list[str]) -> str:
    """A bit for the place of every name."""
    return f"{sum(1 << among.index(name) for name in names):#x}ull"
