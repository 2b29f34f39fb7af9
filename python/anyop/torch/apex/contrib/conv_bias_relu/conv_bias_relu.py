# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.conv_bias_relu.conv_bias_relu: convolutions of NCHW images, fused with what follows them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import anyop
from anyop.torch.apex.calls import applied, exporting, in_lower_dtype


def channels_last(images: Tensor) -> Tensor:
    """NCHW as contiguous NHWC: without a copy where the memory format is channels_last."""
    return images.permute(0, 2, 3, 1).contiguous()


def channels_first(images: Tensor) -> Tensor:
    """NHWC as NCHW, in the same memory."""
    return images.permute(0, 3, 1, 2)


def convolve(
    x: Tensor, weight: Tensor, scale: Tensor | None, bias: Tensor | None, mask: Tensor | None,
    padding: int, stride: int, relu: bool,
) -> Tensor:  # fmt: skip
    """NCHW, with scale and bias of any shape, and a mask of any dtype, which is not 0 where results stay."""
    if exporting():
        return _standard(x, weight, scale, bias, mask, padding, stride, relu)
    call: Any = anyop.conv_bias_act
    seen = None if mask is None else channels_last(mask).to(torch.bool)
    rows = [None if row is None else row.reshape(-1) for row in (scale, bias)]
    found = call(
        channels_last(x), channels_last(weight), *rows, seen, None, stride, padding, 1, relu
    )
    return channels_first(found)


def _standard(
    x: Tensor, weight: Tensor, scale: Tensor | None, bias: Tensor | None, mask: Tensor | None,
    padding: int, stride: int, relu: bool,
) -> Tensor:  # fmt: skip
    """The same by torch's operators."""
    found = F.conv2d(x, weight, None, stride, padding)
    found = found if scale is None else found * scale.reshape(1, -1, 1, 1)
    found = found if bias is None else found + bias.reshape(1, -1, 1, 1)
    found = found if mask is None else found * mask
    return F.relu(found) if relu else found


def conv_bias_relu(x: Tensor, weight: Tensor, bias: Tensor, padding: int, stride: int) -> Tensor:
    """relu(conv(x, weight) + bias)."""
    return in_lower_dtype(convolve, x, weight, None, bias, None, padding, stride, True)


def conv_bias_mask_relu(
    x: Tensor, weight: Tensor, bias: Tensor, mask: Tensor, padding: int, stride: int
) -> Tensor:
    """relu((conv(x, weight) + bias) * mask)."""
    return in_lower_dtype(convolve, x, weight, None, bias, mask, padding, stride, True)


def conv_bias(x: Tensor, weight: Tensor, bias: Tensor, padding: int, stride: int) -> Tensor:
    """conv(x, weight) + bias."""
    return in_lower_dtype(convolve, x, weight, None, bias, None, padding, stride, False)


def conv_frozen_scale_bias_relu(
    x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor, padding: int, stride: int
) -> Tensor:
    """relu(conv(x, weight) * scale + bias); scale and bias get no gradient."""
    rows = scale.detach(), bias.detach()
    return in_lower_dtype(convolve, x, weight, *rows, None, padding, stride, True)


ConvBiasReLU_ = applied("ConvBiasReLU_", conv_bias_relu, __name__)
ConvBiasMaskReLU_ = applied("ConvBiasMaskReLU_", conv_bias_mask_relu, __name__)
ConvBias_ = applied("ConvBias_", conv_bias, __name__)
ConvFrozenScaleBiasReLU_ = applied(
    "ConvFrozenScaleBiasReLU_", conv_frozen_scale_bias_relu, __name__
)

# Apex's names are the functions.
ConvBiasReLU = conv_bias_relu
ConvBiasMaskReLU = conv_bias_mask_relu
ConvBias = conv_bias
ConvFrozenScaleBiasReLU = conv_frozen_scale_bias_relu
