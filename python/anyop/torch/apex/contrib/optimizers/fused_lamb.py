# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.optimizers.fused_lamb: anyop.torch.optim.FusedLAMB with the older class's arguments."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from anyop.torch.optim import lamb


class FusedLAMB(lamb.FusedLAMB):
    """Apex's older FusedLAMB; of every dtype, and without its wait for the norm of all gradients."""

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        adam_w_mode: bool = True,
        grad_averaging: bool = True,
        set_grad_none: bool = True,
        max_grad_norm: float = 1.0,
    ) -> None:
        super().__init__(
            params, lr, bias_correction, betas, eps, weight_decay, amsgrad, adam_w_mode, grad_averaging,
            set_grad_none, max_grad_norm,
        )  # fmt: skip
