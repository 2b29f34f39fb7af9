# SPDX-License-Identifier: Apache-2.0
"""The C file that embeds a kernel's CUDA images and starts it: data, and one call of anyop/forms/cuda_image.h."""

from __future__ import annotations

from pathlib import Path

from ..forms import binaries
from ..forms.binary_call import SCRATCH, Argument, Image
from ..forms.kernels import Kernel
from ..operators.operator_file import Operator
from ..text.c_text import c_asm_path, c_comment, c_string
from .c_expression import c_expression
from .header import header_path

_C_TYPES = {
    "int32": "int32_t",
    "int64": "int64_t",
    "bool": "uint8_t",
    "float": "float",
    "double": "double",
}


def write_image_adapter(op: Operator, kernel: Kernel) -> str:
    """The .c file of one kernel."""
    image, files = kernel.ready, kernel.files
    names = [f"anyop_image_{op.symbol}_{i}" for i in range(len(files))]
    scratch = c_expression(image.scratch_bytes or 0)
    locals_ = [argument_lines(i, argument, scratch) for i, argument in enumerate(image.arguments)]
    return "\n".join(
        [
            f"/* Generated from {c_comment(op.path.name)}; do not edit. Starts {op.full_name} from its images. */",
            f'#include "{header_path(op)}"\n#include "anyop/forms/cuda_image.h"\n',
            *(
                f"ANYOP_EMBED({n}, {c_asm_path(file)});"
                for n, file in zip(names, files, strict=True)
            ),
            "\nstatic const AnyopCudaImage kImages[] = {",
            *(f"    {{{c_string(_shown(f))}, {n}}}," for n, f in zip(names, files, strict=True)),
            "};",
            *_params(image),
            "static AnyopCudaKernel kernel = {",
            f"    {c_string(image.entry)}, kImages, {'kParams, kBytes' if locals_ else 'NULL, NULL'},",
            f"    {len(files)}, {len(image.arguments)}, {{NULL}}}};\n",
            f"int32_t {kernel.function}(const {op.struct}* args, AnyopCall* call) {{",
            *(line for lines in locals_ for line in lines),
            _values(len(locals_)),
            *_launch(op, image),
            "  return AnyopCudaRunImage(call, &kernel, &launch, values);",
            "}\n",
        ]
    )


def _params(image: Image) -> list[str]:
    if not image.arguments:
        return []
    sizes = {"int32": 4, "bool": 1, "float": 4}
    return [
        "static const char* const kParams[] = {",
        *(f"    {c_string(argument.text)}," for argument in image.arguments),
        "};",
        "static const uint32_t kBytes[] = {"
        + ", ".join(str(sizes.get(argument.type or "", 8)) for argument in image.arguments)
        + "};",
    ]


def argument_lines(i: int, argument: Argument, scratch_bytes: str) -> list[str]:
    """The value of an argument in a variable of exactly the kernel's type."""
    param = argument.param
    if argument.text == SCRATCH and param is None:
        return [
            f"  const int64_t scratch_bytes = {scratch_bytes};",
            f"  void* v{i} = scratch_bytes < 0 ? NULL : call->workspace(call, scratch_bytes);",
            f"  if (!v{i}) return kAnyopOutOfMemory;",
        ]
    if argument.type == "equals":
        value, text = f"args->{param.name}.data", c_string(argument.text)
        return [f"  const int32_t v{i} = {value} && !strcmp({value}, {text});"]
    if argument.type == "absent":
        return [f"  const int32_t v{i} = !args->{param.name}.has;"]
    if argument.places:
        return _layout_lines(i, argument)
    if argument.type == "real":
        return [f"  double v{i};", f"  float v{i}_float;"]
    if argument.type is None:
        data = f"args->{param.name}->data"
        value = f"args->{param.name} ? {data} : NULL" if param.optional else data
        return [f"  void* v{i} = {value};"]
    return _number_lines(i, argument)


def _layout_lines(i: int, argument: Argument) -> list[str]:
    """Of layout(x, y), rows(x), matrices(x) and split(x, dim)."""
    if argument.type == "split":
        tensor, dim = (param.name for param in argument.places)
        return [
            f"  AnyopLayout v{i};",
            f"  AnyopImageSplit(&v{i}, args->{tensor}, args->{dim});",
        ]
    names = ", ".join(f"args->{param.name}" for param in argument.places)
    count, dropped = len(argument.places), int(argument.type == "rows")
    kept = 2 * (argument.type == "matrices")
    return [
        f"  AnyopLayout v{i};",
        f"  const AnyopTensor* const t{i}[] = {{{names}}};",
        f"  const int32_t s{i} = AnyopImageLayout(call, &v{i}, t{i}, {count}, {dropped}, {kept});",
        f"  if (s{i}) return s{i};",
    ]


def _number_lines(i: int, argument: Argument) -> list[str]:
    """Of a number or a size."""
    param = argument.param
    value = f"args->{param.name}" if param else c_expression(argument.expression)
    if argument.type == "int32":
        return [
            f"  int32_t v{i};",
            f"  if (AnyopCudaInt32(call, {c_string(argument.text.split(':')[0])}, {value}, &v{i}))",
            "    return kAnyopValueError;",
        ]
    if param is None:
        fail = f"call->fail(call, kAnyopValueError, {c_string(argument.text + ' is too large')})"
        return [
            f"  int64_t v{i} = {value};",
            f"  if (v{i} == ANYOP_NO_SIZE) return {fail};",
        ]
    kind = _C_TYPES[argument.type]
    return (
        [f"  {kind} v{i} = {value}{' != 0' if argument.type == 'bool' else ''};"]
        if (kind in ("int64_t", "double") or argument.type == "bool")
        else [f"  {kind} v{i} = ({kind}){value};"]
    )


def _values(count: int) -> str:
    return f"  void* values[] = {{{', '.join([*(f'&v{i}' for i in range(count)), 'NULL'])}}};"


def _launch(op: Operator, image: Image) -> list[str]:
    def extent(sizes: tuple) -> str:
        return ", ".join([*map(c_expression, sizes), *["1"] * (3 - len(sizes))])

    cluster = ", ".join(map(str, [*image.cluster, 1, 1][:3] if image.cluster else [0, 0, 0]))
    written = [param.name for param in op.params if param.output or param.mutated]
    lines = [
        "  AnyopCudaLaunch launch = {",
        f"      {{{extent(image.grid)}}}, {{{extent(image.block)}}}, {c_expression(image.shared_bytes)}, 0,",
        f"      {{{cluster}}}, {int(image.cooperative)}, {int(image.pdl)}}};",
    ]
    return lines + [f"  launch.written += AnyopCudaElements(args->{name});" for name in written]


def _shown(file: Path) -> str:
    """The name with what the image is for, as errors show it."""
    arch = binaries.cuda_arch(file)
    return f"{file.name} (sm_{arch})" if arch else file.name
