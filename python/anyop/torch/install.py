# SPDX-License-Identifier: Apache-2.0
"""Installs the adapter for every operator: those that are loaded, and those of libraries loaded later."""

from __future__ import annotations

import gc

import torch

import anyop
from anyop import _operators
from anyop._load import core
from anyop.adapter import gradient
from anyop.torch import (
    autocast,
    autograd,
    compile,
    dispatch,
    fake,
    flops,
    forward_mode,
    function,
    python_kernels,
    vmap,
)
from anyop.torch.operators import Operator

_operators_by_name: dict[str, Operator] = {}
_libraries: dict[str, torch.library.Library] = {}  # by namespace; they keep the registrations alive


def install_all() -> None:
    """Once, when anyop.torch is imported."""
    collects = gc.isenabled()
    gc.disable()  # nothing of it is garbage, and looking through all of torch's objects takes 90 ms
    try:
        install(anyop.list_ops())
    finally:
        if collects:
            gc.enable()
    _operators.on_new_operators.append(install)


def install(names: list[str]) -> None:
    """Register these operators with torch and install all rules. Nothing to do for those that are there."""
    problem = core.register_torch()
    if problem:
        raise ImportError(f"anyop.torch: {problem}")
    new = []
    for name in names:
        if name in _operators_by_name:
            continue
        refused = core.torch_problem(name)
        if refused and python_kernels.can_help():
            refused = python_kernels.define(name, _library(anyop.metadata(name)["namespace"]))
        if refused:
            dispatch.refuse(name, refused)
            continue
        new.append(Operator(name))
    _operators_by_name.update((operator.name, operator) for operator in new)
    hows = {operator.name: gradient.find(operator, _operators_by_name) for operator in new}
    backwards = {how.backward.name for how in hows.values() if isinstance(how, gradient.Gradient)}
    for operator in new:
        library = _library(operator.namespace)
        fake.install(operator, library)
        tangents = forward_mode.ForwardMode(operator, _operators_by_name)
        is_backward = operator.name in backwards
        autograd.install(operator, hows[operator.name], is_backward, tangents, library)
        function.install(operator, hows[operator.name], dispatch.install(operator))
        vmap.install(operator, library)
        autocast.install(operator, library)
        compile.install(operator)
    flops.install(new)


def _library(namespace: str) -> torch.library.Library:
    if namespace not in _libraries:
        _libraries[namespace] = torch.library.Library(namespace, "FRAGMENT")
    return _libraries[namespace]
