# SPDX-License-Identifier: Apache-2.0
"""apex.optimizers.fused_sgd: anyop.torch.optim.FusedSGD with Apex's arguments and defaults."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from anyop.torch.optim import sgd


class FusedSGD(sgd.FusedSGD):
    """torch.optim.SGD; wd_after_momentum adds weight_decay behind the momentum.

    materialize_master_grads is for Apex's amp, and changes nothing.
    Raises  RuntimeError for sparse gradients.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        wd_after_momentum: bool = False,
        materialize_master_grads: bool = True,
        set_grad_none: bool = False,
    ) -> None:
        super().__init__(
            params, lr, momentum, dampening, weight_decay, nesterov, wd_after_momentum=wd_after_momentum,
            set_grad_none=set_grad_none,
        )  # fmt: skip
        self.wd_after_momentum = wd_after_momentum
        self.materialize_master_grads = materialize_master_grads
