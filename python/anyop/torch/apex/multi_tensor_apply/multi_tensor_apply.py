# SPDX-License-Identifier: Apache-2.0
"""apex.multi_tensor_apply.multi_tensor_apply: calls a function of amp_C."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor


class MultiTensorApply:
    """Calls functions of amp_C with a chunk size, which changes nothing here."""

    available = True
    warned = False

    def __init__(self, chunk_size: int) -> None:
        self.chunk_size = chunk_size

    def check_avail(self) -> None:
        """Does nothing: amp_C is here."""

    def __call__(
        self, op: Callable[..., Any], noop_flag_buffer: Tensor, tensor_lists: Sequence[Sequence[Tensor]],
        *args: Any,
    ) -> Any:  # fmt: skip
        """op(chunk_size, noop_flag_buffer, tensor_lists, *args)."""
        return op(self.chunk_size, noop_flag_buffer, tensor_lists, *args)
