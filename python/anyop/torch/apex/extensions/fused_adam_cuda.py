# SPDX-License-Identifier: Apache-2.0
"""fused_adam_cuda: Apex's older Adam, whose rate has the bias correction; checks and casts of packed parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import anyop
from anyop.torch.apex.calls import check, not_yet

_NOT_YET = ("maybe_adam_undo", "reversible_adam")
_HERE = ("adam", "adam_mt", "maybe_cast", "maybe_cast_mt", "strided_check_finite")


def __getattr__(name: str) -> Any:
    raise not_yet("fused_adam_cuda", __name__, name, _NOT_YET, _HERE)


def adam(
    p: Tensor, p_copy: Tensor, m: Tensor, v: Tensor, g: Tensor, lr: float, beta1: float, beta2: float,
    eps: float, grad_scale: float | Tensor, step: int, mode: int, bias_correction: int, decay: float,
) -> None:  # fmt: skip
    """adam_mt of one parameter; p_copy has no elements where none is wanted."""
    lists = [[p], [m], [v], [g], *([[p_copy]] if p_copy.numel() else [])]
    rates = lr, beta1, beta2, eps, grad_scale, step, mode, bias_correction, decay
    adam_mt(0, None, lists, *rates)


@torch.no_grad()
def adam_mt(
    chunk_size: int, overflow_flag: Tensor | None, tensor_lists: Sequence[Sequence[Tensor]], lr: float,
    beta1: float, beta2: float, eps: float, grad_scale: float | Tensor, step: int, mode: int,
    bias_correction: int, decay: float,
) -> None:  # fmt: skip
    """Lists p, m, v, g and, of 16 bits, copies of p: a step of Adam with g / grad_scale, which may be a tensor.

    p -= rate * (m / (sqrt(v) + eps) + decay * p), where mode is 0 m / sqrt(v + eps), and
    rate = lr * sqrt(1 - beta2^step) / (1 - beta1^step) where bias_correction. overflow_flag is not looked at.
    """
    check(
        len(tensor_lists) in (4, 5), f"expected 4 or 5 lists of tensors, found {len(tensor_lists)}"
    )
    p, m, v, g = map(list, tensor_lists[:4])
    copies = list(tensor_lists[4]) if len(tensor_lists) == 5 else None
    if not p:
        return
    rate = lr * (math.sqrt(1 - beta2**step) / (1 - beta1**step) if bias_correction else 1.0)
    if mode == 0:
        _with_eps_inside(p, m, v, g, rate, beta1, beta2, eps, grad_scale, decay)
        for out, made in zip(copies or [], p):
            out.copy_(made)
        return
    scale = 1.0 / grad_scale
    if isinstance(scale, Tensor):
        scale = scale.float().to(p[0].device)
    g = [x if x.dtype in (q.dtype, torch.float32) else x.to(q.dtype) for x, q in zip(g, p)]
    anyop.multi_tensor_adam(
        p, g, m, v, rate, float(step), None, copies, inv_scale=scale, beta1=beta1, beta2=beta2, eps=eps,
        weight_decay=decay, decoupled=True, bias_correction=False,
    )  # fmt: skip


def _with_eps_inside(
    p: list[Tensor], m: list[Tensor], v: list[Tensor], g: list[Tensor], rate: float, beta1: float,
    beta2: float, eps: float, grad_scale: float | Tensor, decay: float,
) -> None:  # fmt: skip
    for param, mean, square, grad in zip(p, m, v, g):
        h = grad.to(mean.dtype) / grad_scale
        mean.mul_(beta1).add_(h, alpha=1 - beta1)
        square.mul_(beta2).addcmul_(h, h, value=1 - beta2)
        param.sub_(rate * (mean / (square + eps).sqrt() + decay * param))


@torch.no_grad()
def strided_check_finite(
    overflow_flag: Tensor, p_copy: Tensor, stride: int, clear_overflow_first: int
) -> None:
    """Set overflow_flag where one of every so many elements is infinite or NaN; bytes are float8_e5m2."""
    if clear_overflow_first:
        overflow_flag.zero_()
    looked = _floats(p_copy).reshape(-1)[:: max(stride, 1)].contiguous()
    anyop.multi_tensor_check_finite([looked], overflow_flag)


@torch.no_grad()
def maybe_cast(overflow_flag: Tensor, p_in: Tensor, p_out: Tensor) -> None:
    """p_out = p_in, unless overflow_flag is set; bytes are float8_e5m2."""
    check(p_in.numel() == p_out.numel(), "number of elements in p_in and p_out should be equal")
    found = _floats(p_in)
    if p_out.dtype is torch.uint8:
        found = found.to(torch.float8_e5m2).view(torch.uint8)
    found = found.to(p_out.dtype).view_as(p_out)
    set_ = (overflow_flag.to(p_out.device) != 0).any()
    p_out.copy_(torch.where(set_, p_out, found))


def maybe_cast_mt(
    chunk_size: int, overflow_flag: Tensor, tensor_lists: Sequence[Sequence[Tensor]]
) -> None:
    """Lists p_in, p_out: maybe_cast of each."""
    check(len(tensor_lists) == 2, f"expected 2 lists of tensors, found {len(tensor_lists)}")
    for p_in, p_out in zip(*tensor_lists):
        maybe_cast(overflow_flag, p_in, p_out)


def _floats(p: Tensor) -> Tensor:
    return p.view(torch.float8_e5m2).half() if p.dtype is torch.uint8 else p
