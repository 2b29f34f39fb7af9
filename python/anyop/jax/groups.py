# SPDX-License-Identifier: Apache-2.0
"""Which leading sizes of an operator are independent of each other: those that vmap may add to and devices may share.

A schema says so by a group (`*`): what is computed for one element of it does not depend on the others, unless an
expression counts the group's sizes.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from anyop.adapter.operators import Operator
from anyop.adapter.shapes import counted_groups


def names(group: str | Sequence[str] | None) -> tuple[str, ...]:
    """The groups that one entry of a shape names."""
    return () if group is None else (group,) if isinstance(group, str) else tuple(group)


def terms(param: Mapping[str, Any]) -> int:
    """How many sizes of a tensor are not the group's."""
    return len(param["shape"]["before"]) + len(param["shape"]["after"])


forwards: dict[str, Operator] = {}  # by the name of the operator that computes gradients


@functools.cache
def independent(operator: Operator, wanted: tuple[bool, ...] | None = None) -> tuple[str, ...]:
    """The groups over which all wanted results are independent; none where the schema does not say so."""
    wanted = wanted or (True,) * len(operator.results)
    results = [param for param, is_wanted in zip(operator.results, wanted) if is_wanted]
    return () if operator.mutated else _members(operator, results)


@functools.cache
def summed(operator: Operator) -> tuple[str, ...]:
    """The same of an operator that computes gradients: to results without these groups each element adds a part."""
    forward = forwards.get(operator.name)
    if operator.mutated or forward is None or not independent(forward):
        return ()
    known = {param["name"]: param for param in (*forward.inputs, *forward.results)}
    grads, tensors = [], [operator.inputs[at] for at in operator.tensors]
    for param in (*tensors, *operator.results):
        meant = known.get(param["name"].removeprefix("grad_"))
        if meant is None or not _same_form(param, meant):
            return ()
        if param in tensors and param["name"] not in known:
            grads.append(param)
    return _members(operator, grads)


def _same_form(param: Mapping[str, Any], meant: Mapping[str, Any]) -> bool:
    """Whether the group has the same place in both shapes."""
    if meant["kind"] != "Tensor":
        return False
    ours, theirs = param["shape"], meant["shape"]
    places = [(len(s["before"]), len(s["after"]), s["group"] is None) for s in (ours, theirs)]
    return places[0] == places[1] and ours["expand"] == theirs["expand"]


def _members(operator: Operator, params: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The groups that lead the shapes of all these tensors."""
    found = {names(param["shape"]["group"]) for param in params}
    if len(found) != 1 or () in found or any(param["shape"]["before"] for param in params):
        return ()
    (members,) = found
    for tensor in (*operator.results, *(operator.inputs[at] for at in operator.tensors)):
        group = set(names(tensor["shape"]["group"]))
        if group & set(members) and (tensor["shape"]["before"] or not group <= set(members)):
            return ()
    counted = {group for text in _expressions(operator) for group in counted_groups(text)}
    return () if counted & set(members) else members


def _expressions(operator: Operator) -> list[Any]:
    tensors = [*operator.results, *(operator.inputs[at] for at in operator.tensors)]
    sizes = [term for p in tensors for part in ("before", "after") for term in p["shape"][part]]
    conditions = [condition["expression"] for condition in operator.metadata["conditions"]]
    return [*sizes, *map(_without_emptiness, conditions)]


def _without_emptiness(expression: Any) -> Any:
    """numel(X) == 0 counts nothing: more of nothing, or a part of it, is nothing."""
    if not isinstance(expression, list):
        return expression
    name, *operands = expression
    if (
        name == "=="
        and isinstance(operands[0], list)
        and operands[0][0] == "numel"
        and operands[1] == 0
    ):
        return 1
    return expression if name in ("rank", "numel") else [name, *map(_without_emptiness, operands)]
