# SPDX-License-Identifier: Apache-2.0
"""The C extension (bindings/python), which Python's own modules call; users call what the package exports."""

from typing import Any

version: str

def __getattr__(name: str) -> Any: ...
