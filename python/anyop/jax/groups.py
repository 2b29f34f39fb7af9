# SPDX-License-Identifier: Apache-2.0
"""Gradients that are sums over an independent group: each device adds its part."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from anyop.adapter.groups import independent, members_of
from anyop.adapter.operators import Operator

forwards: dict[str, Operator] = {}  # by the name of the operator that computes gradients


@functools.cache
def summed(operator: Operator) -> tuple[str, ...]:
    """The groups to whose results without them each element adds a part; of an operator that computes gradients."""
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
    return members_of(operator, grads)


def _same_form(param: Mapping[str, Any], meant: Mapping[str, Any]) -> bool:
    """Whether the group has the same place in both shapes."""
    if meant["kind"] != "Tensor":
        return False
    ours, theirs = param["shape"], meant["shape"]
    places = [(len(s["before"]), len(s["after"]), s["group"] is None) for s in (ours, theirs)]
    return places[0] == places[1] and ours["expand"] == theirs["expand"]
