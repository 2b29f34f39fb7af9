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


@functools.cache
def independent(operator: Operator, wanted: tuple[bool, ...] | None = None) -> tuple[str, ...]:
    """The groups over which all wanted results are independent; none where the schema does not say so."""
    wanted = wanted or (True,) * len(operator.results)
    results = [param for param, is_wanted in zip(operator.results, wanted) if is_wanted]
    return () if operator.mutated else members_of(operator, results)


def fold(
    params: Sequence[Mapping[str, Any]],
    members: Sequence[str],
    ranks: Sequence[int],
    batched: Sequence[bool],
) -> list[int | None] | None:
    """How one call computes a batch: of each tensor its rank behind the batch, None where it stays as it is.

    ranks are those of the tensors given, a batched one's batch among them. A rank above a tensor's own is reached by
    sizes 1 in front, which broadcasting needs. None: one call cannot.
    """
    groups = [() if param["list"] else names(param["shape"]["group"]) for param in params]
    inside = [bool(set(members).intersection(group)) for group in groups]
    if not members or any(b and not isin for b, isin in zip(batched, inside)):
        return None
    if any(p["list"] and set(members).intersection(names(p["shape"]["group"])) for p in params):
        return None
    if any(len(group) > 1 and not b for group, b, isin in zip(groups, batched, inside) if isin):
        return None  # a gradient of a broadcast, without the batch that the broadcast has
    full = {group for group, b in zip(groups, batched) if b}
    own = [rank - b for rank, b in zip(ranks, batched)]
    if any(rank < terms(param) for param, rank, isin in zip(params, own, inside) if isin):
        return (
            None  # an element is too small; with the batch in front it would be taken for another
        )
    expands = [param["shape"]["expand"] for param in params]
    widest = max(
        rank - terms(param)
        for param, rank, isin, e in zip(params, own, inside, expands)
        if isin and not e
    )
    plan: list[int | None] = []
    for param, group, rank, b, isin, e in zip(params, groups, own, batched, inside, expands):
        leads = isin and (b or (group in full and not e))
        pads = len(members) > 1 or e
        plan.append(None if not leads else widest + terms(param) if pads else rank)
    return plan


def members_of(operator: Operator, params: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
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
    return (
        expression
        if name in ("rank", "numel", "text")
        else [name, *map(_without_emptiness, operands)]
    )
