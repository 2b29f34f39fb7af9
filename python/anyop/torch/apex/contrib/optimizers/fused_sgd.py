# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.optimizers.fused_sgd: SGD behind FP16_Optimizer, which gives gradients and gets copies of 16 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from anyop.torch.apex.calls import check
from anyop.torch.apex.contrib.optimizers.gradient_groups import for_groups
from anyop.torch.apex.extensions import amp_C


class FusedSGD(torch.optim.SGD):
    """Apex's older FusedSGD. materialize_master_grads changes nothing, as there."""

    def __init__(
        self,
        params: Any,
        lr: float,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        wd_after_momentum: bool = False,
        materialize_master_grads: bool = True,
    ) -> None:
        super().__init__(params, lr, momentum, dampening, weight_decay, nesterov)
        self.wd_after_momentum = wd_after_momentum

    @torch.no_grad()
    def step(
        self,
        closure: Callable[[], Any] | None = None,
        grads: Any = None,
        output_params: Any = None,
        scale: float = 1.0,
        grad_norms: Any = None,
    ) -> Any:
        """One step with grads / scale; output_params, the model's, are written where they have 16 bits."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for name, given in (("grads", grads), ("output_params", output_params)):
            check(
                given is not None,
                "apex.contrib.optimizers.FusedSGD must be wrapped with apex.contrib.optimizers.FP16_Optimizer "
                f"which provides {name}.",
            )
        groups = len(self.param_groups)
        rows = zip(self.param_groups, for_groups(grads, groups), for_groups(output_params, groups))
        for group, given, outputs in rows:
            check(
                all(g is not None for g in given),
                "apex.contrib.optimizers.FusedSGD only works when all parameters require grad.",
            )
            self._step(group, given, outputs, scale)
        return loss

    def _step(
        self, group: dict[str, Any], grads: list[Tensor], outputs: list[Tensor], scale: float
    ) -> None:
        calls: dict[Any, list[list[Tensor]]] = {}
        for p, g, out in zip(group["params"], grads, outputs):
            state = self.state[p]
            first = state.get("momentum_buffer") is None
            if first:
                state["momentum_buffer"] = torch.zeros_like(p)
            row = [g, p, state["momentum_buffer"], *([] if out.dtype is p.dtype else [out])]
            lists = calls.setdefault((first, p.device, len(row)), [[] for _ in row])
            for tensors, t in zip(lists, row):
                tensors.append(t)
        for (first, device, _), lists in calls.items():
            amp_C.multi_tensor_sgd(
                0, torch.zeros(1, dtype=torch.int32, device=device), lists, group["weight_decay"],
                group["momentum"], group["dampening"], group["lr"], group["nesterov"], first,
                self.wd_after_momentum, 1.0 / scale,
            )  # fmt: skip
