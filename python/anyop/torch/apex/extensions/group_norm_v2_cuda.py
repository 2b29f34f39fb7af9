# SPDX-License-Identifier: Apache-2.0
"""group_norm_v2_cuda: group_norm_cuda with the groups' variances, which are written where they are asked for."""

from __future__ import annotations

import torch
from torch import Tensor

from anyop.torch.apex.extensions import group_norm_cuda

__all__ = ["gn", "gn_bwd"]


def as_mean_var(sums: Tensor, eps: float) -> Tensor:
    """Of each group the mean and the variance, side by side, from what group_norm_cuda.forward gives."""
    mean, rstd = sums.view(2, -1)
    return torch.stack([mean, rstd.square().reciprocal() - eps], 1).flatten()


def as_sums(mean_var: Tensor, eps: float) -> Tensor:
    """The reverse of as_mean_var."""
    mean, var = mean_var.reshape(-1, 2).unbind(1)
    return torch.cat([mean, (var + eps).rsqrt()])


@torch.no_grad()
def gn(
    x: Tensor, w: Tensor, b: Tensor, eps: float, silu: bool, num_groups: int,
    mean_var_out: Tensor | None = None, sm_margin: int = 0,
) -> Tensor:  # fmt: skip
    """The result; mean_var_out, float32 of 2 * N * num_groups elements, is for gn_bwd. sm_margin changes nothing."""
    if w.dtype != b.dtype:
        raise ValueError(f"gn: b has {b.dtype}, w {w.dtype}")
    _check(mean_var_out, "mean_var_out", x, num_groups)
    found, sums = group_norm_cuda.forward(x, num_groups, w, b, eps, 1, silu)
    if mean_var_out is not None:
        mean_var_out.copy_(as_mean_var(sums, eps).view(mean_var_out.shape))
    return found


@torch.no_grad()
def gn_bwd(
    grad_output: Tensor, x: Tensor, w: Tensor, b: Tensor, mean_var: Tensor, eps: float, silu: bool,
    num_groups: int, sm_margin: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of x, w and b. sm_margin changes nothing."""
    _check(mean_var, "mean_var", x, num_groups)
    found: tuple[Tensor, Tensor, Tensor] = group_norm_cuda.backward(
        grad_output, as_sums(mean_var, eps), x, num_groups, w, b, eps, 1, silu
    )
    return found


def _check(mean_var: Tensor | None, name: str, x: Tensor, groups: int) -> None:
    if mean_var is None:
        return
    count = 2 * len(x) * groups
    if mean_var.dtype is not torch.float32 or mean_var.numel() != count:
        found = f"{mean_var.dtype} of {mean_var.numel()} elements"
        raise ValueError(f"gn: {name} is {found}, expected torch.float32 of {count}")
