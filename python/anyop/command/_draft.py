# SPDX-License-Identifier: Apache-2.0
"""The files of `anyop new --schema`: an operator with any signature, a kernel and a reference to be filled in.

Every tensor has the shape of the first, and its dtype. The kernels build and refuse to run until they are written.
"""

from __future__ import annotations

from anyop.codegen.schema.fields import c_type, camel
from anyop.codegen.schema.params import Param
from anyop.codegen.schema.schema import Signature, parse_schema
from anyop.codegen.text.c_text import c_comment
from anyop.codegen.text.toml_text import toml_value

_FLOATS = ["float32", "float64"]


def draft(schema: str, backward: bool) -> tuple[str, str, dict[str, str]]:
    """Namespace and name, and texts by the names of their files. codegen's Mistake: no schema, or no gradient."""
    signature = parse_schema(schema)
    space, name = signature.namespace, signature.name
    schema = schema.strip() if "::" in schema.split("(")[0] else f"{space}::{schema.strip()}"
    files: dict[str, str] = {}
    more = ""
    if backward:
        gradient, saves = _gradient(signature)
        files |= _operator(gradient, f"Gradient of {name}.", "")
        more = f'\n[backward]\nname = "{name}_backward"\nsaves = {toml_value(saves)}\n'
    return space, name, _operator(schema, "", more) | files


def _operator(schema: str, brief: str, more: str) -> dict[str, str]:
    signature = parse_schema(schema)
    name = signature.name
    return {
        f"{name}.toml": _toml(schema, signature, brief or f"What {name} computes.") + more,
        f"{name}.cc": _kernel(schema, signature),
        f"{name}_test.py": _test(signature),
    }


def _toml(schema: str, signature: Signature, brief: str) -> str:
    """Shapes and dtypes are a guess, which the comments say."""
    params = signature.inputs + signature.outputs
    tensors = [param for param in params if param.is_tensor]
    plain = [p for p in signature.inputs if p.is_tensor and not (p.is_list or p.optional)]
    new = "*" if plain else "1"  # of results
    lines = [f"schema = {toml_value(schema)}", f"brief = {toml_value(brief)}", "", "[arguments]"]
    lines += [f'{param.name} = "what it is"' for param in params]
    lines += [
        "",
        '[shapes]                   # to be corrected: a letter binds a size, as in "* D"',
    ]
    for param in tensors:
        shape = "[N] *P" if param.is_list else new if param.output else "*"
        lines.append(f'{param.name} = "{shape}"')
    lines += [
        "",
        "[dtypes]                   # to be corrected: names, or the argument that it follows",
    ]
    first = plain[0].name if plain else None
    for param in tensors:
        own = ["float32"] if first is None else _FLOATS  # a result has one
        lines.append(f"{param.name} = {toml_value(own if first in (None, param.name) else first)}")
    lines += ["", "[kernels]", f'cpu = "{signature.name}.cc"']
    return "\n".join(lines) + "\n"


def _kernel(schema: str, signature: Signature) -> str:
    """The struct's fields stand in a comment; the header has the sizes too."""
    space, name = signature.namespace, signature.name
    struct, params = f"{camel(name)}Args", signature.inputs + signature.outputs
    fields = [f"//   {c_type(param)} {param.name};" for param in params]
    shown = c_comment(schema).replace("\\", "/")
    return "\n".join(
        [
            f"// {name} on the CPU: {shown}",
            f'#include "{space}/ops/{name}.h"  // {struct}, written from {name}.toml',
            "",
            "// Of args, and the sizes that [shapes] names:",
            *fields,
            "// Arguments are checked already: dtypes, shapes, memory.",
            f'extern "C" int32_t {space}_{name}_cpu(const {struct}* args, AnyopCall* call) {{',
            "  (void)args;",
            f'  return call->fail(call, kAnyopNotImplemented, "{name}.cc is to be written");',
            "}",
            "",
        ]
    )


def _test(signature: Signature) -> str:
    arguments = ", ".join(param.name for param in signature.inputs)
    changed = ", ".join(param.name for param in signature.inputs if param.mutated)
    says = f"; changes {changed} in place" if changed else ""
    return (
        f'"""{signature.name} in float64{says}."""\n\n\ndef reference({arguments}):\n'
        f'    raise NotImplementedError("{signature.name}_test.py: the reference is to be written")\n'
    )


def _gradient(signature: Signature) -> tuple[str, list[str]]:
    """The schema of the gradient, and what it saves."""
    from anyop.codegen.schema.source import Mistake

    wanted = [p for p in signature.inputs if p.is_tensor and not (p.is_list or p.mutated)]
    if not wanted or not signature.outputs or any(p.mutated for p in signature.inputs):
        raise Mistake(
            "--backward", "results, and tensors that are only read and in no list", "leave it out"
        )
    arguments = [f"Tensor grad_{param.name}" for param in signature.outputs]
    arguments += [f"{_type(param)} {param.name}" for param in signature.inputs]
    mark = "?" if len(wanted) > 1 else ""
    results = ", ".join(f"Tensor{mark} grad_{param.name}" for param in wanted)
    saves = [param.name for param in signature.inputs if param.is_tensor]
    name = f"{signature.namespace}::{signature.name}_backward"
    return f"{name}({', '.join(arguments)}) -> ({results})", saves


def _type(param: Param) -> str:
    count = "" if param.fixed_count is None else str(param.fixed_count)
    inner = "?" if param.optional_elements or (param.optional and not param.is_list) else ""
    outer = "?" if param.optional and param.is_list else ""
    return f"{param.kind}{inner}" + (f"[{count}]{outer}" if param.is_list else "")
