# SPDX-License-Identifier: Apache-2.0
"""Whether torch records a gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def requires(values: Sequence[Any]) -> bool:
    """Whether a gradient of any tensor, also in lists, is recorded."""
    if not torch.is_grad_enabled():
        return False
    # torch's own function stops at a None in a list.
    lists = [value for value in values if isinstance(value, (list, tuple))]
    return torch._C._any_requires_grad(*values) or any(
        isinstance(item, torch.Tensor) and item.requires_grad for items in lists for item in items
    )
