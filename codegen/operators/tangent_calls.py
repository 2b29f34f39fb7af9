# SPDX-License-Identifier: Apache-2.0
"""What the formulas of [tangent] call: the operators exist, take these arguments, and are linear in the tangent.

Linearity is told from the files alone. The gradient of an operator is linear in the gradients that it takes. An
operator with [tangent] is linear in inputs whose formulas name none of these inputs and not the result; an argument
besides them whose formula names none of them either is one that is added, and must not be given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..schema.params import Param
from ..schema.source import Mistake, check_one_of, listed, nearest
from .formulas import Tree, is_value, names, text_of_tree, walk
from .operator_file import Operator
from .tangents import FILLED, PREFIX, can_have_tangent

_LITERALS = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (), "ScalarType": ()}


@dataclass(frozen=True)
class Formula:
    """One formula with all that its calls are checked against."""

    op: Operator
    tangent: str  # tangent_<input>
    operators: Mapping[str, Operator]  # by their full names
    gradients: frozenset[str]  # full names of the operators that [backward] names

    def depends(self, tree: Tree) -> bool:
        """Whether a part changes with the tangent."""
        return self.tangent in names(tree)


def check_tangents(op: Operator, operators: Mapping[str, Operator], gradients: frozenset) -> None:
    """Refuses formulas that cannot be evaluated, or are not linear as far as the files tell."""
    for name, tree in (op.tangent or {}).items():
        formula = Formula(op, PREFIX + name, operators, gradients)
        with op.source_file.at("tangent", name):
            for part in walk(tree):
                if part[0] == "call":
                    _check_call(formula, part)


def _check_call(formula: Formula, call: Tree) -> None:
    called = _called(formula, call[1])
    if called is None:
        return
    given = _bind(called, call)
    for param, value in given.items():
        _check_value(formula, called, _param(called, param), value)
    moving = [name for name, value in given.items() if formula.depends(value)]
    if moving:
        fixed = [name for name in given if name not in moving and _is_given(given[name])]
        _check_linear(formula, called, call, moving, fixed)


def _called(formula: Formula, path: str) -> Operator | None:
    """The operator; None for one of a namespace of which this run reads no file."""
    full = path if "." in path else f"anyop.{path}"
    if full in formula.operators:
        called = formula.operators[full]
        if any(param.mutated for param in called.inputs) or not called.outputs:
            raise Mistake(
                f"'{path}' gives no new result",
                "an operator that only returns results",
                "correct it",
            )
        return called
    known = [name.removeprefix("anyop.") for name in formula.operators]
    namespaces = {op.namespace for op in formula.operators.values()}
    own = f"{formula.op.namespace}.{path}"
    if full.split(".")[0] not in namespaces and own not in known:
        return None
    fix = nearest(path, known, "write its file, or pass its folder too")
    raise Mistake(
        f"no operator '{path}'",
        "one of this run",
        f"did you mean '{own}'?" if own in known else fix,
    )


def _bind(called: Operator, call: Tree) -> dict[str, Tree]:
    """Parameter -> what stands for it."""
    _, path, args, keywords = call
    positional = [param.name for param in called.inputs if not param.keyword_only]
    if len(args) > len(positional):
        raise Mistake(
            f"{len(args)} arguments of '{path}' without a name",
            f"at most {len(positional)} ({listed(positional, 'and')})",
            "name the others, or remove them",
        )
    given = dict(zip(positional, args))
    known = [param.name for param in called.params]
    for name, value in keywords.items():
        check_one_of(name, known, f"'{path}' has no argument '{name}'", fix="remove it")
        if name in given:
            raise Mistake(f"'{name}' of '{path}' is given twice", "it once", "remove one")
        given[name] = value
    for param in called.inputs:
        if param.name not in given and not param.has_default and not param.optional:
            raise Mistake(f"'{param.name}' of '{path}' is missing", "every argument", "give it")
    if all(is_value(given.get(param.name), False) for param in called.outputs):
        raise Mistake(
            f"no result of '{path}' is wanted", "one", f"remove one {called.outputs[0].name}=False"
        )
    return given


def _param(called: Operator, name: str) -> Param:
    return next(param for param in called.params if param.name == name)


def _check_value(formula: Formula, called: Operator, param: Param, value: Tree) -> None:
    """The value is of a kind that the parameter takes."""
    what = f"'{text_of_tree(value)}' for '{param.name}' of '{called.name}'"
    if param.output:
        if not is_value(value, False) or not param.optional:
            raise Mistake(what, "False, for an optional result that is not wanted", "remove it")
    elif is_value(value, None):
        if not param.optional:
            raise Mistake(what, f"a {param.kind}", "give one")
    elif param.is_tensor:
        _check_tensor(formula, param, value, what)
    else:
        _check_attribute(formula, param, value, what)


def _check_tensor(formula: Formula, param: Param, value: Tree, what: str) -> None:
    if param.is_list:
        raise Mistake(what, "an operator that takes no list of tensors", "use another")
    if value[0] == "value":
        raise Mistake(what, "a tensor", "name an argument or call an operator")
    if value[0] != "name":
        return
    name = _without_mark(formula, value[1])
    source = _param(formula.op, name)
    if not source.is_tensor or source.is_list:
        raise Mistake(what, "a tensor", f"'{name}' is of type {source.kind}: use another")
    if source.optional and not param.optional and value[1] != formula.tangent:
        raise Mistake(f"{what}, which may be None", "a tensor", f"write '{name} or 1'")


def _without_mark(formula: Formula, name: str) -> str:
    """The parameter behind tangent_, zeros_ and ones_."""
    known = {param.name for param in formula.op.params}
    marks = (
        [mark for mark in (PREFIX, *FILLED) if name.startswith(mark)] if name not in known else []
    )
    return name.removeprefix(marks[0]) if marks else name


def _check_attribute(formula: Formula, param: Param, value: Tree, what: str) -> None:
    kind = param.kind + "[]" * param.is_list
    if value[0] == "name":
        source = {known.name: known for known in formula.op.inputs}.get(value[1])
        if source and (source.kind, source.is_list) == (param.kind, param.is_list):
            if source.optional and not param.optional:
                raise Mistake(f"{what}, which may be None", f"a value of type {kind}", "correct it")
            return
    elif value[0] == "value" and not param.is_list and type(value[1]) in _LITERALS[param.kind]:
        return
    raise Mistake(
        what, f"a value of type {kind}", "name an attribute of that type, or write a number"
    )


# ---- linear ----


def _is_given(value: Tree) -> bool:
    """Whether an argument is neither None nor known to be zeros."""
    zeros = value[0] == "name" and value[1].startswith(FILLED[0])
    return value[0] != "value" and not zeros


def _check_linear(
    formula: Formula, called: Operator, call: Tree, moving: list[str], fixed: list[str]
) -> None:
    """`moving` depend on the tangent; of the others, `fixed` have a value."""
    if called.full_name in formula.gradients:
        linear = [param.name for param in called.inputs if param.name.startswith("grad_")]
        added = [name for name in fixed if name in linear]
    else:
        tangent, moved = called.tangent or {}, {*moving, called.outputs[0].name}
        plain = {name for name, tree in tangent.items() if not names(tree) & moved}
        linear = [name for name in moving if name in plain]
        added = [name for name in fixed if name in plain]
    text, wanted = text_of_tree(call), f"a formula that is linear in {formula.tangent}"
    for name in moving:
        if name not in linear:
            others = [other for other in moving if other != name]
            known = can_have_tangent(_param(called, name)) and not called.tangent
            found = (
                f"'{called.name}' says nothing of how its result depends on '{name}'"
                if known and called.full_name not in formula.gradients
                else f"'{called.name}' is not linear in {listed([name, *others], 'and')}"
            )
            raise Mistake(f"{found}, in '{text}'", wanted, "pass the tangent elsewhere")
    for name in added:
        raise Mistake(
            f"'{name}' is added to what depends on the tangent, in '{text}'", wanted, "leave it out"
        )
