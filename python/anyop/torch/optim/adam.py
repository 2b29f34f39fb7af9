# SPDX-License-Identifier: Apache-2.0
"""FusedAdam and FusedAdamW: torch.optim's Adam and AdamW, a step of which is one call of multi_tensor_adam."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from anyop.torch.optim.stepping import Batch, Stepping, laid_as


class FusedAdam(Stepping, torch.optim.Adam):
    """torch.optim.Adam, whose step is one call for all parameters of a device.

    params, lr, betas, eps, weight_decay, maximize, capturable, decoupled_weight_decay: torch.optim.Adam's.
    bias_correction:  whether the means are divided by 1 - beta^step.
    adam_w_mode:      Apex's name for decoupled_weight_decay; here it is False where it is not given, as torch's.
    set_grad_none:    what zero_grad() does.
    master_weights:   keeps float32 copies of parameters of 16 bits, which are what is optimized.
    state_dtype:      of the means: the parameter's, or float32 with master_weights, where it is not given.
    average:          the decay of exponential running averages of the parameters, such as 0.999, or "equal" for
                      averages of all steps alike. They are kept in the same pass, as state "average_param" of each
                      parameter, in float32 of those of 16 bits.
    fused changes nothing.

    lr may be a tensor, which a captured graph reads in every replay. A step waits for no device, neither under
    GradScaler, which hands over its scale: gradients are unscaled as they are read, and stay as they are.
    State dicts are torch.optim.Adam's, and can be loaded there and from there.
    Raises  RuntimeError for amsgrad, foreach, differentiable and sparse gradients; ValueError for another average,
            and for "equal" ones that begin after the first step.
    """

    _operator = "multi_tensor_adam"
    _states: ClassVar = {"exp_avg": "m", "exp_avg_sq": "v"}
    _instead = ", please consider SparseAdam instead"

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
        bias_correction: bool = True,
        adam_w_mode: bool | None = None,
        set_grad_none: bool = True,
        master_weights: bool = False,
        state_dtype: torch.dtype | None = None,
        average: float | str | None = None,
    ) -> None:
        self._begin(
            set_grad_none, master_weights, state_dtype, amsgrad=amsgrad, foreach=foreach,
            differentiable=differentiable,
        )  # fmt: skip
        self._refuse_tensors(betas=betas)
        super().__init__(
            params, lr, betas, eps, weight_decay, maximize=maximize, capturable=capturable,
            decoupled_weight_decay=decoupled_weight_decay if adam_w_mode is None else adam_w_mode,
        )  # fmt: skip
        self._default(bias_correction=bias_correction, average=average)
        for group in self.param_groups:
            self._refuse_average(group)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch.optim's; refuses what the constructor does."""
        self._refuse_average(param_group)
        super().add_param_group(param_group)

    def _refuse_average(self, group: dict[str, Any]) -> None:
        average = group.get("average")
        if average not in (None, "equal") and not (isinstance(average, float) and 0 <= average < 1):
            raise ValueError(
                f"{self._name}: average is {average!r}, expected a decay of 0 to 1, 'equal' or None"
            )

    def _names(self, group: dict[str, Any]) -> dict[str, str]:
        averages = {} if group["average"] is None else {"average_param": "average"}
        return {**self._states, **averages}

    def _first(self, name: str, p: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        if name != "average_param":
            return super()._first(name, p, state, group)
        if group["average"] == "equal" and (isinstance(state["step"], Tensor) or state["step"]):
            raise ValueError(
                f"{self._name}: average is 'equal', but a parameter of shape {tuple(p.shape)} has taken steps "
                "without an average_param"
            )
        return state.get("master_param", p).detach().to(self._average_dtype(p), copy=True)

    def _average_dtype(self, p: Tensor) -> torch.dtype:
        return p.dtype if p.dtype is torch.float64 else torch.float32

    def _taken(self, p: Tensor, saved: dict[str, Any]) -> dict[str, Any]:
        state = super()._taken(p, saved)
        if "average_param" in saved:
            average = saved["average_param"].to(p.device, self._average_dtype(p))
            state["average_param"] = laid_as(p, average)
        return state

    def _numbers(self, batch: Batch, group: dict[str, Any], lr: Any) -> dict[str, Any]:
        numbers = super()._numbers(batch, group, lr)
        if isinstance(group["average"], float):
            numbers["average_rate"] = batch.rate("average_rate", 1 - group["average"])
        return numbers

    def _attributes(self, group: dict[str, Any]) -> dict[str, Any]:
        beta1, beta2 = group["betas"]
        return {
            "beta1": beta1, "beta2": beta2, "eps": group["eps"], "weight_decay": group["weight_decay"],
            "maximize": group["maximize"], "decoupled": group["decoupled_weight_decay"],
            "bias_correction": group["bias_correction"],
        }  # fmt: skip


class FusedAdamW(FusedAdam):
    """torch.optim.AdamW, whose step is one call for all parameters of a device; else as FusedAdam."""

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        **options: Any,
    ) -> None:
        for name in ("adam_w_mode", "decoupled_weight_decay"):
            if not options.pop(name, True):
                raise ValueError(f"FusedAdamW: {name} is False, expected True; FusedAdam has L2")
        options["decoupled_weight_decay"] = True
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, **options)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            group["decoupled_weight_decay"] = True
