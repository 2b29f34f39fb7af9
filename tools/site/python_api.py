# SPDX-License-Identifier: Apache-2.0
"""Pages of Python modules: signatures and docstrings as help() shows them. Nothing is imported."""

from __future__ import annotations

import ast
from pathlib import Path

import griffe

PYTHON = Path(__file__).resolve().parents[2] / "python"
MODULES = {
    "anyop": "calls, routes, libraries of operators",
    "anyop.torch": "PyTorch",
    "anyop.torch.nn": "modules for PyTorch",
    "anyop.torch.optim": "optimizers for PyTorch",
    "anyop.torch.device": 'PyTorch\'s device "anyop"',
    "anyop.jax": "JAX",
    "anyop.paddle": "PaddlePaddle",
    "anyop.aten": "all of PyTorch's operators, for every framework",
    "anyop.jit": "operators of a snippet",
    "anyop.testing": "the standard tests of operators",
    "anyop.tune": "which kernel is fastest here",
}


def pages() -> dict[str, str]:
    """Markdown by the module's name."""
    package = griffe.load("anyop", search_paths=[PYTHON], resolve_aliases=True)
    return {name: _page(package, name) for name in MODULES}


def _page(package: griffe.Module, name: str) -> str:
    module = package[name.removeprefix("anyop").lstrip(".")] if name != "anyop" else package
    lines = [f"# {name}", ""]
    if module.docstring:
        lines += _text(module.docstring.value)
    for own, member in sorted(_public(package, module).items()):
        lines += [f"## {own}", "", *_described(own, member)]
        for inner, method in member.all_members.items() if member.is_class else ():
            if not inner.startswith("_") and method.is_function and method.has_docstring:
                lines += [f"### {own}.{inner}", "", *_described(inner, method)]
    return "\n".join(lines) + "\n"


def _public(package: griffe.Module, module: griffe.Module) -> dict[str, griffe.Object]:
    """Functions and classes of anyop, also those that are imported when they are first asked for."""
    found = {}
    for name, member in module.members.items():
        member = _final(member)
        if member is None or name.startswith("_") or not (member.is_function or member.is_class):
            continue
        if member.path.startswith("anyop.") and "_functions" not in member.path:
            found[name] = member
    if "_LATER" in module.members and module.path == "anyop":
        for name, where in ast.literal_eval(str(module["_LATER"].value)).items():
            member = _final(package[where.removeprefix("anyop.")].members.get(name))
            if member is not None:
                found[name] = member
    return found


def _final(member: griffe.Object | griffe.Alias | None) -> griffe.Object | None:
    """None for what comes from another package."""
    try:
        return member.final_target if member is not None and member.is_alias else member
    except griffe.AliasResolutionError:
        return None


def _described(name: str, member: griffe.Object) -> list[str]:
    lines = []
    if member.is_function:
        lines += ["```python", member.signature(name=name), "```", ""]
    elif "__init__" in member.members:
        lines += ["```python", f"class {member['__init__'].signature(name=name)}", "```", ""]
    return lines + (_text(member.docstring.value) if member.has_docstring else [])


def _text(docstring: str) -> list[str]:
    """As it was written: its columns mean something."""
    return ["```text", docstring.strip(), "```", ""]
