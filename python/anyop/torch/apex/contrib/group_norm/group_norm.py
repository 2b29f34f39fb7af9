# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.group_norm.group_norm: group norm with SiLU, of any channels and groups, both memory formats."""

from __future__ import annotations

import functools
import warnings

import torch
from torch import Tensor
from torch.nn import Parameter, init
from torch.nn import functional as F

import anyop
from anyop.torch.apex.calls import exporting
from anyop.torch.apex.extensions import group_norm_cuda, group_norm_v2_cuda
from anyop.torch.apex.extensions.group_norm_cuda import channels_last, parameters

_SWISH = ("silu", "swish")


@functools.cache
def one_time_warning(msg: str) -> None:
    """Of each text one."""
    warnings.warn(msg, stacklevel=3)


@functools.cache
def get_cc_and_sm_count(device_index: int) -> tuple[tuple[int, int], int]:
    """The capability and the multiprocessors of a CUDA device."""
    properties = torch.cuda.get_device_properties(device_index)
    return (properties.major, properties.minor), properties.multi_processor_count


def torch_group_norm(
    x: Tensor, g: int, w: Tensor | None, b: Tensor | None, eps: float, act: str | None = ""
) -> Tensor:
    """By torch's functions, in the parameters' dtype; the result has x's."""
    found = F.group_norm(x if w is None else x.to(w.dtype), g, w, b, eps)
    return (F.silu(found) if act in _SWISH else found).to(x.dtype)


def _check(x: Tensor, groups: int, weight: Tensor, bias: Tensor, act: str, passes: int) -> None:
    assert x.is_contiguous(memory_format=torch.channels_last), "Only support NHWC layout."
    assert weight.numel() == bias.numel() == x.shape[1], "Unexpected parameter count."
    assert x.shape[1] % groups == 0, "C % G != 0."
    assert act in ("", *_SWISH), "Unsupported activation."
    assert passes in (1, 2), "Invalid number of passes for algorithm."


def group_norm_nhwc_fprop(
    x: Tensor, G: int, weight: Tensor, bias: Tensor, eps: float, act: str | None = None,
    passes: int = 1, use_group_norm_v2: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The result, and what group_norm_nhwc_bprop needs of each group: its mean and 1 / deviation, or its variance."""
    act = (act or "").lower()
    _check(x, G, weight, bias, act, passes)
    found, sums = group_norm_cuda.recorded(x, G, weight, bias, eps, act in _SWISH)
    return found, group_norm_v2_cuda.as_mean_var(sums, eps) if use_group_norm_v2 else sums


def group_norm_nhwc_bprop(
    grad_output: Tensor, sums: Tensor, x: Tensor, G: int, weight: Tensor, bias: Tensor, eps: float,
    act: str | None = None, passes: int = 1, use_group_norm_v2: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of x, weight and bias."""
    if not grad_output.is_contiguous(memory_format=torch.channels_last):
        one_time_warning("group_norm_nhwc_bprop: grad_output is copied: it is not channels_last")
        grad_output = grad_output.contiguous(memory_format=torch.channels_last)
    act = (act or "").lower()
    _check(grad_output, G, weight, bias, act, passes)
    sums = group_norm_v2_cuda.as_sums(sums, eps) if use_group_norm_v2 else sums
    found: tuple[Tensor, Tensor, Tensor] = group_norm_cuda.backward(
        grad_output, sums, x, G, weight, bias, eps, passes, act in _SWISH
    )
    return found


def cuda_group_norm_nhwc_one_pass(
    x: Tensor, G: int, weight: Tensor, bias: Tensor, eps: float, act: str | None = None
) -> Tensor:
    """As group_norm_nhwc_fprop."""
    return group_norm_nhwc_fprop(x, G, weight, bias, eps, act)[0]


cuda_group_norm_nhwc_two_pass = cuda_group_norm_v2_nhwc = cuda_group_norm_nhwc_one_pass


class GroupNorm(torch.nn.Module):
    """Group norm of (N, C, *), contiguous or in the memory format channels_last, then SiLU with act="silu"."""

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True,
        device: torch.device | str | None = None, dtype: torch.dtype | None = None,
        act: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if num_channels % num_groups != 0:
            raise ValueError("num_channels must be divisible by num_groups")
        act = act.lower() if act else act
        if act not in (None, "", *_SWISH):
            raise ValueError(f"act is {act!r}, expected None, '', 'silu' or 'swish'")
        self.num_groups, self.num_channels, self.eps = num_groups, num_channels, eps
        self.affine, self.act = affine, act
        for name in ("weight", "bias"):
            made = torch.empty(num_channels, device=device, dtype=dtype) if affine else None
            self.register_parameter(name, None if made is None else Parameter(made))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.affine:
            init.ones_(self.weight)
            init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        if exporting():
            return torch_group_norm(
                input, self.num_groups, self.weight, self.bias, self.eps, self.act
            )
        if channels_last(input):
            return group_norm_cuda.recorded(
                input, self.num_groups, self.weight, self.bias, self.eps, bool(self.act)
            )[0]
        weight, bias = parameters(input, self.weight, self.bias)
        found: Tensor = anyop.group_norm(
            input.contiguous(), self.num_groups, weight, bias, self.eps,
            activation="silu" if self.act else "none",
        )[0]  # fmt: skip
        return found

    def extra_repr(self) -> str:
        text = f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}"
        return f"{text}, act={self.act}" if self.act else text
