# SPDX-License-Identifier: Apache-2.0
"""All operators of some folders, found by listing them, and what must hold between operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ..schema.operator_sections import check_saved
from ..schema.source import Mistake, SchemaError, nearest
from .gradients import check_gradient
from .operator_file import Operator, read_operator
from .tangent_calls import check_tangents


def find_files(folders: Iterable[Path]) -> list[Path]:
    """Every .toml below the folders, sorted; hidden folders and pyproject.toml are no operators."""
    found: dict[Path, Path] = {}
    for folder in folders:
        if folder.is_file():
            found[folder.resolve()] = folder
            continue
        if not folder.is_dir():
            raise SchemaError(
                folder, 1, Mistake("no such folder", "a folder of operators", "correct the path")
            )
        for path in folder.rglob("*.toml"):
            hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
            if not hidden and path.name != "pyproject.toml":
                found.setdefault(path.resolve(), path)
    return sorted(found.values(), key=lambda path: (path.name, path))


def read_folders(folders: Iterable[Path]) -> tuple[list[Operator], list[SchemaError]]:
    """The operators, sorted by name, and every mistake found (the first of each file)."""
    errors: list[SchemaError] = []
    folders = list(folders)
    try:
        files = find_files(folders)
        if not files:
            place = folders[0] if folders else Path()
            raise SchemaError(
                place,
                1,
                Mistake("no operator here", "<op>.toml files", "add one, or correct the path"),
            )
    except SchemaError as error:
        return [], [error]
    found = [_attempt(read_operator, errors, path) for path in files]
    operators = [op for op in found if op is not None]
    operators.sort(key=lambda op: (op.namespace, op.name))
    if not errors:  # what holds between operators is asked once every file is right by itself
        _check_together(operators, errors)
    return operators, errors


def _attempt(function: Callable, errors: list[SchemaError], *arguments: object) -> Any:
    """What the function returns, or None with its mistake noted."""
    try:
        return function(*arguments)
    except SchemaError as error:
        errors.append(error)
        return None


def _check_together(operators: list[Operator], errors: list[SchemaError]) -> None:
    """Duplicates, and the operators that [backward] and [tangent] name."""
    by_name: dict[str, Operator] = {}
    by_symbol: dict[str, Operator] = {}
    for op in operators:
        _attempt(_check_unique, errors, op, by_symbol)
        by_symbol[op.symbol] = by_name[op.full_name] = op
    for op in operators:
        _attempt(_check_backward, errors, op, by_name)
    if not errors:  # formulas trust what [backward] promises
        stated = [(op, op.backward.name) for op in operators if op.backward]
        gradients = frozenset(_full_name(op, name) for op, name in stated)
        for op in operators:
            _attempt(check_tangents, errors, op, by_name, gradients)


def _check_unique(op: Operator, by_symbol: dict[str, Operator]) -> None:
    other = by_symbol.get(op.symbol)
    if other is None:
        return
    with op.source_file.at(None, "schema"):
        place = f"{other.path}:{other.source_file.line(None, 'schema')}"
        same = (
            f"operator '{op.full_name}'"
            if op.full_name == other.full_name
            else f"the C name '{op.symbol}'"
        )
        raise Mistake(
            f"{same} is declared at {place} too", "one operator of a name", "remove or rename one"
        )


def _check_backward(op: Operator, by_name: dict[str, Operator]) -> None:
    if op.backward is None:
        return
    with op.source_file.at("backward", "name"):
        backward = _named_operator(op, op.backward.name, by_name)
    forward = op
    if op.backward.forward:
        with op.source_file.at("backward", "forward"):
            forward = _named_operator(op, op.backward.forward, by_name)
        known = [param for param in op.inputs + forward.outputs if param.is_tensor]
        with op.source_file.at("backward", "saves"):
            for name in op.backward.saves:
                check_saved(name, known)
        with op.source_file.at("backward", "forward"):
            _check_forward(op, forward)
    check_gradient(op, forward, backward)


def _named_operator(op: Operator, name: str, by_name: dict[str, Operator]) -> Operator:
    full = _full_name(op, name)
    if full not in by_name:
        known = [known.removeprefix(op.namespace + ".") for known in by_name]
        raise Mistake(
            f"no operator '{full}'",
            "one of this run",
            nearest(name, known, "write its file, or pass its folder too"),
        )
    return by_name[full]


def _full_name(op: Operator, name: str) -> str:
    return name.replace("::", ".") if "::" in name else f"{op.namespace}.{name}"


def _check_forward(op: Operator, forward: Operator) -> None:
    """The other forward has the same arguments, and the same results before its extra ones."""
    ours = [(param.name, param.kind) for param in op.inputs]
    theirs = [(param.name, param.kind) for param in forward.inputs]
    if ours != theirs:
        raise Mistake(
            f"'{forward.full_name}' takes other arguments",
            "those of this operator",
            "give both the same arguments",
        )
    results = [param.name for param in op.outputs]
    if [param.name for param in forward.outputs][: len(results)] != results:
        raise Mistake(
            f"'{forward.full_name}' gives other results first",
            f"{', '.join(results)}, then extra ones",
            "give its first results the same names",
        )
