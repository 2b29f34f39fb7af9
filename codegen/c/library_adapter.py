# SPDX-License-Identifier: Apache-2.0
"""The C file that calls a vendor's operator: arguments by a declared prototype, calls of anyop/forms/aclnn_call.h."""

from __future__ import annotations

from typing import cast

from ..forms.kernels import Kernel
from ..forms.library_call import DEVICE, LibraryCall, Passed
from ..operators.operator_file import Operator
from ..schema.dtypes import DTYPES
from ..text.c_text import c_comment, c_string
from .c_expression import c_expression
from .header import header_path

_C_TYPES = {"int64": "int64_t", "int8": "int8_t", "bool": "_Bool", "double": "double"}
_C_TYPES |= {"dtype": "int32_t", "equals": "int64_t", "else": "double"}
_POINTER = "const void*"


def write_library_adapter(op: Operator, kernel: Kernel) -> str:
    """The .c file of one kernel."""
    call = cast("LibraryCall", kernel.ready)
    types = [_C_TYPES.get(passed.kind, _POINTER) for passed in call.arguments]
    written = [param.name for param in op.params if param.output or param.mutated]
    passed = ", ".join([*(f"a{i}" for i in range(len(types))), "&c.workspace_bytes, &c.executor"])
    return "\n".join(
        [
            f"/* Generated from {c_comment(op.path.name)}; do not edit. Calls {call.function} for {op.full_name}. */",
            "#ifndef _GNU_SOURCE\n#define _GNU_SOURCE /* dladdr */\n#endif",
            f'#include "{header_path(op)}"\n#include "anyop/forms/aclnn_call.h"\n',
            f"int32_t {kernel.function}(const {op.struct}* args, AnyopCall* call) {{",
            f"  static AnyopAclnn function = {{{c_string(call.function)}, NULL}};",
            f"  int32_t (*prototype)({', '.join([*types, 'uint64_t*', 'void**'])});",
            "  AnyopAclnnCall c;",
            "  int64_t written = 0;",
            *(f"  written += AnyopCudaElements(args->{name});" for name in written),
            "  if (written == 0) return kAnyopOk;",
            f"  if (AnyopAclnnBegin(&c, call, &function, {c_string(DEVICE)})) return c.status;",
            *_same(call),
            *_within(call),
            *(f"  {t} a{i} = {_value(p)};" for i, (t, p) in enumerate(zip(types, call.arguments, strict=True))),
            "  memcpy(&prototype, &c.ready->sizes, sizeof prototype);",
            f"  return AnyopAclnnRun(&c, c.status ? 0 : prototype({passed}));",
            "}\n",
        ]
    )  # fmt: skip


def _same(call: LibraryCall) -> list[str]:
    names = ", ".join(f"args->{param.name}" for param in call.same)
    if not names:
        return []
    text = "takes one dtype for " + ", ".join(param.name for param in call.same)
    return [
        f"  const AnyopTensor* const same[] = {{{names}}};",
        f"  AnyopAclnnSame(&c, same, {len(call.same)}, {c_string(text)});",
    ]


def _within(call: LibraryCall) -> list[str]:
    return [
        f"  if (!(AnyopAclnnInt(&c, {c_expression(left)}) <= AnyopAclnnInt(&c, {c_expression(right)})))\n"
        f"    AnyopAclnnStop(&c, kAnyopDeclined, {c_string('takes ' + text)});"
        for text, left, right in call.within
    ]


def _value(passed: Passed) -> str:
    field = f"args->{passed.param.name}" if passed.param else ""
    if passed.kind in ("tensor", "rows", "transposed"):
        return f"AnyopAclnn{passed.kind.capitalize()}(&c, {field})"
    if passed.kind == "reduced":
        last = c_expression(passed.values[0])
        return f"AnyopAclnnReduced(&c, {field}, {DTYPES.index(passed.text)}, {last})"
    if passed.kind == "sizes":
        values = ", ".join(map(c_expression, passed.values))
        return f"AnyopAclnnSizes(&c, (const int64_t[]){{{values}}}, {len(passed.values)})"
    if passed.kind == "scalar":
        return f"AnyopAclnnScalar(&c, {field or repr(passed.real)})"
    if passed.kind == "dtype":
        return f"AnyopAclnnDtype(AnyopDtypeOf({field}))"
    if passed.kind == "equals":
        return f"{field}.data && !strcmp({field}.data, {c_string(passed.text)})"
    if passed.kind == "text":
        return c_string(passed.text)
    if passed.kind == "else":
        root = f"1 / sqrt((double)AnyopAclnnInt(&c, {c_expression(passed.values[0])}))"
        return f"{field}.has ? {field}.value : {root}"
    if passed.kind == "none":
        return "NULL"
    if passed.kind == "int8":
        return f"AnyopAclnnInt8(&c, {field or c_expression(passed.values[0])})"
    if passed.kind == "double":
        return field or repr(passed.real)
    return field or f"AnyopAclnnInt(&c, {c_expression(passed.values[0])})"
