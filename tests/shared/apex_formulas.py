# SPDX-License-Identifier: Apache-2.0
"""Apex's NovoGrad and LAMB as optimizers of torch, by their formulas, in float64: what tests compare with."""

from __future__ import annotations

from typing import ClassVar

import torch


class Formula(torch.optim.Optimizer):
    """A step of each parameter by itself."""

    def __init__(self, params, lr=1e-3, **options) -> None:
        super().__init__(params, {"lr": lr, **self.DEFAULTS, **options})

    @torch.no_grad()
    def step(self):
        taken = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        self.norm = sum(p.grad.double().square().sum() for p in taken).sqrt()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    state = self.state[p]
                    state["step"] = state.get("step", 0) + 1
                    grad = p.grad.double() * (-1 if group.get("maximize") else 1)
                    p.copy_(self.stepped(p.double(), grad, state, group))


class NovoGrad(Formula):
    DEFAULTS: ClassVar = {
        "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, "bias_correction": True,
        "reg_inside_moment": False, "grad_averaging": True, "norm_type": 2, "init_zero": False,
    }  # fmt: skip

    def stepped(self, p, g, state, group):
        beta1, beta2 = group["betas"]
        step, decay = state["step"], group["weight_decay"]
        power = 1 / 2 if group["norm_type"] == 2 else 1
        norm = g.square().sum().sqrt() if power < 1 else g.abs().sum() and g.abs().max()
        begun = state.get("exp_avg_sq", torch.zeros(()) if group["init_zero"] else norm).double()
        blended = beta2 * begun ** (1 / power) + (1 - beta2) * norm ** (1 / power)
        state["exp_avg_sq"] = blended**power
        corrected = group["bias_correction"]
        root = state["exp_avg_sq"] / ((1 - beta2**step) ** 0.5 if corrected else 1) + group["eps"]
        inside = group["reg_inside_moment"]
        h = g / root + decay * p if inside else g
        weight = 1 - beta1 if group["grad_averaging"] else 1
        m = beta1 * state.get("exp_avg", torch.zeros_like(p)).double() + weight * h
        state["exp_avg"] = m
        change = m / (1 - beta1**step if corrected else 1)
        return p - float(group["lr"]) * (change if inside else change / root + decay * p)


class LAMB(Formula):
    DEFAULTS: ClassVar = {
        "betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.01, "bias_correction": True,
        "adam_w_mode": True, "grad_averaging": True, "max_grad_norm": 1.0, "use_nvlamb": False,
    }  # fmt: skip

    def stepped(self, p, g, state, group):
        beta1, beta2 = group["betas"]
        step, decay, bound = state["step"], group["weight_decay"], self.defaults["max_grad_norm"]
        h = g / max(float(self.norm) / bound, 1.0) if bound else g
        h = h if group["adam_w_mode"] else h + decay * p
        weight = 1 - beta1 if group["grad_averaging"] else 1
        zeros = torch.zeros_like(p)
        m = beta1 * state.get("exp_avg", zeros).double() + weight * h
        v = beta2 * state.get("exp_avg_sq", zeros).double() + (1 - beta2) * h * h
        state["exp_avg"], state["exp_avg_sq"] = m, v
        if group["bias_correction"]:
            m, v = m / (1 - beta1**step), v / (1 - beta2**step)
        update = m / (v.sqrt() + group["eps"]) + (decay * p if group["adam_w_mode"] else 0)
        ratio = 1.0
        if (group["use_nvlamb"] or decay) and p.norm() and update.norm():
            ratio = p.norm() / update.norm()
        return p - float(group["lr"]) * ratio * update
