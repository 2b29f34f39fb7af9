# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.optimizers.fused_adam: AdamW whose gradients may be given, scaled and of 16 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from anyop.torch.apex.calls import check
from anyop.torch.apex.contrib.optimizers.gradient_groups import for_groups
from anyop.torch.apex.extensions import fused_adam_cuda


class FusedAdam(torch.optim.Optimizer):
    """Apex's older FusedAdam; the bias correction is in the rate, so eps is added to the uncorrected root.

    max_grad_norm:    clips, by the norms that step() gets.
    eps_inside_sqrt:  m / sqrt(v + eps), by torch's operators.
    use_mt changes nothing: a step is one call for all parameters of a group that took the same steps.
    Raises  RuntimeError for amsgrad and sparse gradients.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        eps_inside_sqrt: bool = False,
        weight_decay: float = 0.0,
        max_grad_norm: float = 0.0,
        amsgrad: bool = False,
        use_mt: bool = False,
        amp_scale_adjustment: float = 1.0,
    ) -> None:
        check(not amsgrad, "FusedAdam does not support the AMSGrad variant.")
        super().__init__(
            params, {
                "lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps,
                "weight_decay": weight_decay, "max_grad_norm": max_grad_norm,
            },
        )  # fmt: skip
        self.eps_mode = 0 if eps_inside_sqrt else 1

    @torch.no_grad()
    def step(
        self,
        closure: Callable[[], Any] | None = None,
        grads: Any = None,
        output_params: Any = None,
        scale: float | Tensor = 1.0,
        grad_norms: Any = None,
    ) -> Any:
        """One step with the parameters' gradients or grads, divided by scale; output_params get copies of 16 bits.

        grad_norms: of each group's gradients, scaled.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        groups = len(self.param_groups)
        rows = zip(
            self.param_groups, for_groups(grads, groups), for_groups(output_params, groups),
            grad_norms or [None] * groups,
        )  # fmt: skip
        for group, given, outputs, norm in rows:
            combined = scale
            if group["max_grad_norm"] > 0:
                clip = ((norm / scale) + 1e-6) / group["max_grad_norm"]
                combined = scale * torch.as_tensor(clip).clamp(min=1.0)
            for step, lists in self._lists(group, given, outputs).items():
                fused_adam_cuda.adam_mt(
                    0, None, lists, group["lr"], *group["betas"], group["eps"], combined, step[0],
                    self.eps_mode, int(group["bias_correction"]), group["weight_decay"],
                )  # fmt: skip
        return loss

    def _lists(self, group: dict[str, Any], grads: Any, outputs: Any) -> dict[Any, Any]:
        """The lists of each call, by step, device and whether there are copies."""
        count = len(group["params"])
        found: dict[Any, list[list[Tensor]]] = {}
        for p, g, out in zip(group["params"], grads or [None] * count, outputs or [None] * count):
            g = p.grad if g is None else g
            if g is None:
                continue
            check(
                not g.is_sparse,
                "FusedAdam does not support sparse gradients, please consider SparseAdam instead",
            )
            state = self.state[p]
            if not state:
                state.update(step=0, exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
            state["step"] += 1
            row = [p, state["exp_avg"], state["exp_avg_sq"], g, *([] if out is None else [out])]
            lists = found.setdefault((state["step"], p.device, len(row)), [[] for _ in row])
            for tensors, t in zip(lists, row):
                tensors.append(t)
        return found
