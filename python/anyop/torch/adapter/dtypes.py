# SPDX-License-Identifier: Apache-2.0
"""torch's dtypes and their names in schemas."""

from __future__ import annotations

from typing import Any

import torch

from anyop.adapter.dtypes import NAMES

BY_NAME: dict[str, torch.dtype] = {name: getattr(torch, name) for name in NAMES}
NAME_OF = {dtype: name for name, dtype in BY_NAME.items()}


def to_torch(value: Any) -> torch.dtype | None:
    """The dtype that "float32", numpy.float32, numpy.dtype("float32") or torch.float32 means; None: unknown."""
    if isinstance(value, torch.dtype):
        return value
    if not isinstance(value, str):
        value = getattr(value, "name", None) or getattr(value, "__name__", None)
    return BY_NAME.get(value) if type(value) is str else None


def name_of(dtype: torch.dtype) -> str:
    """How messages write a dtype."""
    return NAME_OF.get(dtype, str(dtype).removeprefix("torch."))
