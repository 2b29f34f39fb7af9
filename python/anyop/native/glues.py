# SPDX-License-Identifier: Apache-2.0
"""The glues: a row for each library that is compiled against one framework's headers. The device's is in device.py.

Without a glue everything works, more slowly: guards ask a framework's Python attributes, and ATen is called by torch's
C shim, for what it can.
"""

from __future__ import annotations

import ctypes
import sys

from anyop import _anyop, _frameworks
from anyop.native import recipe
from anyop.native.library import NativeLibrary


def _open_aten(path: str, _version: str) -> int:
    """Whether it can be loaded at all; AnyopAtenOpen checks for which torch it is."""
    _anyop.check_library(path)
    return ctypes.CDLL(path)._handle


torch_glue = NativeLibrary(
    "torch_glue", _frameworks.real_torch, _anyop.open_torch_glue, recipe.torch_glue
)
aten_glue = NativeLibrary(
    "torch_aten_glue", _frameworks.real_torch, _open_aten, recipe.torch_aten_glue
)
paddle_glue = NativeLibrary(
    "paddle_glue", lambda: sys.modules["paddle"], _anyop.open_paddle_glue, recipe.paddle_glue
)


def load(name: str) -> int | None:
    """The address of a glue's table; bindings/python asks."""
    return {"torch_glue": torch_glue, "paddle_glue": paddle_glue}[name].load()
