# SPDX-License-Identifier: Apache-2.0
"""Threads may import any two modules of anyop at once: neither waits for the other.

CPython locks a module while it is imported, and holds that lock while it imports the package around it and all that
stands at the module's top. Two threads on one circle of these may end in ``_DeadlockError``.
"""

import ast
import os
import re
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import anyop

ROOT = Path(anyop.__file__).parent
BINDINGS = Path(__file__).parents[2] / "bindings"
# What users import by itself, perhaps while another thread's first call imports the package around it.
PUBLIC = {f"anyop.torch.{name}" for name in ("apex", "attention", "deep_gemm", "device")}
PUBLIC |= {
    "anyop.torch.flashinfer",
    "anyop.torch.nn",
    "anyop.torch.optim",
    "anyop.jax.aten",
    "anyop.backend.tvm_ffi",
}
# What one thread alone runs: commands, and the tests and timings behind them.
COMMANDS = ("anyop.command", "anyop.testing", "anyop.tune", "anyop.cases", "anyop.conformance")


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules() -> dict[str, Path]:
    """All of the package by name. In a build folder its folders are links."""
    walked = os.walk(ROOT, followlinks=True)
    files = [Path(at, name) for at, _, names in walked for name in names if name.endswith(".py")]
    return {module_name(path): path for path in files}


def named(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """What these statements import."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, (ast.If, ast.Try)) and not is_for_types(node):
            handlers = [
                inner for handler in getattr(node, "handlers", ()) for inner in handler.body
            ]
            yield from named([*node.body, *handlers, *node.orelse])


def is_for_types(node: ast.AST) -> bool:
    """if TYPE_CHECKING: is for no thread."""
    return isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"


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


def test_what_anyop_imports_waits_for_nobody():
    """Python lets a thread that imports anyop.cache pass by one that is importing anyop: it may come to these first."""
    paths = {module_name(path): path for path in ROOT.glob("*.py")}
    todo, seen = {"anyop", "anyop._routes"}, set()  # the second where ANYOP_LOG_DISPATCH is set
    while todo:
        seen.add(module := todo.pop())
        tree = ast.parse(paths[module].read_text(encoding="utf-8"))
        todo |= {*named(tree.body)} & paths.keys() - seen
        if module == "anyop":
            continue
        for node in ast.walk(tree):
            waits = isinstance(node, ast.ImportFrom) and node.module == "anyop"
            if isinstance(node, ast.Import):
                waits = any(name.name.partition(".")[0] == "anyop" for name in node.names)
            assert not waits, f"{module}, line {node.lineno}: from anyop.x import y, import_module"
    assert seen > {"anyop._load", "anyop._operators", "anyop._paths"}


def test_no_circle_of_imports():
    paths = modules()
    trees = {
        module: ast.parse(path.read_text(encoding="utf-8"))
        for module, path in paths.items()
        if not module.startswith(COMMANDS)
    }
    assert trees.keys() >= PUBLIC
    inside = entered(trees) | PUBLIC
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


def anywhere(module: str, paths: dict[str, Path]) -> Iterator[str]:
    """What a module imports, in its functions too; the extension module apart."""
    is_package = paths[module].name == "__init__.py"
    package = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(ast.parse(paths[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            inner = [f"{base}.{name.name}" for name in node.names if name.name != "_anyop"]
            yield from (name if name in paths else base for name in inner)


def wanted(paths: dict[str, Path]) -> dict[str, set[str]]:
    return {module: {*anywhere(module, paths)} & paths.keys() - {module} for module in paths}


def test_no_circle_of_imports_in_functions_either():
    """Who reads one file need not read another first that needs the first."""
    found = wanted(modules())
    assert "anyop.builder.compile" in found["anyop.builder.build"]  # in a function
    assert "anyop.codegen.schema.source" in found["anyop.codegen.schema.names"]  # from .source
    try:
        TopologicalSorter(found).prepare()
    except CycleError as error:
        raise AssertionError(" <- ".join(error.args[1])) from None


def test_no_circle_of_the_generators_folders():
    found: dict[str, set[str]] = {}
    for module, names in wanted(modules()).items():
        if module.startswith("anyop.codegen.") and not module.endswith(("_test", "conftest")):
            folders = {n.split(".")[2] for n in names if n.startswith("anyop.codegen.")}
            found.setdefault(module.split(".")[2], set()).update(folders)
    for folder, names in found.items():
        names.discard(folder)
    assert found["operators"] >= {"forms", "schema"}
    order = [*TopologicalSorter(found).static_order()]  # raises CycleError
    assert order.index("schema") < order.index("forms") < order.index("operators")


def test_operators_run_and_are_tuned_without_the_standard_tests():
    apart = ("anyop.testing", "anyop.conformance", "anyop.command")
    for module, names in wanted(modules()).items():
        if not module.startswith(apart):
            assert not [name for name in names if name.startswith(apart[:2])], module
