# SPDX-License-Identifier: Apache-2.0
"""The section [tangent]: for each input, a formula of what its tangent contributes to the result's."""

from __future__ import annotations

from ..schema.dtypes import FLOATING
from ..schema.operator_sections import section, text_of
from ..schema.params import Param
from ..schema.source import Mistake, Source, listed, nearest
from .formulas import Tree, is_value, names, parse_formula, text_of_tree, walk

PREFIX = "tangent_"
FILLED = ("zeros_", "ones_")  # tensors of the shape and dtype of the parameter named behind it


def read_tangent(
    source: Source, inputs: list[Param], outputs: list[Param]
) -> dict[str, Tree] | None:
    """[tangent]: input -> formula; which operators it calls is checked when all are read."""
    if "tangent" not in source.data:
        return None
    table = section(source, "tangent")
    with source.at("tangent"):
        _check_operator(inputs, outputs)
    found = {}
    for name, value in table.items():
        with source.at("tangent", name):
            _check_input(name, inputs)
            found[name] = parse_formula(text_of(value, f"the formula of '{name}'"))
            _check_formula(name, found[name], inputs, outputs[0])
    return found


def _check_operator(inputs: list[Param], outputs: list[Param]) -> None:
    if written := [param.name for param in inputs if param.mutated]:
        found = f"[tangent] of an operator that writes its argument '{written[0]}'"
        raise Mistake(found, "one that only returns results", "remove [tangent]")
    if len(outputs) != 1 or outputs[0].optional:
        raise Mistake(
            f"[tangent] of an operator with the results ({listed([p.name for p in outputs], 'and')})",
            "one result that is always made",
            "remove [tangent]",
        )
    if not set(outputs[0].possible) & set(FLOATING):
        found = f"[tangent] of an operator whose result is {listed(outputs[0].possible)}"
        raise Mistake(found, "a floating result", "remove [tangent]")
    known = {param.name for param in [*inputs, *outputs]}
    for taken in sorted(known & {mark + name for mark in (PREFIX, *FILLED) for name in known}):
        raise Mistake(f"an argument '{taken}' beside [tangent]", "another name", "rename it")


def _check_input(name: str, inputs: list[Param]) -> None:
    """An input that can have a tangent: a floating tensor."""
    params = {param.name: param for param in inputs}
    good = [param.name for param in inputs if can_have_tangent(param)]
    if name in good:
        return
    found = f"[tangent] names '{name}'"
    if name in params:
        param = params[name]
        kind = param.kind + "[]" * param.is_list
        found += f", which is of type {kind if kind != 'Tensor' else listed(param.possible)}"
    raise Mistake(found, f"a floating tensor ({listed(good)})", nearest(name, good, "remove it"))


def can_have_tangent(param: Param) -> bool:
    """Whether a parameter is one tensor of floats."""
    return param.is_tensor and not param.is_list and bool(set(param.possible) & set(FLOATING))


def _check_formula(name: str, tree: Tree, inputs: list[Param], result: Param) -> None:
    """Its names, and that it depends on the tangent of this input."""
    if is_value(tree, 0):
        return  # the derivative is zero everywhere
    if tree[0] in ("value", "or"):
        raise Mistake(
            f"the formula '{text_of_tree(tree)}' of '{name}'",
            "a call of an operator, or 0 for a derivative of zero",
            "correct it",
        )
    tensors = [param.name for param in [*inputs, result] if param.is_tensor and not param.is_list]
    known = [param.name for param in [*inputs, result]] + [PREFIX + name]
    known += [mark + tensor for mark in FILLED for tensor in tensors]
    for used in sorted(names(tree) - set(known)):
        raise Mistake(
            f"the formula of '{name}' names '{used}'",
            "an argument, the result, or one of them behind tangent_ (this input alone), zeros_, ones_",
            nearest(used, known, "correct it"),
        )
    optional = [param.name for param in inputs if param.is_tensor and param.optional]
    for part in walk(tree):
        if part[0] == "or" and part[1][1] not in optional:
            found = f"'{text_of_tree(part)}' in the formula of '{name}'"
            raise Mistake(found, "a tensor that may be None", f"write {part[1][1]}")
    if PREFIX + name not in names(tree):
        raise Mistake(
            f"the formula of '{name}' does not use {PREFIX}{name}",
            f"one that is linear in {PREFIX}{name}",
            "use it, or write 0 where the derivative is zero",
        )
