# SPDX-License-Identifier: Apache-2.0
"""Whether torch records a gradient, and how each operator has one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from anyop.adapter import gradient
from anyop.torch.adapter.operators import Operator


def requires(values: Sequence[Any]) -> bool:
    """Whether a gradient of any tensor, also in lists, is recorded."""
    if not torch.is_grad_enabled():
        return False
    # torch's own function stops at a None in a list.
    lists = [value for value in values if isinstance(value, (list, tuple))]
    return torch._C._any_requires_grad(*values) or any(
        isinstance(item, torch.Tensor) and item.requires_grad for items in lists for item in items
    )


class Gradients:
    """Of all operators, found when they are asked for."""

    def __init__(self) -> None:
        self.operators: dict[str, Operator] = {}
        self._forwards: dict[str, set[str]] = {}  # by the backward's name, as it is stated
        self._found: dict[str, gradient.Gradient] = {}

    def add(self, operator: Operator, metadata: Mapping[str, Any]) -> None:
        """One more."""
        self.operators[operator.name] = operator
        backward = metadata["backward"]
        if backward and not backward["forward"]:
            stated = backward["name"].replace("::", ".").removeprefix("anyop.")
            self._forwards.setdefault(stated, set()).add(operator.name)

    def of(self, name: str) -> gradient.Gradient | str:
        """How an operator is differentiated, or why it cannot be."""
        found = self._found.get(name) or gradient.find(self.operators[name], self.operators)
        if isinstance(found, gradient.Gradient):
            self._found[name] = found
        return found

    def is_backward(self, name: str) -> bool:
        """Whether an operator is the gradient of another."""
        stated = {
            name,
            name.rpartition(".")[2],
        }  # within its own namespace it may be stated without
        hows = [self.of(forward) for key in stated for forward in self._forwards.get(key, ())]
        return any(isinstance(how, gradient.Gradient) and how.backward.name == name for how in hows)


gradients = Gradients()
