# SPDX-License-Identifier: Apache-2.0
"""The C file that calls a function of tvm-ffi as a kernel: its values, and one call of anyop/forms/tvm_ffi_module.h."""

from __future__ import annotations

from ..forms.binary_call import Argument
from ..forms.kernels import Kernel
from ..operators.operator_file import Operator
from ..text.c_text import c_comment, c_string
from .c_expression import c_expression
from .header import header_path

_INT, _BOOL = "kAnyopModuleInt", "kAnyopModuleBool"


def module_path(library: str, kernel: Kernel) -> str:
    """Where the opened library lies, from the folder of the built one."""
    return f"modules/{library}/{kernel.files[0].name}"


def write_module_adapter(op: Operator, kernel: Kernel, library: str) -> str:
    """The .c file of one kernel."""
    arguments = kernel.ready.arguments
    path, symbol = f"$ORIGIN/{module_path(library, kernel)}", f"__tvm_ffi_{kernel.ready.function}"
    values = [f"      {_value(argument)}," for argument in arguments]
    return "\n".join(
        [
            f"/* Generated from {c_comment(op.path.name)}; do not edit. Calls tvm-ffi for {op.full_name}. */",
            "#ifndef _GNU_SOURCE\n#define _GNU_SOURCE /* dladdr */\n#endif",
            f'#include "{header_path(op)}"\n#include "anyop/forms/size_math.h"',
            '#include "anyop/forms/tvm_ffi_module.h"\n',
            f"static AnyopModule module = {{{c_string(path)}, {c_string(symbol)}, NULL, NULL, NULL, NULL}};\n",
            f"int32_t {kernel.function}(const {op.struct}* args, AnyopCall* call) {{",
            *(line for argument in arguments for line in _checks(argument)),
            "  (void)args;",
            "  const AnyopModuleValue values[] = {",
            *values,
            "      {0, 0, {0}}, /* so that the array is never empty */",
            "  };",
            f"  return AnyopModuleRun(call, &module, values, {len(values)});",
            "}\n",
        ]
    )


def _checks(argument: Argument) -> list[str]:
    """What a value of tvm-ffi cannot hold."""
    param = argument.param
    if param is None and isinstance(argument.expression, tuple):
        problem, text = f"{c_expression(argument.expression)} == ANYOP_NO_SIZE", "is too large"
    elif param is not None and param.kind == "str":
        field = f"args->{param.name}"
        problem = f"{field}.data && strlen({field}.data) != (size_t){field}.count"
        text = "has a NUL inside"
    else:
        return []
    fail = f"call->fail(call, kAnyopValueError, {c_string(f'{argument.text} {text}')})"
    return [f"  if ({problem}) return {fail};"]


def _value(argument: Argument) -> str:
    param = argument.param
    if param is None:
        return f"AnyopModuleOfInt({_INT}, {c_expression(argument.expression)})"
    field = f"args->{param.name}"
    if param.is_tensor:
        return f"AnyopModuleOfPointer(kAnyopModuleTensor, {field})"
    if param.kind == "str":
        return f"AnyopModuleOfPointer(kAnyopModuleText, {field}.data)"
    value = _scalar(param.kind, f"{field}.value" if param.optional else field)
    none = "AnyopModuleOfPointer(kAnyopModuleNone, NULL)"
    return f"{field}.has ? {value} : {none}" if param.optional else value


def _scalar(kind: str, value: str) -> str:
    if kind == "float":
        return f"AnyopModuleOfFloat({value})"
    if kind == "ScalarType":
        return f"AnyopModuleOfDtype({value})"
    return f"AnyopModuleOfInt({_BOOL if kind == 'bool' else _INT}, {value})"
