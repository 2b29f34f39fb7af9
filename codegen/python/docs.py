# SPDX-License-Identifier: Apache-2.0
"""What Python's help shows of an operator, and the reference page of all operators."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

from ..operators.operator_file import Operator
from ..schema.fields import shape_sizes
from ..schema.params import Param
from ..schema.shapes import Shape
from ..schema.source import listed
from ..text.markdown_text import markdown_block, markdown_cell, markdown_code

_WIDTH = 100
_AUTOCAST = {"lower": "in its dtype", "float32": "in float32"}
_ERRORS = "ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel."


def python_default(param: Param) -> str:
    """The default as Python text that ast.literal_eval reads (so that inspect.signature does)."""
    value = param.default
    if isinstance(value, list):
        return "[" + ", ".join(_literal(item) for item in value) + "]"
    return _literal(value)


def _literal(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "1e999" if value == math.inf else "-1e999" if value == -math.inf else "None"
    return ascii(value)  # CPython reads signatures as ASCII


def signature_arguments(op: Operator) -> list[str]:
    """`x`, `eps=1e-06`, `out=None`: results are arguments too, by keyword where inputs before them are."""
    parts = []
    for param in op.inputs:
        if param.keyword_only and "*" not in parts:
            parts.append("*")
        parts.append(f"{param.name}={python_default(param)}" if param.has_default else param.name)
    return parts + [f"{param.name}=None" for param in op.outputs]


def text_signature(op: Operator) -> str:
    """The first lines of a docstring, from which CPython makes __text_signature__."""
    return f"{op.name}({', '.join(['$module', *signature_arguments(op)])})\n--\n\n"


def shape_text(param: Param) -> str:
    """(*, D) of the shape text '* D'."""
    shape: Shape = param.shape
    inside = shape_sizes(param)
    if shape.expand:
        return f"broadcastable to ({_commas(inside[len('expand(') : -1])})"
    text = f"({_commas(inside)})"
    return f"list of {shape.length} tensors {text}" if shape.length else text


def _commas(text: str) -> str:
    parts, depth = [""], 0
    for char in text:
        depth += (char == "(") - (char == ")")
        if char == " " and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    parts = [part for part in parts if part]
    return (
        f"{parts[0]},"
        if len(parts) == 1 and not parts[0].startswith("broadcast")
        else ", ".join(parts)
    )


def dtype_text(param: Param) -> str:
    """What the dtype may be."""
    rule = param.dtypes
    if rule.promote:
        both = (*rule.promote, *((rule.with_dtype,) if rule.with_dtype else ()))
        return f"torch's promotion of {listed(both, 'and')}"
    if rule.attribute:
        return f"dtype {rule.attribute}" + (
            f", or that of {rule.otherwise} when None" if rule.otherwise else ""
        )
    if rule.first_given:
        return "dtype of {}, or that of {} when None".format(*rule.first_given)
    return listed([*([f"dtype of {rule.same_as}"] if rule.same_as else []), *rule.names])


def _argument(param: Param) -> str:
    if param.is_tensor:
        text = f"{shape_text(param)} {dtype_text(param)}"
        text += {
            "contiguous": ", contiguous",
            "rows": ", last dimension contiguous",
            "dense": ", without gaps",
            "strided": ", any strides",
        }[param.layout]
        text += " (on the CPU, another is copied)" if param.copied else ""
        text += f", aligned to {param.alignment} bytes" if param.alignment else ""
        text += ", or a number" if param.number else ""
        text += ", or None" if param.optional else ""
        text += ", written" if param.mutated else ""
    else:
        text = (
            param.kind
            + (f"[{param.fixed_count or ''}]" if param.is_list else "")
            + (" or None" if param.optional else "")
        )
        text += f", default {python_default(param)}" if param.has_default else ""
        text += f", one of {listed(param.possible)}" if param.possible else ""
    return f"{text}; {param.about.rstrip('.')}." if param.about else f"{text}."


def _results(op: Operator) -> str:
    lists = [param.name for param in op.inputs if param.inplace and param.is_list]
    may = f" Elements of a written list may be exactly those of {listed(lists)}." if lists else ""
    if not op.outputs:
        written = [param.name for param in op.inputs if param.mutated]
        return (f"None; {listed(written, 'and')} written in place." if written else "None.") + may
    named = len(op.outputs) > 1 or op.outputs[0].name != "out"
    parts = []
    for param in op.outputs:
        text = f"{param.name}: " if named else ""
        text += f"{shape_text(param)}, new unless given, {_of(dtype_text(param))}"
        text += ", made only when wanted" if param.optional else ""
        text += f", {param.about.rstrip('.')}" if param.about else ""
        parts.append(text)
    inplace = [param.name for param in op.inputs if param.inplace and not param.is_list]
    tail = f" A result may be exactly {listed(inplace)}." if inplace else ""
    return "; ".join(parts) + "." + tail + may


def _of(text: str) -> str:
    return text if text.startswith(("dtype", "torch")) else f"dtype {text}"


def _row(head: str, text: str, indent: int) -> str:
    wrapped = textwrap.wrap(text, _WIDTH - indent, break_long_words=False) or [""]
    return head.ljust(indent) + ("\n" + " " * indent).join(wrapped)


def docstring(op: Operator) -> str:
    """Signature line (CPython takes it off), brief, arguments, results, errors, source."""
    indent = max([len(param.name) + 3 for param in op.inputs] + [len("Requires") + 2])
    rows = [_row(f"{param.name}:", _argument(param), indent) for param in op.inputs]
    rows.append(_row("Returns", _results(op) + _stream(op), indent))
    if op.conditions:
        stated = dict.fromkeys(text for text, _ in op.conditions)
        rows.append(_row("Requires", "; ".join(stated) + ".", indent))
    rows.append(
        _row(
            "Raises",
            _ERRORS,
            indent,
        )
    )
    for head, text in (("Computes", op.math), ("Source", op.source)):
        if text:
            rows.append(_row(head, text, indent))
    return f"{text_signature(op)}{op.brief}\n\n" + "\n".join(rows) + "\n"


def _stream(op: Operator) -> str:
    """What is known of streams; a CPU has none."""
    on_cpu = all(kernel.device == "cpu" for kernel in op.kernels)
    return "" if on_cpu else " On a device it runs on the current stream, and never waits."


def reference_page(operators: list[Operator], untested: Sequence[str] = ()) -> str:
    """Markdown: every operator with its schema, docstring and kernels; which of them no GPU has tested as they are."""
    lines = ["<!-- Generated from the operator files; do not edit. -->", "", "# Operators", ""]
    lines += ["| operator | what it does | kernels |", "|---|---|---|"]
    for op in operators:
        lines.append(
            f"| [`{op.full_name}`](#{_anchor(op)}) | {markdown_cell(op.brief)} | {_backends(op, untested)} |"
        )
    for op in operators:
        lines += ["", *operator_section(op, untested)]
    return "\n".join(lines) + "\n"


def operator_section(op: Operator, untested: Sequence[str] = ()) -> list[str]:
    """Lines of Markdown: schema, docstring, kernels and what else the file says."""
    body = docstring(op).removeprefix(text_signature(op))
    lines = [f"## {op.full_name}", "", *markdown_block(op.schema), ""]
    lines += [*markdown_block(body.rstrip()), ""]
    lines.append(f"Kernels: {_backends(op, untested)}.")
    if op.tolerance:
        limits = [f"{name} {value:g}" for name, value in op.tolerance.items()]
        for backend, wider in op.tolerance_on.items():
            limits += [f"on {backend} {name} {value:g}" for name, value in wider.items()]
        lines.append(f"Tolerance: {', '.join(limits)}.")
    if op.backward:
        lines.append(f"Gradient: {markdown_code(op.backward.name)}.")
    if op.tangent:
        lines.append(f"Forward mode: {listed(op.tangent, 'and')}.")
    if op.autocast:
        lines.append(f"Under torch.autocast: {_AUTOCAST[op.autocast]}.")
    if op.independent:
        lines.append(f"Independent sizes: {listed(op.independent, 'and')}.")
    if op.flops:
        lines.append(f"Floating-point operations: {markdown_code(op.flops[0])}.")
    return lines


def _anchor(op: Operator) -> str:
    return op.full_name.replace(".", "")


def _backends(op: Operator, untested: Sequence[str]) -> str:
    names = []
    for kernel in op.kernels:
        marked = kernel.device == "cuda" and kernel.is_compiled and op.full_name in untested
        names.append((kernel.name or kernel.backend) + " (not tested on a GPU as it is)" * marked)
    return ", ".join(names) or "none"
