# SPDX-License-Identifier: Apache-2.0
"""FusedAdagrad: torch.optim's Adagrad, a step of which is one call of multi_tensor_adagrad."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from anyop.torch.optim.stepping import Batch, Stepping


class FusedAdagrad(Stepping, torch.optim.Adagrad):
    """torch.optim.Adagrad, whose step is one call for all parameters of a device.

    params, lr, lr_decay, weight_decay, initial_accumulator_value, eps, maximize: torch.optim.Adagrad's.
    adagrad_w_mode:  whether the parameters decay, as AdamW's; else their multiple is added to the gradients.
    set_grad_none, master_weights, state_dtype, fused, lr as a tensor, GradScaler: as FusedAdam has them; the state is
    the sum of squares. State dicts are torch.optim.Adagrad's, and can be loaded there and from there.
    Raises  RuntimeError for foreach, differentiable and sparse gradients.
    """

    _operator = "multi_tensor_adagrad"
    _states: ClassVar = {"sum": "squares"}

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        adagrad_w_mode: bool = False,
        set_grad_none: bool = True,
        master_weights: bool = False,
        state_dtype: torch.dtype | None = None,
    ) -> None:
        self._begin(
            set_grad_none, master_weights, state_dtype, foreach=foreach, differentiable=differentiable
        )  # fmt: skip
        super().__init__(
            params, lr, lr_decay, weight_decay, initial_accumulator_value, eps, maximize=maximize
        )
        self._default(adagrad_w_mode=adagrad_w_mode)
        for p, state in self.state.items():
            state["step"], state["sum"] = 0.0, state["sum"].to(self._state_dtype(p))

    def _first(self, name: str, p: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        return torch.full_like(p, group["initial_accumulator_value"], dtype=self._state_dtype(p))

    def _numbers(self, batch: Batch, group: dict[str, Any], lr: Any) -> dict[str, Any]:
        if group["lr_decay"]:
            lr = lr / (1 + (batch.step - 1) * group["lr_decay"])
        return {"lr": lr}

    def _attributes(self, group: dict[str, Any]) -> dict[str, Any]:
        return {
            "eps": group["eps"], "weight_decay": group["weight_decay"], "maximize": group["maximize"],
            "decoupled": group["adagrad_w_mode"],
        }  # fmt: skip
