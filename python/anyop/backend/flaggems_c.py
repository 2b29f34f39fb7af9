# SPDX-License-Identifier: Apache-2.0
"""The backend "flaggems_c": FlagGems's compiled library, with its own list of operators, beside flaggems."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable
from functools import lru_cache
from types import ModuleType
from typing import Any

from anyop._load import core
from anyop._paths import package_folders
from anyop.backend import aten
from anyop.backend.flaggems import Find, key_of, resolve


def provide(op: str, text: str) -> aten.Run | str:
    """The provider of form "flaggems_c": the function that core calls, or what is missing."""
    return resolve(op, text, compiled_functions)


def compiled_functions(torch: ModuleType) -> Find:
    """What the compiled library has registered in torch.ops.flag_gems."""
    _load_library(torch)
    space = torch.ops.flag_gems
    other = {
        "_softmax": ("softmax", lambda f: f),
        "_softmax_backward_data": ("softmax_backward", lambda f: f),
        "rms_norm": ("rms_norm", lambda f: lambda x, _, weight, eps: f(x, weight, eps)),
        "topk": ("topk", lambda f: lambda x, k, dim=-1, largest=True: f(x, k, dim, largest, True)),
    }  # those that take other arguments than ATen's

    def find(function: Any) -> Callable[..., Any] | None:
        key = key_of(function)
        if key in other:
            name, adapt = other[key]
            return adapt(getattr(space, name)) if hasattr(space, name) else None
        name, _, overload = key.partition(".")
        own = getattr(getattr(space, name, None), overload or "default", None)
        return own if own is not None and _taken(own) == _taken(function) else None

    return find


def _taken(function: Any) -> list[tuple[str, Any]]:
    """Types and defaults of the arguments."""
    return [
        (str(a.type).replace("SymInt", "int"), a.has_default_value() and a.default_value)
        for a in function._schema.arguments
    ]


@lru_cache(maxsize=1)
def _load_library(torch: ModuleType) -> None:
    """Opens FLAGGEMS_DIR's library, which registers torch.ops.flag_gems: c_operators, two or three folders above
    FlagGemsConfig.cmake, and liboperators, on which it rests.
    """
    folder = os.environ.get("FLAGGEMS_DIR")
    if not folder:
        raise LookupError("needs FLAGGEMS_DIR, which is not set")
    above = [os.path.join(folder, *[".."] * steps) for steps in range(4)]
    found = {
        name: [file for place in above for file in sorted(glob.glob(os.path.join(place, name)))]
        for name in ("liboperators.so", "c_operators*.so")
    }
    if not found["c_operators*.so"]:
        raise LookupError(
            f"FLAGGEMS_DIR is {folder}: no c_operators*.so there or up to three folders above"
        )
    for place in package_folders("flag_gems"):
        os.environ.setdefault("FLAGGEMS_SOURCE_DIR", place)  # where its kernels' sources lie
    for files in found.values():
        for file in files[:1]:
            try:
                core.check_library(os.path.realpath(file))
                torch.ops.load_library(os.path.realpath(file))
            except (OSError, ValueError) as error:
                raise LookupError(f"FLAGGEMS_DIR is {folder}: {error}") from error
