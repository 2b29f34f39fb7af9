# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.group_norm.group_norm: group norm with SiLU, of any channels and groups, both memory formats."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Parameter, init
from torch.nn import functional as F

import anyop
from anyop.torch.apex.calls import exporting
from anyop.torch.apex.extensions import group_norm_cuda
from anyop.torch.apex.extensions.group_norm_cuda import channels_last, parameters

_SWISH = ("silu", "swish")


def torch_group_norm(
    x: Tensor, g: int, w: Tensor | None, b: Tensor | None, eps: float, act: str = ""
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
    x: Tensor, G: int, weight: Tensor, bias: Tensor, eps: float, act: str = "", passes: int = 1
) -> tuple[Tensor, Tensor]:
    """The result, and the mean and 1 / deviation of each group, for group_norm_nhwc_bprop."""
    _check(x, G, weight, bias, act.lower(), passes)
    return group_norm_cuda.recorded(x, G, weight, bias, eps, act.lower() in _SWISH)


def group_norm_nhwc_bprop(
    grad_output: Tensor, sums: Tensor, x: Tensor, G: int, weight: Tensor, bias: Tensor, eps: float,
    act: str = "", passes: int = 1,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of x, weight and bias."""
    _check(grad_output, G, weight, bias, act.lower(), passes)
    found: tuple[Tensor, Tensor, Tensor] = group_norm_cuda.backward(
        grad_output, sums, x, G, weight, bias, eps, passes, act.lower() in _SWISH
    )
    return found


def cuda_group_norm_nhwc_one_pass(
    x: Tensor, G: int, weight: Tensor, bias: Tensor, eps: float, act: str = ""
) -> Tensor:
    """As group_norm_nhwc_fprop."""
    return group_norm_nhwc_fprop(x, G, weight, bias, eps, act)[0]


cuda_group_norm_nhwc_two_pass = cuda_group_norm_nhwc_one_pass


class GroupNorm(torch.nn.Module):
    """Group norm of (N, C, *), contiguous or in the memory format channels_last, then SiLU with act="silu"."""

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True,
        device: torch.device | str | None = None, dtype: torch.dtype | None = None, act: str = "",
    ) -> None:  # fmt: skip
        super().__init__()
        if num_channels % num_groups != 0:
            raise ValueError("num_channels must be divisible by num_groups")
        if act.lower() not in ("", *_SWISH):
            raise ValueError(f"act is {act!r}, expected '', 'silu' or 'swish'")
        self.num_groups, self.num_channels, self.eps = num_groups, num_channels, eps
        self.affine, self.act = affine, act.lower()
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
