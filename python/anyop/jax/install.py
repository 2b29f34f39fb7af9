# SPDX-License-Identifier: Apache-2.0
"""Installs the adapter for every operator: those that are loaded, and those of libraries loaded later."""

from __future__ import annotations

import jax

from anyop import _operators
from anyop._load import core
from anyop.adapter import gradient
from anyop.adapter.operators import Operator
from anyop.jax import derivative, dispatch, groups, vmap  # noqa: F401  (vmap installs its rule)
from anyop.jax.framework import FRAMEWORK
from anyop.jax.primitive import TARGET

_operators_by_name: dict[str, Operator] = {}


def install_all() -> None:
    """Once, when anyop.jax is imported."""
    for platform, handler in core.jax_handlers().items():
        jax.ffi.register_ffi_target(TARGET, handler, platform=platform)
    _operators.install(install)


def install(names: list[str]) -> None:
    """Make the entries and rules of these operators. Nothing to do for those that are there."""
    new = [Operator(name, FRAMEWORK) for name in names if name not in _operators_by_name]
    _operators_by_name.update((operator.name, operator) for operator in new)
    for operator in new:
        how = gradient.find(operator, _operators_by_name)
        if isinstance(how, gradient.Gradient):
            groups.forwards[how.backward.name] = how.forward
        derivative.derivatives[operator.name] = derivative.Derivative(operator, how)
        dispatch.install(operator)
