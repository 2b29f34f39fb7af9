# SPDX-License-Identifier: Apache-2.0
"""The one way of text into CMake."""

from __future__ import annotations

import re


def cmake_string(text: str) -> str:
    """A quoted argument that is one item of a list."""
    return '"' + re.sub(r'[\\"$;]', r"\\\g<0>", text) + '"'
