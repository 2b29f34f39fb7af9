# SPDX-License-Identifier: Apache-2.0
"""The C file that starts a Triton kernel from its images: data, and calls of anyop/forms/triton_image.h."""

from __future__ import annotations

from ..forms.kernels import Kernel
from ..forms.launch_expression import launch_c
from ..forms.triton_launch import Launch, LaunchArgument
from ..operators.operator_file import Operator
from ..text.c_text import c_comment, c_string
from .header import header_path

_LAYOUTS = {"contiguous": "Contiguous", "rows": "Rows", "free": "Free"}


def write_triton_adapter(op: Operator, kernel: Kernel) -> str:
    """The .c file of one kernel."""
    launch = kernel.launch
    tensors = [a for a in launch.arguments if a.type == "tensor"]
    written = [param.name for param in op.params if param.output or param.mutated]
    known = launch.known
    return "\n".join(
        [
            f"/* Generated from {c_comment(op.path.name)}; do not edit. Starts {op.full_name} from its images. */",
            "#ifndef _GNU_SOURCE\n#define _GNU_SOURCE\n#endif",
            f'#include "{header_path(op)}"\n#include "anyop/forms/triton_image.h"\n',
            "static AnyopTritonKernel kernel = {",
            f"    {c_string(launch.base)}, {c_string(kernel.files[0].name)}, {len(tensors)}, {{NULL}}}};",
            *_configs(launch),
            f"\nint32_t {kernel.function}(const {op.struct}* args, AnyopCall* call) {{",
            "  AnyopTritonLaunch t;",
            "  AnyopTritonBegin(&t);",
            *(f"  t.cuda.written += AnyopCudaElements(args->{name});" for name in written),
            "  if (!t.cuda.written) return kAnyopOk;",
            "  int32_t status = 0;",
            *(f"  const int64_t n_{n} = {launch_c(e, known)};" for n, e in launch.names.items()),
            *_constants(launch),
            *(line for a in launch.arguments for line in _argument(a, known)),
            *(_constant(name) for name in launch.constants),
            *(f"  t.cuda.grid[{i}] = {launch_c(e, known)};" for i, e in enumerate(launch.grid)),
            *(f"  t.cuda.grid[{i}] = 1;" for i in range(len(launch.grid), 3)),
            "  return AnyopTritonRun(call, &kernel, &t);",
            "}\n",
        ]
    )


def _configs(launch: Launch) -> list[str]:
    """The choices of an autotuned kernel."""
    if not launch.configs:
        return []
    rows = ["{" + ", ".join(map(str, config.values())) + "}" for config in launch.configs]
    width = len(launch.configs[0])
    return [f"static const int64_t kChoices[][{width}] = {{{', '.join(rows)}}};"]


def _constants(launch: Launch) -> list[str]:
    """Each in a variable; those of configurations from the choice of the call."""
    tuned = list(launch.configs[0]) if launch.configs else []
    count = len(launch.configs)
    lines = [
        "  const int32_t told = AnyopChoice(call); /* the first is the default */",
        f"  const int32_t choice = told >= 0 && told < {count} ? told : 0;",
    ]
    lines = lines if tuned else []
    lines += [f"  const int64_t c_{n} = kChoices[choice][{i}];" for i, n in enumerate(tuned)]
    rest = [(n, e) for n, e in launch.constants.items() if n not in tuned]
    return lines + [f"  const int64_t c_{n} = {launch_c(e, launch.known)};" for n, e in rest]


def _constant(name: str) -> str:
    return f'  if ((status = AnyopTritonConstant(call, &t, "{name}", c_{name}))) return status;'


def _argument(a: LaunchArgument, known: dict[str, str]) -> list[str]:
    if a.type == "tensor":
        call = (
            f'AnyopTritonTensor(call, &t, "{a.param.name}", args->{a.param.name}, '
            f"kAnyopTriton{_LAYOUTS[a.layout]}, {a.aligned})"
        )
        return [f"  if ((status = {call})) return status;"]
    if a.type in ("float", "double"):
        return [f"  AnyopTriton{a.type.title()}(&t, ({a.type})args->{a.param.name});"]
    if a.type == "bool":
        return [f"  AnyopTritonPut(&t, args->{a.param.name} != 0);"]
    call = f"AnyopTritonInt(call, &t, {c_string(a.text)}, {launch_c(a.expression, known)}, {a.aligned})"
    return [f"  if ((status = {call})) return status;"]
