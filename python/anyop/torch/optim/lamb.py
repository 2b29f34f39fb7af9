# SPDX-License-Identifier: Apache-2.0
"""FusedLAMB: Apex's LAMB, a step of which is a norm of all gradients and one call of multi_tensor_lamb."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

import anyop
from anyop.torch.optim.stepping import Batch, Stepping


class FusedLAMB(Stepping):
    """LAMB, whose step is one call for all parameters of a device.

    params, lr, betas, eps, weight_decay, bias_correction, adam_w_mode: as FusedAdam's.
    grad_averaging:  whether gradients enter the mean times 1 - beta1.
    max_grad_norm:   gradients are divided by what their norm, of all groups, is above it; 0: they are not.
    use_nvlamb:      whether rates adapt where weight_decay is 0 too.
    set_grad_none, master_weights, state_dtype, lr as a tensor, GradScaler: as FusedAdam has them.
    A float32 copy of all parameters' updates is kept between steps; gradients stay as they are.
    State dicts are Apex's, with a step for each parameter too.
    Raises  RuntimeError for amsgrad and sparse gradients.
    """

    _operator = "multi_tensor_lamb"
    _states: ClassVar = {"exp_avg": "m", "exp_avg_sq": "v"}
    _instead = ", please consider SparseAdam instead"

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
        use_nvlamb: bool = False,
        *,
        master_weights: bool = False,
        state_dtype: torch.dtype | None = None,
    ) -> None:
        self._begin(set_grad_none, master_weights, state_dtype, amsgrad=amsgrad)
        self._refuse_rates(lr, betas, eps)
        super().__init__(
            params, {
                "lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps,
                "weight_decay": weight_decay, "grad_averaging": grad_averaging,
                "max_grad_norm": max_grad_norm, "adam_w_mode": adam_w_mode, "use_nvlamb": use_nvlamb,
            },
        )  # fmt: skip

    @property
    def adam_w_mode(self) -> int:
        """1 where weight_decay is added to updates, 0 where to gradients."""
        return int(self.defaults["adam_w_mode"])

    @property
    def use_nvlamb(self) -> bool:
        """Whether rates adapt where weight_decay is 0 too."""
        return bool(self.defaults["use_nvlamb"])

    def _shared(self, inv_scale: Tensor | None) -> dict[str, Tensor]:
        lists: dict[torch.device, list[Tensor]] = {}
        for p in (p for group in self.param_groups for p in group["params"]):
            if p.grad is not None:
                self._refuse_dtype(p)
                lists.setdefault(p.device, []).append(p.grad)
        for grads in lists.values():
            self._refuse_sparse(grads)
        if not lists or not self.defaults["max_grad_norm"]:
            return {}
        norms = []
        for device, grads in lists.items():
            scale = None if inv_scale is None else inv_scale.to(device, non_blocking=True)
            norms.append(anyop.multi_tensor_l2norm(grads, scale, each=False)[0].reshape(()))
        first = next((norm.device for norm in norms if norm.is_cpu), norms[0].device)
        ahead = first.type != "cpu"  # what goes to the CPU without waiting is read too early
        total = torch.stack([norm.to(first, non_blocking=ahead) for norm in norms]).norm()
        return {"global_norm": norms[0] if len(norms) == 1 else total}

    def _lists(self, states: list[dict[str, Any]], names: dict[str, str]) -> dict[str, Any]:
        lists = super()._lists(states, names)
        wide = [torch.promote_types(m.dtype, torch.float32) for m in lists["m"]]
        lists["update"] = [torch.empty_like(m, dtype=d) for m, d in zip(lists["m"], wide)]
        return lists

    def _numbers(self, batch: Batch, group: dict[str, Any], lr: Any) -> dict[str, Any]:
        bound = self.defaults["max_grad_norm"]
        return {"lr": lr, "step": batch.step, "max_grad_norm": bound or None}

    def _attributes(self, group: dict[str, Any]) -> dict[str, Any]:
        beta1, beta2 = group["betas"]
        names = "eps", "weight_decay", "bias_correction", "grad_averaging", "use_nvlamb"
        attributes = {name: group[name] for name in names}
        return {"beta1": beta1, "beta2": beta2, "decoupled": group["adam_w_mode"], **attributes}

    def state_dict(self) -> dict[str, Any]:
        """Apex's: groups have a step; states have it too."""
        return self._with_steps(super().state_dict())
