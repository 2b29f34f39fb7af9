# SPDX-License-Identifier: Apache-2.0
"""fused_adam_cuda: Apex's older Adam, whose rate has the bias correction; checks and casts of packed parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

import anyop
from anyop.torch.apex.calls import check


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
    rate = _rate(lr, beta1, beta2, step, bias_correction)
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


def _rate(lr: float, beta1: float, beta2: float, step: int, bias_correction: int) -> float:
    return lr * (math.sqrt(1 - beta2**step) / (1 - beta1**step) if bias_correction else 1.0)


@torch.no_grad()
def reversible_adam(
    p: Tensor, p_copy: Tensor, m: Tensor, v: Tensor, g: Tensor, lr: float, beta1: float, beta2: float,
    eps: float, grad_scale: float | Tensor, step: int, mode: int, bias_correction: int, decay: float,
) -> None:  # fmt: skip
    """adam, but elements whose gradient is not finite stay, and p_copy's first element is infinite then."""
    rate = _rate(lr, beta1, beta2, step, bias_correction)
    h = g.to(m.dtype) / grad_scale
    finite = h.isfinite()
    mean = beta1 * m + (1 - beta1) * h
    square = beta2 * v + (1 - beta2) * h * h
    new = p - rate * (mean / _root(square, eps, mode) + decay * p)
    for old, made in ((p, new), (m, mean), (v, square)):
        old.copy_(torch.where(finite, made, old))
    if p_copy.numel():
        p_copy.copy_(_bytes(p, p_copy.dtype).view_as(p_copy))
        infinite = _bytes(torch.full_like(p_copy, torch.inf, dtype=p.dtype), p_copy.dtype)
        places = torch.arange(p_copy.numel(), device=p.device).view_as(p_copy) == 0
        p_copy.copy_(torch.where(places & ~finite.all(), infinite, p_copy))


@torch.no_grad()
def maybe_adam_undo(
    overflow_flag: Tensor, p: Tensor, m: Tensor, v: Tensor, g: Tensor, lr: float, beta1: float,
    beta2: float, eps: float, grad_scale: float | Tensor, step: int, mode: int, bias_correction: int,
    decay: float,
) -> None:  # fmt: skip
    """What p, m and v were before reversible_adam, but for rounding, where overflow_flag is set or has no elements."""
    rate = _rate(lr, beta1, beta2, step, bias_correction)
    h = g.to(m.dtype) / grad_scale
    undone = h.isfinite() & (overflow_flag.to(p.device) != 0).all()
    old = (p + rate * (m / _root(v, eps, mode))) / (1 - rate * decay)
    mean = (m - (1 - beta1) * h) / beta1
    square = ((v - (1 - beta2) * h * h) / beta2).clamp(min=0)
    for new, made in ((p, old), (m, mean), (v, square)):
        new.copy_(torch.where(undone, made, new))


def _root(square: Tensor, eps: float, mode: int) -> Tensor:
    return (square + eps).sqrt() if mode == 0 else square.sqrt() + eps


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
    found = _bytes(_floats(p_in), p_out.dtype).view_as(p_out)
    set_ = (overflow_flag.to(p_out.device) != 0).any()
    p_out.copy_(torch.where(set_, p_out, found))


def maybe_cast_mt(
    chunk_size: int, overflow_flag: Tensor, tensor_lists: Sequence[Sequence[Tensor]]
) -> None:
    """Lists p_in, p_out: maybe_cast of each."""
    check(len(tensor_lists) == 2, f"expected 2 lists of tensors, found {len(tensor_lists)}")
    for p_in, p_out in zip(*tensor_lists):
        maybe_cast(overflow_flag, p_in, p_out)


def _bytes(p: Tensor, dtype: torch.dtype) -> Tensor:
    """As this dtype; bytes are float8_e5m2."""
    return p.to(torch.float8_e5m2).view(torch.uint8) if dtype is torch.uint8 else p.to(dtype)


def _floats(p: Tensor) -> Tensor:
    return p.view(torch.float8_e5m2).half() if p.dtype is torch.uint8 else p
