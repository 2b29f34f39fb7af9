# SPDX-License-Identifier: Apache-2.0
"""apex.optimizers.fused_adagrad: anyop.torch.optim.FusedAdagrad with Apex's arguments and defaults."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from anyop.torch.optim import adagrad


class FusedAdagrad(adagrad.FusedAdagrad):
    """torch.optim.Adagrad; parameters decay as AdamW's where adagrad_w_mode.

    Raises  RuntimeError for sparse gradients.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-2,
        eps: float = 1e-10,
        weight_decay: float = 0.0,
        set_grad_none: bool = True,
        adagrad_w_mode: bool = False,
    ) -> None:
        super().__init__(
            params, lr, weight_decay=weight_decay, eps=eps, adagrad_w_mode=adagrad_w_mode,
            set_grad_none=set_grad_none,
        )  # fmt: skip

    @property
    def adagrad_w_mode(self) -> int:
        """1 where parameters decay, 0 with L2."""
        return int(self.defaults["adagrad_w_mode"])
