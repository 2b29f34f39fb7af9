# SPDX-License-Identifier: Apache-2.0
"""The same operators as functions of tvm-ffi: for each a C++ file with a typed export that calls the same kernel.

The exports check nothing and take their results from the caller: the least that such an export can cost.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from codegen.generate import generate  # noqa: E402
from codegen.operators.operator_file import Operator  # noqa: E402
from codegen.schema.expressions import linear  # noqa: E402
from codegen.schema.fields import camel, numel_field  # noqa: E402
from codegen.schema.params import Param  # noqa: E402

_TYPES = {"Tensor": "ffi::TensorView", "float": "double", "bool": "bool", "str": "ffi::String"}


def write_project(folder: Path, flags: list[str], include: list[str], link: list[str]) -> int:
    """Write headers, exports and build.ninja for libexports.so; returns the number of operators.

    Ninja's targets: `exports` and `kernels` are compiled only, libexports.so is both linked.
    """
    made = generate([ROOT / "ops"], "exports")
    for name, text in made.files.items():
        if name.endswith(".h"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
    exports, kernels = [], set()
    for op in made.operators:
        exports.append(folder / f"{op.name}_export.cc")
        exports[-1].write_text(_export(op))
        kernels |= {file for k in op.kernels if k.backend == "cpu" for file in k.files}
    compile = ["g++", "-std=c++17", *flags, "-I.", f"-I{ROOT / 'include'}"]
    own = [f"-I{ROOT / 'bench' / 'peers'}", *(f"-isystem{path}" for path in include)]
    lines = ["rule run", "  command = $words"]

    def step(output: str, words: list[str], inputs: str) -> str:
        lines.append(f"build {output}: run {inputs}\n  words = {shlex.join(words)}")
        return output

    def compiled(source: Path, more: list[str]) -> str:
        output = f"{source.stem}.o"
        return step(output, [*compile, *more, "-c", str(source), "-o", output], str(source))

    objects = [compiled(path, own) for path in exports]
    lines.append(f"build exports: phony {' '.join(objects)}")
    kernels = [compiled(path, []) for path in sorted(kernels)]
    lines.append(f"build kernels: phony {' '.join(kernels)}")
    objects += kernels
    output = "libexports.so"
    step(output, ["g++", "-shared", *objects, *link, "-o", output], " ".join(objects))
    (folder / "build.ninja").write_text("\n".join(lines) + "\n")
    return len(made.operators)


def _export(op: Operator) -> str:
    """One file, in the form that tvm-ffi's own examples have."""
    parameters = ", ".join(f"{_type(param)} {param.name}" for param in op.params)
    body = [line for param in op.params for line in _fill(param)] + _sizes(op)
    symbol = f"{op.namespace}_{op.name}_cpu"
    return "\n".join(
        [
            f"// Generated from {op.path.name}; do not edit.",
            '#include "builder_export.h"',
            f'#include "{op.namespace}/ops/{op.name}.h"',
            "namespace exported {",
            f"void {camel(op.name)}({parameters}) {{",
            f"  {op.struct} args = {{}};",
            *(f"  {line}" for line in body),
            f"  Run({symbol}, &args);",
            "}",
            "}  // namespace exported",
            f"TVM_FFI_DLL_EXPORT_TYPED_FUNC({op.name}, exported::{camel(op.name)});",
            "",
        ]
    )


def _type(param: Param) -> str:
    plain = _TYPES.get(param.kind, "int64_t")
    return f"ffi::Optional<{plain}>" if param.optional else plain


def _fill(param: Param) -> list[str]:
    """The field of one parameter."""
    name, field = param.name, f"args.{param.name}"
    if param.is_tensor and param.optional:
        return [
            f"AnyopTensor {name}_view;",
            f"if ({name}) {name}_view = View(*{name}), {field} = &{name}_view;",
        ]
    if param.is_tensor:
        return [f"AnyopTensor {name}_view = View({name});", f"{field} = &{name}_view;"]
    if param.kind == "str":
        return [f"{field} = {{{name}.data(), static_cast<int64_t>({name}.size())}};"]
    if param.optional:
        return [f"if ({name}) {field} = {{*{name}, 1}};"]
    return [f"{field} = {name};"]


def _sizes(op: Operator) -> list[str]:
    """Every size letter and product from the first tensor that has it; those of optional tensors last."""
    lines, known = [], {param.name for param in op.inputs}
    for param in sorted((p for p in op.params if p.shape), key=lambda p: p.optional):
        shape, name = param.shape, f"(*{param.name})" if param.optional else param.name
        guard = f"if ({param.name}) " if param.optional else ""
        places = [*enumerate(shape.before), *enumerate(shape.after, -len(shape.after))]
        for place, term in [] if shape.expand else places:
            solved = linear(term)
            if solved and solved[0] not in known:
                letter, factor, added = solved
                known.add(letter)
                size = f"({name}.size({place}) - {added}) / {factor}"
                lines.append(f"{guard}args.{letter} = {size};")
        if shape.group and not shape.expand and numel_field(shape.group) not in known:
            known.add(numel_field(shape.group))
            rest = f"{len(shape.before)}, {len(shape.after)}"
            lines.append(f"{guard}args.{numel_field(shape.group)} = Product({name}, {rest});")
    return lines
