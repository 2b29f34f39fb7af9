# SPDX-License-Identifier: Apache-2.0
"""torch's tensors and symbolic sizes, as the neutral half asks about them.

A comparison of symbolic sizes becomes torch._check_value: a guard where the sizes have values, a condition on the
running program where they have none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from anyop.adapter.framework import Framework
from anyop.adapter.shapes import Shape, Sizes
from anyop.torch.adapter.dtypes import BY_NAME, name_of, to_torch


def _both(a: Any, b: Any) -> Any:
    return b & a if isinstance(b, torch.SymBool) else a & b


def _either(a: Any, b: Any) -> Any:
    return b | a if isinstance(b, torch.SymBool) else a | b


class SymbolicSizes(Sizes):
    """Sizes that may be torch.SymInt."""

    operations = {  # noqa: RUF012
        **Sizes.operations,
        "min": torch.sym_min,
        "max": torch.sym_max,
        "and": _both,
        "or": _either,
    }

    @staticmethod
    def require(truth: Any, message: Callable[[], str]) -> None:
        """Raise ValueError where truth is false; where it is symbolic, make it a guard or a runtime check."""
        if isinstance(truth, torch.SymBool):
            torch._check_value(truth, message)
        elif not truth:
            raise ValueError(message())

    def broadcast(self, shapes: Sequence[Shape]) -> Shape:
        """The shape that all of these broadcast to; ValueError when there is none."""
        try:
            return torch.broadcast_shapes(*shapes)
        except RuntimeError as error:
            raise ValueError(str(error)) from None


class TorchFramework(Framework):
    """Real, fake and functional tensors alike."""

    sizes = SymbolicSizes
    integers = (int, torch.SymInt)
    floats = (float, int, torch.SymFloat, torch.SymInt)
    booleans = (bool, torch.SymBool)
    dtype_example = 'dtype such as "float32" or torch.float32'

    def dtype_name(self, tensor: torch.Tensor) -> str:
        """As schemas write it; what anyop has not, as torch writes it."""
        return name_of(tensor.dtype)

    def device(self, tensor: torch.Tensor) -> torch.device:
        """Where it lies."""
        return tensor.device

    def contiguous(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor, row-major."""
        return tensor.contiguous()

    def cast(self, tensor: torch.Tensor, dtype: str) -> torch.Tensor:
        """The tensor in another dtype."""
        return tensor.to(BY_NAME[dtype])

    def zeros_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Zeros of its shape, dtype and device."""
        return torch.zeros_like(tensor)

    def to_dtype(self, value: Any) -> torch.dtype | None:
        """Torch's dtype."""
        return to_torch(value)

    def dtype_argument_name(self, value: torch.dtype) -> str:
        """The name of torch's dtype."""
        return name_of(value)


FRAMEWORK = TorchFramework()
