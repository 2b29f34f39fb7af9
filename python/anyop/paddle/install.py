# SPDX-License-Identifier: Apache-2.0
"""Installs the adapter for every operator: those that are loaded, and those of libraries loaded later."""

from __future__ import annotations

from anyop import _operators
from anyop.adapter import gradient
from anyop.adapter.operators import Operator
from anyop.paddle import dispatch, function, scope
from anyop.paddle.framework import FRAMEWORK

_operators_by_name: dict[str, Operator] = {}


def install_all() -> None:
    """Once, when anyop.paddle is imported."""
    scope.install()
    _operators.install(install)


def install(names: list[str]) -> None:
    """Make the entries of these operators. Nothing to do for those that are there."""
    new = [Operator(name, FRAMEWORK) for name in names if name not in _operators_by_name]
    _operators_by_name.update((operator.name, operator) for operator in new)
    hows = {operator.name: gradient.find(operator, _operators_by_name) for operator in new}
    backwards = {how.backward.name for how in hows.values() if isinstance(how, gradient.Gradient)}
    for operator in new:
        how = hows[operator.name]
        function.install(operator, how, operator.name in backwards)
        dispatch.install(operator, how)
