# SPDX-License-Identifier: Apache-2.0
"""apex.optimizers.fused_mixed_precision_lamb: FusedLAMB with lr and step on the device, and masters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from anyop.torch.apex.calls import check
from anyop.torch.apex.optimizers.scaled import scaled_by
from anyop.torch.optim import lamb


class FusedMixedPrecisionLamb(lamb.FusedLAMB):
    """LAMB whose groups have "lr" and "step" as tensors on their first parameter's device, each group its own.

    step:                     steps that were taken before the first one here.
    reduced_precision_dtype:  of parameters of which float32 copies are optimized.
    A GradScaler hands itself to step(), which reads it without waiting.
    State dicts hold the float32 copies too, which Apex's lose.
    Raises  RuntimeError for amsgrad and sparse gradients.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        step: int = 0,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        adam_w_mode: bool = True,
        grad_averaging: bool = True,
        max_grad_norm: float = 1.0,
        use_nvlamb: bool = False,
        reduced_precision_dtype: torch.dtype | None = None,
    ) -> None:
        check(not amsgrad, "FusedLAMB does not support the AMSGrad variant.")
        self._start = float(step)
        self.reduced_precision_dtype = reduced_precision_dtype
        super().__init__(
            params, lr, bias_correction, betas, eps, weight_decay, adam_w_mode=adam_w_mode,
            grad_averaging=grad_averaging, max_grad_norm=max_grad_norm, use_nvlamb=use_nvlamb,
            master_weights=reduced_precision_dtype is not None,
        )  # fmt: skip

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch.optim's; the rate is a copy on the device."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        device = group["params"][0].device
        group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32).to(device, copy=True)
        group["step"] = torch.full((), self._start, device=device)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, grad_scaler: Any = None) -> Any:
        """One step of all parameters with gradients, unscaled by grad_scaler as they are read."""
        with scaled_by(grad_scaler, self):
            loss = super().step(closure)
        self._show_steps()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over Apex's state dict, torch's or this one's; Apex's has no masters: parameters give them."""
        super().load_state_dict(state_dict)
        for group in self.param_groups:
            device = group["params"][0].device
            group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32).to(device)
            group.setdefault("step", torch.full((), self._start, device=device))
        self._show_steps()

    def _show_steps(self) -> None:
        """The step of a group is that of its first parameter that took one."""
        for group in self.param_groups:
            steps = [self.state[p]["step"] for p in group["params"] if self.state.get(p)]
            if steps:
                group["step"] = torch.as_tensor(steps[0])

    def _complete(
        self, state: dict[str, Any], p: Tensor, names: dict[str, str], group: dict[str, Any]
    ) -> list[Tensor]:
        state.setdefault("step", self._start)
        return super()._complete(state, p, names, group)

    def _has_master(self, p: Tensor) -> bool:
        return p.dtype == self.reduced_precision_dtype and super()._has_master(p)

    def __getstate__(self) -> dict[str, Any]:
        own = "_start", "reduced_precision_dtype"
        return {**super().__getstate__(), **{name: getattr(self, name) for name in own}}
