# SPDX-License-Identifier: Apache-2.0
"""FusedSGD: torch.optim's SGD, a step of which is one call of multi_tensor_sgd."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from anyop.torch.optim.stepping import Batch, Stepping


class FusedSGD(Stepping, torch.optim.SGD):
    """torch.optim.SGD, whose step is one call for all parameters of a device.

    params, lr, momentum, dampening, weight_decay, nesterov, maximize: torch.optim.SGD's.
    wd_after_momentum:  whether weight_decay is added behind the momentum.
    set_grad_none, master_weights, state_dtype, fused, lr as a tensor, GradScaler: as FusedAdam has them; the state is
    the momentum. State dicts are torch.optim.SGD's, and can be loaded there and from there.
    Raises  RuntimeError for foreach, differentiable and sparse gradients.
    """

    _operator = "multi_tensor_sgd"
    _states: ClassVar = {"momentum_buffer": "buffer"}
    _may_lack = True  # as long as there is no momentum

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
        wd_after_momentum: bool = False,
        set_grad_none: bool = True,
        master_weights: bool = False,
        state_dtype: torch.dtype | None = None,
    ) -> None:
        self._begin(
            set_grad_none, master_weights, state_dtype, foreach=foreach, differentiable=differentiable
        )  # fmt: skip
        self._refuse_tensors(weight_decay=weight_decay)
        super().__init__(params, lr, momentum, dampening, weight_decay, nesterov, maximize=maximize)
        self._default(wd_after_momentum=wd_after_momentum)

    def _names(self, group: dict[str, Any]) -> dict[str, str]:
        return self._states if group["momentum"] else {}

    def _first(self, name: str, p: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        state["step"] = 0.0  # the buffer is written, not read, in the first step that has one

    def _numbers(self, batch: Batch, group: dict[str, Any], lr: Any) -> dict[str, Any]:
        return {"lr": lr, "step": batch.step} if "buffer" in batch.lists else {"lr": lr}

    def _attributes(self, group: dict[str, Any]) -> dict[str, Any]:
        names = (
            "momentum", "dampening", "weight_decay", "nesterov", "wd_after_momentum", "maximize",
        )  # fmt: skip
        return {name: group[name] for name in names}

    def _saved(self, state: dict[str, Any]) -> dict[str, Any]:
        begun = state.pop("step") > 0
        if not begun:
            state.pop("momentum_buffer", None)
        return state

    def _step_of(self, state: dict[str, Any], group: dict[str, Any]) -> Any:
        return float(state.get("momentum_buffer") is not None)
