# SPDX-License-Identifier: Apache-2.0
"""FusedAdam and FusedAdamW: torch.optim's Adam and AdamW, a step of which is one call of multi_tensor_adam."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from anyop.torch.optim.stepping import Stepping


class FusedAdam(Stepping, torch.optim.Adam):
    """torch.optim.Adam, whose step is one call for all parameters of a device.

    params, lr, betas, eps, weight_decay, maximize, capturable, decoupled_weight_decay: torch.optim.Adam's.
    bias_correction:  whether the means are divided by 1 - beta^step.
    adam_w_mode:      Apex's name for decoupled_weight_decay; here it is False where it is not given, as torch's.
    set_grad_none:    what zero_grad() does.
    master_weights:   keeps float32 copies of parameters of 16 bits, which are what is optimized.
    state_dtype:      of the means: the parameter's, or float32 with master_weights, where it is not given.
    fused changes nothing.

    lr may be a tensor, which a captured graph reads in every replay. A step waits for no device, neither under
    GradScaler, which hands over its scale: gradients are unscaled as they are read, and stay as they are.
    State dicts are torch.optim.Adam's, and can be loaded there and from there.
    Raises  RuntimeError for amsgrad, foreach, differentiable and sparse gradients.
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
        self._default(bias_correction=bias_correction)

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
