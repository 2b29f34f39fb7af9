# SPDX-License-Identifier: Apache-2.0
"""The glue that calls ATen's operators of the torch that is loaded. Without it the C shim is used, for what it can."""

from __future__ import annotations

import ctypes
import os

from anyop import _anyop, _frameworks
from anyop._build_once import BuildOnce
from anyop._torch_glue import compiler_flags


def _flags(torch, sources: str) -> list[str]:
    folder = os.path.join(os.path.dirname(sources), "torch_glue")  # beside the other one
    return compiler_flags(torch, os.path.join(folder, "torch_aten_glue.cc"))


def _open(path: str, _version: str) -> int:
    """Whether it can be loaded at all; AnyopAtenOpen checks for which torch it is."""
    _anyop.check_library(path)
    return ctypes.CDLL(path)._handle


_glue = BuildOnce("torch_aten_glue", _frameworks.real_torch, _open, _flags)


def path(build: bool = True) -> str | None:
    """Of the library for the torch that is loaded, built when it is not there; None: problem says why.

    Raises NotBuilt where it is not there and not to be built.
    """
    return _glue.path if _glue.load(build) is not None else None


def __getattr__(name: str):
    if name == "problem":
        return _glue.problem
    raise AttributeError(f"module {__name__} has no attribute {name}")
