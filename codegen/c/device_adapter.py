# SPDX-License-Identifier: Apache-2.0
"""The C file that embeds a kernel of a plugin's device and starts it: data, and calls of anyop/forms/device_image.h."""

from __future__ import annotations

from typing import cast

from ..forms.binary_call import Argument, Image
from ..forms.kernels import Kernel
from ..operators.operator_file import Operator
from ..text.c_text import c_asm_path, c_comment, c_string
from .c_expression import c_expression
from .header import header_path
from .image_adapter import argument_lines


def write_device_adapter(op: Operator, kernel: Kernel) -> str:
    """The .c file of one kernel."""
    image, file = cast("Image", kernel.ready), kernel.files[0]
    data = f"anyop_image_{op.symbol}_{kernel.backend}"
    scratch = c_expression(0 if image.scratch_bytes is None else image.scratch_bytes)
    lines = [_lines(i, argument, scratch) for i, argument in enumerate(image.arguments)]
    tensors = [a.param.name for a in image.arguments if a.type is None and a.param is not None]
    written = [param.name for param in op.params if param.output or param.mutated]
    return "\n".join(
        [
            f"/* Generated from {c_comment(op.path.name)}; do not edit. Starts {op.full_name} from its image. */",
            "#ifndef _GNU_SOURCE\n#define _GNU_SOURCE\n#endif",
            f'#include "{header_path(op)}"\n#include "anyop/forms/device_image.h"\n',
            f"ANYOP_EMBED_IMAGE({data}, {c_asm_path(file)});",
            f"\nint32_t {kernel.function}(const {op.struct}* args, AnyopCall* call) {{",
            "  static AnyopImageOf kernel = {",
            f"      {c_string(kernel.device)}, {c_string(image.entry)},",
            f"      {{sizeof(AnyopDeviceImage), 0, {c_string(file.name)}, {data}, 0, NULL}},",
            f"      {data}_end, NULL}};",
            "  AnyopImageCall c;",
            "  AnyopImageBegin(&c);",
            *(f"  c.written += AnyopCudaElements(args->{name});" for name in written),
            "  if (c.written == 0) return kAnyopOk;",
            *(f"  c.is_double |= AnyopImageIsDouble(args->{name});" for name in tensors),
            *(line for of_one in lines for line in of_one),
            *_sizes("grid", image.grid),
            *_sizes("block", image.block),
            f"  c.launch.shared_bytes = {c_expression(image.shared_bytes)};",
            "  return AnyopImageRun(call, &kernel, &c);",
            "}\n",
        ]
    )


def _sizes(what: str, sizes: tuple) -> list[str]:
    values = [*map(c_expression, sizes), "1", "1"][:3]
    return [f"  c.launch.{what}[{i}] = {value};" for i, value in enumerate(values)]


def _lines(i: int, argument: Argument, scratch: str) -> list[str]:
    """The value of one argument, put in its place."""
    param = argument.param
    if argument.type is None and param is not None:
        return [f"  AnyopImageTensor(&c, {c_string(param.name)}, args->{param.name});"]
    if argument.type == "real":
        value = argument.param.name + (".value" if argument.param.optional else "")
        put = f"AnyopImageReal(&c, args->{value}, &v{i}, &v{i}_float);"
    else:  # scratch is memory of the device
        size = "0" if argument.type is None else f"sizeof v{i}"
        put = f"AnyopImagePut(&c, &v{i}, {size});"
    return [*argument_lines(i, argument, scratch), f"  {put}"]
