# SPDX-License-Identifier: Apache-2.0
"""Installs the adapter for every operator: those that are loaded, and those of libraries loaded later."""

from __future__ import annotations

import gc

import torch

import anyop
from anyop import _operators
from anyop._load import core
from anyop.torch.adapter import (
    autocast,
    autograd,
    compile,
    dispatch,
    fake,
    flops,
    function,
    python_kernels,
    vmap,
)
from anyop.torch.adapter.gradient import gradients
from anyop.torch.adapter.operators import Operator, has_out

_libraries: dict[str, torch.library.Library] = {}  # by namespace; they keep the registrations alive


def install_all() -> None:
    """Once, when anyop.torch is imported."""
    collects = gc.isenabled()
    gc.disable()  # nothing of it is garbage, and looking through all of torch's objects takes 90 ms
    try:
        _operators.install(install)
    finally:
        if collects:
            gc.enable()


def install(names: list[str]) -> None:
    """Register these operators with torch and install all rules. Nothing to do for those that are there."""
    problem = core.register_torch(autograd.define)
    if problem:
        raise ImportError(f"anyop.torch: {problem}")
    new = []
    for name in names:
        if name in gradients.operators:
            continue
        refused = core.torch_problem(name)
        if refused and python_kernels.can_help():
            refused = python_kernels.define(name, _library(anyop.metadata(name)["namespace"]))
        if refused:
            dispatch.refuse(name, refused)
            continue
        new.append(Operator(name))
    counted = []
    for operator in new:
        library, stated = _library(operator.namespace), anyop.metadata(operator.name)
        gradients.add(operator, stated)
        fake.install(operator, has_out(stated), library)
        function.install(operator, dispatch.install(operator))
        vmap.install(operator, library)
        autocast.install(operator, stated.get("autocast"), library)
        compile.install(operator)
        counted += [operator] if stated.get("flops") else []
    for operator in new:
        autograd.install(operator, _library(operator.namespace))
    flops.install(counted)


def _library(namespace: str) -> torch.library.Library:
    if namespace not in _libraries:
        _libraries[namespace] = torch.library.Library(namespace, "FRAGMENT")
    return _libraries[namespace]
