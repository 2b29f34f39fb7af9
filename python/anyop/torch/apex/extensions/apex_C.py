# SPDX-License-Identifier: Apache-2.0
"""apex_C: tensors of a list as one, and back."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """All elements behind one another, copied: of one dimension."""
    flat: Tensor = _flatten_dense_tensors(list(tensors))
    return flat


def unflatten(flat: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Views of flat, with the shapes of tensors."""
    return list(_unflatten_dense_tensors(flat, list(tensors)))
