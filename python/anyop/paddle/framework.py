# SPDX-License-Identifier: Apache-2.0
"""Paddle's tensors, eager and of static graphs, as the neutral half asks about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import paddle

from anyop.adapter.dtypes import BY_NAME
from anyop.adapter.framework import Framework
from anyop.paddle.sizes import UNKNOWN, PartlyKnownSizes


class PaddleFramework(Framework):
    """A size of a static graph that is not known is -1 there, and UNKNOWN here."""

    sizes = PartlyKnownSizes
    dtype_example = 'dtype such as "float32" or paddle.float32'

    def dtype_name(self, tensor: Any) -> str:
        """As schemas write it; what anyop has not, as Paddle writes it."""
        return name_of(tensor.dtype)

    def shape(self, tensor: Any) -> Sequence[Any]:
        """Its sizes."""
        return [UNKNOWN if size < 0 else size for size in tensor.shape]

    def contiguous(self, tensor: Any) -> Any:
        """The tensor, row-major. Those of static graphs are, once they have memory."""
        plain = not isinstance(tensor, paddle.Tensor) or tensor.is_contiguous()
        return tensor if plain else tensor.contiguous()

    def cast(self, tensor: Any, dtype: str) -> Any:
        """The tensor in another dtype."""
        return tensor.astype(dtype)

    def zeros_like(self, tensor: Any) -> Any:
        """Zeros of its shape, dtype and device."""
        return paddle.zeros_like(tensor)

    def to_dtype(self, value: Any) -> str | None:
        """The name of a dtype in any form; None: unknown."""
        if isinstance(value, paddle.dtype):
            value = name_of(value)
            return value if value in BY_NAME else None
        return super().to_dtype(value)


def name_of(dtype: Any) -> str:
    """How messages write a dtype."""
    return str(dtype).removeprefix("paddle.").removeprefix("pir::").lower()


FRAMEWORK = PaddleFramework()
