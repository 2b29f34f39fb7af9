# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.optimizers.fp16_optimizer: float32 masters and a loss scale around the older optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from anyop.torch.apex.extensions import amp_C

_DYNAMIC = ("last_overflow_iter", "scale_factor", "scale_window")


class FP16_Optimizer:  # noqa: N801
    """Optimizes float32 masters of a model of 16 bits by apex.contrib.optimizers' FusedAdam or FusedSGD.

    static_loss_scale:   what the loss is multiplied by in backward().
    dynamic_loss_scale:  begins with 2^16, halves with each overflow, doubles after 1000 steps without one.
    verbose:             whether overflows are printed.
    A step waits, to see whether a gradient overflowed.
    Raises  SystemError for dynamic_loss_args, as Apex's.
    """

    def __init__(
        self,
        init_optimizer: Any,
        static_loss_scale: float = 1.0,
        dynamic_loss_scale: bool = False,
        dynamic_loss_args: Any = None,
        verbose: bool = True,
    ) -> None:
        if dynamic_loss_scale and dynamic_loss_args is not None:
            raise SystemError("Do not support dynamic loss scale args for now.")
        self.optimizer = init_optimizer
        self.fp16_groups: list[list[Tensor]] = []
        self.fp32_groups: list[list[Tensor]] = []
        for group in init_optimizer.param_groups:
            self.fp16_groups.append(list(group["params"]))
            self.fp32_groups.append([p.detach().clone().float() for p in group["params"]])
            group["params"] = self.fp32_groups[-1]
        self.dynamic_loss_scale, self.verbose = dynamic_loss_scale, verbose
        self.cur_scale, self.cur_iter = static_loss_scale, 0
        if dynamic_loss_scale:
            self.cur_scale, self.last_overflow_iter = 2.0**16, -1
            self.scale_factor, self.scale_window = 2.0, 1000

    def zero_grad(self, set_grads_to_None: bool = True) -> None:
        """Drop the model's gradients, or fill them with zeros."""
        for p in (p for group in self.fp16_groups for p in group):
            if set_grads_to_None:
                p.grad = None
            elif p.grad is not None:
                p.grad.detach_().zero_()

    def step(self, closure: Callable[[], Any] | None = None) -> None:
        """One step of the masters, from which the model is written; nothing where a gradient is not finite."""
        grads = [[p.grad for p in group] for group in self.fp16_groups]
        norms, skip = [], False
        for group in filter(None, grads):
            flag = torch.zeros(1, dtype=torch.int32, device=group[0].device)
            norms.append(amp_C.multi_tensor_l2norm(0, flag, [group], True)[0])
            skip = skip or bool(flag.item())
        if not skip:
            self.optimizer.step(
                grads=grads, output_params=self.fp16_groups, scale=self.cur_scale, grad_norms=norms
            )
        self._update_scale(skip)

    def backward(self, loss: Tensor) -> None:
        """The scaled loss' gradients."""
        (loss.float() * self.cur_scale).backward()

    def _update_scale(self, skip: bool) -> None:
        if skip and self.verbose:
            kind = "dynamic" if self.dynamic_loss_scale else "static"
            print(f"Grad overflow on iteration {self.cur_iter}; {kind} loss scale {self.cur_scale}")
        if self.dynamic_loss_scale:
            if skip:
                self.cur_scale = max(self.cur_scale / self.scale_factor, 1.0)
                self.last_overflow_iter = self.cur_iter
            elif (self.cur_iter - self.last_overflow_iter) % self.scale_window == 0:
                self.cur_scale *= self.scale_factor
        self.cur_iter += 1

    @property
    def state(self) -> Any:
        """The optimizer's."""
        return self.optimizer.state

    @state.setter
    def state(self, value: Any) -> None:
        self.optimizer.state = value

    @property
    def param_groups(self) -> Any:
        """The optimizer's, of masters."""
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, value: Any) -> None:
        self.optimizer.param_groups = value

    def _kept(self) -> tuple[str, ...]:
        return ("cur_scale", "cur_iter", *(_DYNAMIC if self.dynamic_loss_scale else ()))

    def state_dict(self) -> dict[str, Any]:
        """Scale, the optimizer's state dict and the masters."""
        return {
            "dynamic_loss_scale": self.dynamic_loss_scale,
            **{name: getattr(self, name) for name in self._kept()},
            "optimizer_state_dict": self.optimizer.state_dict(),
            "fp32_groups": self.fp32_groups,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what state_dict() gave."""
        self.dynamic_loss_scale = state_dict["dynamic_loss_scale"]
        for name in self._kept():
            setattr(self, name, state_dict[name])
        self.optimizer.load_state_dict(state_dict["optimizer_state_dict"])
        for group, saved in zip(self.fp32_groups, state_dict["fp32_groups"]):
            for p, other in zip(group, saved):
                p.copy_(other)
