# SPDX-License-Identifier: Apache-2.0
"""Kernels that no compiler takes and no linker: calls of ATen, Python functions, functions of tvm-ffi.

A table holds what is called as a text in JSON; who knows the form makes it callable at run time.
"""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..schema.binding import Binding
from ..schema.operator_sections import text_of, texts_of
from ..schema.params import Param
from ..schema.source import Mistake, check_one_of, listed
from .calls import check_names, free_names, parse_call, results
from .foreign_call import check_call

FRAMEWORKS = ("numpy", "torch", "jax", "cupy")
_FRAMEWORKS = {"triton": "torch"}  # backend -> framework of its functions, where it is not NumPy


@dataclass(frozen=True)
class Foreign:
    """What the table's text says: `text` as the metadata shows it, `hidden` besides."""

    text: dict[str, Any]
    hidden: dict[str, Any]

    @property
    def json(self) -> str:
        return json.dumps({**self.text, **self.hidden}, ensure_ascii=False, separators=(",", ":"))


def read_aten(entry: dict[str, Any], params: list[Param], binding: Binding) -> Foreign:
    """Of `aten = "rms_norm(x, [D], weight, eps)"`."""
    call = text_of(entry.get("call"), "call")
    tree = parse_call(call)
    names = [param.name for param in params]
    places = size_places(params)
    check_names(tree, [*names, *(size for size in binding.sizes if size not in names)])
    outputs = [param.name for param in params if param.output]
    if not outputs or any(param.mutated for param in params):
        raise Mistake("an aten call that writes arguments", "results only", "remove it")
    parts = results(tree)
    if parts is not None and len(parts) != len(outputs):
        raise Mistake(
            f"{len(parts)} results in the call", f"{len(outputs)} ({listed(outputs)})", "correct it"
        )
    sizes = sorted(free_names(tree) & set(binding.sizes) - set(names))
    for size in sizes:
        if size not in places:
            raise Mistake(
                f"size '{size}' in the call",
                "one that stands alone in the shape of a tensor that every call has",
                "write it with these",
            )
    return Foreign({"call": call, "sizes": {size: places[size] for size in sizes}}, {})


def size_places(params: list[Param]) -> dict[str, tuple[str, int]]:
    """Size -> a tensor that every call has, and the dimension in which it stands alone."""
    places: dict[str, tuple[str, int]] = {}
    for param in params:
        if not param.is_tensor or param.is_list or param.optional or param.shape.expand:
            continue
        before, after = param.shape.before, param.shape.after
        for at, term in [*enumerate(before), *enumerate(after, -len(after))]:
            if isinstance(term, str):
                places.setdefault(term, (param.name, at))
    return places


def read_python(
    backend: str, name: str, file: Path, entry: dict[str, Any], params: list[Param]
) -> Foreign:
    """Of `triton = { file = "rms_norm_triton.py", function = "rms_norm" }`."""
    function = entry.get("function", name)
    framework = entry.get("framework", _FRAMEWORKS.get(backend, "numpy"))
    check_one_of(framework, FRAMEWORKS, f"framework {framework!r}", fix="use one of these")
    source = _source(file)
    _check_function(file, source, function, params)
    needs = texts_of(entry.get("needs", []), "needs")
    if backend == "triton" and "needs" not in entry:
        needs = ["triton"]
    text = {"file": file.name, "function": function, "framework": framework, "needs": needs}
    return Foreign(text, {"source": source})


def _source(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise Mistake(f"{file.name} is not UTF-8", "UTF-8 text", "save it as UTF-8") from None


def _check_function(file: Path, source: str, function: object, params: list[Param]) -> None:
    """The function is there; a plain one takes the operator's arguments."""
    try:
        body = ast.parse(source, file.name).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = f"line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else error
        raise Mistake(f"{file.name} is no Python ({reason})", "it", "correct the file") from None
    plain = {node.name: node for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    given = [target for node in body for target in getattr(node, "targets", ())]
    found = [*plain, *(target.id for target in given if isinstance(target, ast.Name))]
    what = f"{file.name} without the function '{function}'"
    check_one_of(function, found, what, "one of it", 'define it, or write function = "..."')
    node = plain.get(str(function))
    if isinstance(node, ast.FunctionDef) and not node.decorator_list:
        _check_parameters(file, node, params)


def _check_parameters(file: Path, node: ast.FunctionDef, params: list[Param]) -> None:
    outputs = {param.name for param in params if param.output}
    inputs = [param.name for param in params if not param.output]
    taken = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
    taken = [name for name in taken if name not in outputs]
    least = len(taken) - len(node.args.defaults)
    if not least <= len(inputs) or (len(taken) < len(inputs) and node.args.vararg is None):
        raise Mistake(
            f"{file.name}: {node.name}({', '.join(taken)})",
            f"a function of {listed(inputs, 'and')}",
            "take every argument of the operator",
        )


def read_call(entry: dict[str, Any], params: list[Param], binding: Binding) -> Foreign:
    """Of `flashinfer = { call = "rmsnorm(out, rows(x), weight, eps, False)" }`."""
    call = text_of(entry.get("call"), "call")
    check_call(call, params, binding)
    text = {"call": call, "needs": texts_of(entry.get("needs", []), "needs")}
    if "module" in entry and "library" in entry:
        raise Mistake("module and library", "one of them", "remove the other")
    for key in ("module", "library"):
        text[key] = text_of(entry[key], key) if key in entry else ""
    return Foreign(text, {})
