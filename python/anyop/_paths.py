# SPDX-License-Identifier: Apache-2.0
"""Where the installed package keeps what C and C++ programs need."""

import os

from anyop import _anyop

_installed = os.path.dirname(os.path.abspath(_anyop.__file__))


def include_dir() -> str:
    """Folder of the C and C++ headers: ``#include "anyop/anyop.h"``."""
    return os.path.join(_installed, "include")


def cmake_dir() -> str:
    """Folder of anyopConfig.cmake: ``cmake -Danyop_DIR=$(python -c 'import anyop; print(anyop.cmake_dir())')``."""
    return os.path.join(_installed, "lib", "cmake", "anyop")
