# SPDX-License-Identifier: Apache-2.0
"""FusedNovoGrad: Apex's NovoGrad, a step of which is one call of multi_tensor_novograd."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from anyop.torch.optim.stepping import Stepping

_HALVES = (torch.float16, torch.bfloat16)


class FusedNovoGrad(Stepping):
    """NovoGrad, whose step is one call for all parameters of a device.

    params, lr, betas, eps, weight_decay: as FusedAdam's.
    bias_correction:    whether means are divided by 1 - beta^step.
    reg_inside_moment:  whether gradients are divided by their norm, and parameters added, before they enter the mean.
    grad_averaging:     whether gradients enter the mean times 1 - beta1.
    norm_type:          2 for the Euclidean norm of each gradient, 0 for the maximum.
    init_zero:          whether norms begin as 0; else as those of the first finite gradients.
    set_grad_none, master_weights, state_dtype, lr as a tensor: as FusedAdam has them.
    State dicts are Apex's, with a step and a norm for each parameter too.
    Raises  RuntimeError for amsgrad and sparse gradients.
    """

    _operator = "multi_tensor_novograd"
    _states: ClassVar = {"exp_avg": "m"}
    _instead = ", please consider SparseAdam instead"

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        reg_inside_moment: bool = False,
        grad_averaging: bool = True,
        norm_type: int = 2,
        init_zero: bool = False,
        set_grad_none: bool = True,
        *,
        master_weights: bool = False,
        state_dtype: torch.dtype | None = None,
    ) -> None:
        self._begin(set_grad_none, master_weights, state_dtype, amsgrad=amsgrad)
        self._refuse_rates(lr, betas, eps)
        if norm_type not in (0, 2):
            raise RuntimeError("FusedNovoGrad only support l2/inf norm now.")
        super().__init__(
            params, {
                "lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps,
                "weight_decay": weight_decay, "reg_inside_moment": reg_inside_moment,
                "grad_averaging": grad_averaging, "norm_type": norm_type, "init_zero": init_zero,
            },
        )  # fmt: skip

    @property
    def moment_mode(self) -> int:
        """Apex's: 0 for reg_inside_moment."""
        return int(not self.defaults["reg_inside_moment"])

    def _attributes(self, group: dict[str, Any]) -> dict[str, Any]:
        beta1, beta2 = group["betas"]
        names = (
            "eps", "weight_decay", "bias_correction", "grad_averaging", "reg_inside_moment", "norm_type",
            "init_zero",
        )  # fmt: skip
        return {"beta1": beta1, "beta2": beta2, **{name: group[name] for name in names}}

    def _lists(self, states: list[dict[str, Any]], names: dict[str, str]) -> dict[str, Any]:
        """With the norms as one tensor; they begin in the first step that is not skipped."""
        zero = torch.zeros((), device=states[0]["exp_avg"].device)
        norms = _shared([state.get("exp_avg_sq", zero) for state in states], states)
        return {**super()._lists(states, names), "norms": norms}

    def state_dict(self) -> dict[str, Any]:
        """Apex's: groups have a step, and norms of parameters of 16 bits and of others; states have them too."""
        found = self._with_steps(super().state_dict())
        for group, saved in zip(self.param_groups, found["param_groups"]):
            norms: list[list[Tensor]] = [[], []]
            for p, at in zip(group["params"], saved["params"]):
                if "exp_avg_sq" in found["state"].get(at, {}):
                    norms[p.dtype not in _HALVES].append(found["state"][at]["exp_avg_sq"])
            if any(norms):  # of several devices on the first one's
                lists = [[norm.to(x[0].device) for norm in x] for x in norms]
                saved["exp_avg_sq"] = [torch.stack(x) if x else torch.empty(0) for x in lists]
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over Apex's state dict or this one's; as FusedAdam's."""
        super().load_state_dict(state_dict)
        for group in self.param_groups:
            group.pop("exp_avg_sq", None)

    def _saved(self, state: dict[str, Any]) -> dict[str, Any]:
        if "exp_avg_sq" in state:
            state["exp_avg_sq"] = state["exp_avg_sq"].clone()
        return state

    def _checked(self, found: dict[str, Any]) -> dict[Any, Any]:
        states = super()._checked(found)
        for group, saved in zip(self.param_groups, found["param_groups"]):
            lists: Any = saved.get("exp_avg_sq") or ([], [])
            given = [iter(norms) for norms in lists]
            for p, at in zip(group["params"], saved["params"]):
                if not states.get(at):
                    continue
                norm = states[at].get("exp_avg_sq", next(given[p.dtype not in _HALVES], None))
                if norm is not None:
                    states[at]["exp_avg_sq"] = norm
                if float(states[at]["step"]) and (norm is None or norm.numel() != 1):
                    raise ValueError(
                        f"{self._name}: the state of parameter {at} has no exp_avg_sq of one element"
                    )
        return states

    def _taken(self, p: Tensor, saved: dict[str, Any]) -> dict[str, Any]:
        state = super()._taken(p, saved)
        if "exp_avg_sq" in state:
            state["exp_avg_sq"] = saved["exp_avg_sq"].to(p.device, torch.float32).reshape(())
        return state


def _shared(norms: Any, states: list[dict[str, Any]]) -> Tensor:
    """One tensor of all norms, of which each state has its element."""
    made = torch.stack(list(norms))
    for state, norm in zip(states, made.unbind()):
        state["exp_avg_sq"] = norm
    return made
