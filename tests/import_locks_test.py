# SPDX-License-Identifier: Apache-2.0
"""Threads may import any two modules of anyop at once: neither waits for the other.

CPython locks a module while it is imported, and holds that lock while it imports the package around it and all that
stands at the module's top. Two threads on one circle of these may end in ``_DeadlockError``: one in some thousand
runs of ``anyop doctor`` did.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import anyop

ROOT = Path(anyop.__file__).parent
BINDINGS = Path(__file__).parents[1] / "bindings"
# What one thread alone runs: commands, and the tests and timings behind them.
COMMANDS = ("anyop.command", "anyop.testing", "anyop.tune")


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def named(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """What these statements import."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


def entered(trees: dict[str, ast.Module]) -> set[str]:
    """Modules that code of another package of anyop imports, perhaps before their own package."""
    found = {
        name
        for path in BINDINGS.rglob("*.cc")
        for name in re.findall(r'ImportModule\("(anyop\.[\w.]+)"', path.read_text())
    }
    for module, tree in trees.items():
        for node in ast.walk(tree):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [name.name for name in node.names] if isinstance(node, ast.Import) else []
            found |= {name for name in names if name.split(".")[1:2] != module.split(".")[1:2]}
    return found


def test_no_circle_of_imports():
    paths = {module_name(path): path for path in ROOT.rglob("*.py")}
    trees = {
        module: ast.parse(path.read_text(encoding="utf-8"))
        for module, path in paths.items()
        if not module.startswith(COMMANDS)
    }
    inside = entered(trees)
    assert "anyop.cache.place" in inside and "anyop.builder.folder" in inside
    waits_for = {}
    for module, tree in trees.items():
        package = {module.rpartition(".")[0]}
        wanted = {*named(tree.body)} - package  # which is there already where it was entered first
        waits_for[module] = (wanted | (package if module in inside else set())) & trees.keys() - {
            "anyop",
            module,
        }
    try:
        TopologicalSorter(waits_for).prepare()
    except CycleError as error:
        raise AssertionError(" <- ".join(error.args[1])) from None
