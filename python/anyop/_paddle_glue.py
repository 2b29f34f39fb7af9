# SPDX-License-Identifier: Apache-2.0
"""The glue for the Paddle that is loaded. Without it guards ask Paddle's Python attributes, more slowly."""

import os
import sys

from anyop import _anyop
from anyop._build_once import BuildOnce
from anyop._paths import include_dir

# -w: Paddle's headers warn by the hundred.
_FLAGS = ["-std=c++17", "-w", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-plt"]


def _flags(paddle, sources: str) -> list[str]:
    root = os.path.dirname(os.path.abspath(paddle.__file__))
    include = os.path.join(root, "include")
    return [
        *_FLAGS,
        f'-DANYOP_PADDLE_VERSION="{paddle.__version__}"',
        f"-I{include}",
        f"-I{os.path.join(include, 'third_party')}",
        f"-I{include_dir()}",
        os.path.join(sources, "paddle_glue.cc"),
        f"-L{os.path.join(root, 'base')}",
        f"-L{os.path.join(root, 'libs')}",
        "-l:libpaddle.so",  # all are loaded already, and found by their names
        "-l:libphi_core.so",
        "-l:libcommon.so",
    ]


_glue = BuildOnce("paddle_glue", lambda: sys.modules["paddle"], _anyop.open_paddle_glue, _flags)
load = _glue.load


def __getattr__(name: str):
    if name in ("problem", "path"):
        return getattr(_glue, name)
    raise AttributeError(f"module {__name__} has no attribute {name}")
