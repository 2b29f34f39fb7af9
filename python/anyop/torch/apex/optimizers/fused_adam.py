# SPDX-License-Identifier: Apache-2.0
"""apex.optimizers.fused_adam: anyop.torch.optim.FusedAdam with Apex's arguments, defaults and state dicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from anyop.torch.apex.calls import check
from anyop.torch.apex.optimizers.scaled import scaled_by
from anyop.torch.optim import adam


class FusedAdam(adam.FusedAdam):
    """AdamW, or Adam with L2 where adam_w_mode is False; means are float32, also of parameters of 16 bits.

    capturable:      lr becomes a tensor, and GradScaler hands over its scale and flag, so that no step waits.
    master_weights:  optimizes float32 copies of parameters of 16 bits.
    Raises           RuntimeError for amsgrad and sparse gradients.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        set_grad_none: bool = True,
        capturable: bool = False,
        master_weights: bool = False,
    ) -> None:
        super().__init__(
            params, lr, betas, eps, weight_decay, amsgrad, bias_correction=bias_correction,
            adam_w_mode=adam_w_mode, set_grad_none=set_grad_none, capturable=capturable,
            master_weights=master_weights, state_dtype=torch.float32,
        )  # fmt: skip
        if capturable:
            device = self.param_groups[0]["params"][0].device
            for group in self.param_groups:
                group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32).to(device)

    @property
    def capturable(self) -> bool:
        """Whether a graph may hold the step."""
        return bool(self.defaults["capturable"])

    @property
    def adam_w_mode(self) -> int:
        """1 for AdamW, 0 for Adam with L2."""
        return int(self.defaults["decoupled_weight_decay"])

    @property
    def _step_supports_amp_scaling(self) -> bool:  # type: ignore[override]
        return self.capturable

    def step(
        self,
        closure: Callable[[], Any] | None = None,
        grads: Any = None,
        output_params: Any = None,
        scale: Any = None,
        grad_norms: Any = None,
        grad_scaler: Any = None,
    ) -> Any:
        """One step of all parameters with gradients; grad_scaler is read where capturable, as GradScaler gives itself.

        Raises  RuntimeError for the arguments that Apex dropped.
        """
        dropped = (grads, output_params, scale, grad_norms)
        check(
            all(value is None for value in dropped),
            "FusedAdam has been updated.  Simply initialize it identically to torch.optim.Adam, and call step() "
            "with no arguments.",
        )
        with scaled_by(grad_scaler if self.capturable else None, self):
            return super().step(closure)

    def state_dict(self) -> dict[str, Any]:
        """torch.optim.Adam's, and the step of each group, as Apex has it."""
        return self._with_steps(super().state_dict())
