# SPDX-License-Identifier: Apache-2.0
"""syncbn: the steps of a synchronised batch norm, raw; images are (N, C, *), of names in _c_last (N, *, C)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import anyop

__all__ = [
    "batchnorm_backward", "batchnorm_backward_c_last", "batchnorm_forward", "batchnorm_forward_c_last",
    "reduce_bn", "reduce_bn_c_last", "relu_bw_c_last", "welford_mean_var", "welford_mean_var_c_last",
    "welford_parallel",
]  # fmt: skip


@torch.no_grad()
def welford_mean_var(input: Tensor) -> list[Tensor]:
    """Mean and variance, without a correction, of each channel."""
    return list(anyop.batch_norm_stats(input.contiguous()))


@torch.no_grad()
def welford_mean_var_c_last(input: Tensor) -> list[Tensor]:
    """As welford_mean_var."""
    return list(anyop.batch_norm_stats_channels_last(input.contiguous()))


@torch.no_grad()
def welford_parallel(
    mean_feature_nodes: Tensor, var_biased_feature_nodes: Tensor, numel: Tensor, eps: float
) -> list[Tensor]:
    """Mean, variance with Bessel's correction and 1 / deviation, from (P, C) of P processes and their counts (P)."""
    mean, var, rstd = anyop.batch_norm_combine(
        mean_feature_nodes.contiguous(), var_biased_feature_nodes.contiguous(), numel, eps=eps
    )
    total = numel.sum().to(var.dtype)
    return [mean, var * (total / (total - 1)), rstd]


@torch.no_grad()
def batchnorm_forward(
    input: Tensor, mean: Tensor, inv_std: Tensor, weight: Tensor | None, shift: Tensor | None
) -> Tensor:
    """Normalised, scaled and shifted."""
    found: Tensor = anyop.batch_norm_apply(
        input.contiguous(), mean, inv_std, _of(input, weight), _of(input, shift), mask=False
    )[0]
    return found


@torch.no_grad()
def batchnorm_forward_c_last(
    input: Tensor, z: Tensor | None, mean: Tensor, inv_std: Tensor, weight: Tensor | None,
    shift: Tensor | None, fuse_relu: bool,
) -> Tensor:  # fmt: skip
    """As batchnorm_forward; then z is added, and with fuse_relu what is below 0 becomes 0."""
    found: Tensor = anyop.batch_norm_apply_channels_last(
        input.contiguous(), mean, inv_std, _of(input, weight), _of(input, shift),
        None if z is None else z.contiguous(), relu=fuse_relu, mask=False,
    )[0]  # fmt: skip
    return found


@torch.no_grad()
def reduce_bn(
    grad_output: Tensor, input: Tensor, mean: Tensor, inv_std: Tensor, weight: Tensor | None
) -> list[Tensor | None]:
    """Sums of each channel: of the gradient, of it times the distance from the mean; gradients of weight and bias."""
    return _reduced(anyop.batch_norm_reduce, grad_output, input, mean, inv_std, weight)


@torch.no_grad()
def reduce_bn_c_last(
    grad_output: Tensor, input: Tensor, mean: Tensor, inv_std: Tensor, weight: Tensor | None
) -> list[Tensor | None]:
    """As reduce_bn."""
    return _reduced(
        anyop.batch_norm_reduce_channels_last, grad_output, input, mean, inv_std, weight
    )


@torch.no_grad()
def batchnorm_backward(
    grad_output: Tensor, input: Tensor, mean: Tensor, inv_std: Tensor, weight: Tensor | None,
    sum_dy: Tensor, sum_dy_xmu: Tensor, count: Tensor,
) -> Tensor:  # fmt: skip
    """Gradient of the input, from sums over all processes and the count of each."""
    found: Tensor = anyop.batch_norm_backward(
        grad_output.contiguous(), input.contiguous(), mean, inv_std, _of(input, weight), None,
        sum_dy, sum_dy_xmu, count, grad_residual=False,
    )[0]  # fmt: skip
    return found


@torch.no_grad()
def batchnorm_backward_c_last(
    grad_output: Tensor, input: Tensor, mean: Tensor, inv_std: Tensor, weight: Tensor | None,
    sum_dy: Tensor, sum_dy_xmu: Tensor, count: Tensor,
) -> Tensor:  # fmt: skip
    """As batchnorm_backward."""
    found: Tensor = anyop.batch_norm_backward_channels_last(
        grad_output.contiguous(), input.contiguous(), mean, inv_std, _of(input, weight), None,
        sum_dy, sum_dy_xmu, count, grad_residual=False,
    )[0]  # fmt: skip
    return found


@torch.no_grad()
def relu_bw_c_last(
    grad_output: Tensor, input: Tensor, z: Tensor | None, mean: Tensor, inv_std: Tensor,
    weight: Tensor | None, shift: Tensor | None,
) -> Tensor:  # fmt: skip
    """The gradient where batchnorm_forward_c_last with fuse_relu did not cut off, else 0."""
    normal = batchnorm_forward_c_last(input, z, mean, inv_std, weight, shift, False)
    return torch.where(normal <= 0, 0, grad_output)


def _of(input: Tensor, parameter: Tensor | None) -> Tensor | None:
    """Of a dtype that the operators take, whatever it was."""
    if parameter is None or parameter.dtype in (input.dtype, torch.float32):
        return parameter
    return parameter.to(input.dtype)


def _reduced(
    operator: Any, grad_output: Tensor, input: Tensor, mean: Tensor, inv_std: Tensor, weight: Tensor | None
) -> list[Tensor | None]:  # fmt: skip
    wanted: dict[str, bool] = (
        {} if weight is not None else {"grad_weight": False, "grad_bias": False}
    )
    return list(
        operator(
            grad_output.contiguous(), input.contiguous(), mean, inv_std, _of(input, weight), **wanted
        )
    )  # fmt: skip
