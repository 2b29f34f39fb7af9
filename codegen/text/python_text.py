# SPDX-License-Identifier: Apache-2.0
"""The one way of text into Python: docstrings. Values are written by repr."""

from __future__ import annotations


def python_docstring(text: str) -> str:
    """Text between three quotes: it neither ends there nor holds an escape."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\r", "\\r").replace("\0", "\\0")
