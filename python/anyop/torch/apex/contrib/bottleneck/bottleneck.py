# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.bottleneck.bottleneck: ResNet's bottleneck with frozen batch norms, strided in front."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import anyop
from anyop.torch.apex.calls import applied, check, exporting, in_lower_dtype
from anyop.torch.apex.contrib.conv_bias_relu.conv_bias_relu import channels_first, channels_last


class FrozenBatchNorm2d(nn.Module):
    """A factor and a bias of each channel, from statistics that do not change."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.ones(n))
        self.register_buffer("bias", torch.zeros(n))
        self.register_buffer("running_mean", torch.zeros(n))
        self.register_buffer("running_var", torch.ones(n))

    def get_scale_bias(self, nhwc: bool) -> tuple[Tensor, Tensor]:
        """Both for images of either order of dimensions."""
        scale = self.weight * self.running_var.rsqrt()
        bias = self.bias - self.running_mean * scale
        shape = (1, 1, 1, -1) if nhwc else (1, -1, 1, 1)
        return scale.reshape(shape), bias.reshape(shape)

    def forward(self, x: Tensor) -> Tensor:
        scale, bias = self.get_scale_bias(False)
        return x * scale + bias


def steps(
    stride: int, scale: Sequence[Tensor], bias: Sequence[Tensor], x: Tensor, conv: Sequence[Tensor]
) -> list[Tensor]:
    """What the three convolutions give, all NHWC; a fourth one, of x, is what is added at the end, else x is."""
    call: Any = anyop.conv_bias_act
    rows = [(s.detach().reshape(-1), b.detach().reshape(-1)) for s, b in zip(scale, bias)]
    added = x
    if len(conv) > 3:
        added = call(x, conv[3], *rows[3], None, None, stride, 0, 1, False)
    first = call(x, conv[0], *rows[0], None, None, stride)
    second = call(first, conv[1], *rows[1], None, None, 1, 1)
    return [first, second, call(second, conv[2], *rows[2], None, added)]


def _run(nhwc: bool, stride: int, count: int, *tensors: Tensor) -> Tensor:
    x, scale, bias = tensors[0], tensors[1 : 1 + count], tensors[1 + count : 1 + 2 * count]
    conv = tensors[1 + 2 * count :]
    if nhwc:
        return steps(stride, scale, bias, x, conv)[2]
    weights = [channels_last(weight) for weight in conv]
    return channels_first(steps(stride, scale, bias, channels_last(x), weights)[2])


def bottleneck_function(
    nhwc: bool, stride_1x1: int, scale: Sequence[Tensor], bias: Sequence[Tensor], x: Tensor,
    *conv: Tensor,
) -> Tensor:  # fmt: skip
    """The block, of NHWC tensors (nhwc) or NCHW; scale and bias get no gradient."""
    return in_lower_dtype(_run, nhwc, stride_1x1, len(conv), x, *scale, *bias, *conv)


BottleneckFunction = applied("BottleneckFunction", bottleneck_function, __name__)


def _conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    made = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    nn.init.kaiming_uniform_(made.weight, a=1)
    return made


class Bottleneck(nn.Module):
    """Convolutions of 1, 3 and 1 places, each with a frozen batch norm, and what is added to them.

    use_cudnn: by anyop's fused operators, on every device; without it by torch's. explicit_nhwc: x and
    weights are NHWC tensors, which needs use_cudnn; else they are NCHW, best in the memory format channels_last.
    """

    def __init__(
        self, in_channels: int, bottleneck_channels: int, out_channels: int, stride: int = 1,
        groups: int = 1, dilation: int = 1, norm_func: None = None, use_cudnn: bool = False,
        explicit_nhwc: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        check(groups == 1, "Only support groups == 1")
        check(dilation == 1, "Only support dilation == 1")
        check(norm_func is None, "Only support frozen BN now.")
        self.downsample = None
        if stride != 1 or in_channels != out_channels:
            self.downsample = nn.Sequential(
                _conv(in_channels, out_channels, 1, stride), FrozenBatchNorm2d(out_channels)
            )
        self.conv1 = _conv(in_channels, bottleneck_channels, 1, stride)
        self.conv2 = _conv(bottleneck_channels, bottleneck_channels, 3)
        self.conv3 = _conv(bottleneck_channels, out_channels, 1)
        self.relu = nn.ReLU(inplace=True)
        self.stride = stride
        self.bn1 = FrozenBatchNorm2d(bottleneck_channels)
        self.bn2 = FrozenBatchNorm2d(bottleneck_channels)
        self.bn3 = FrozenBatchNorm2d(out_channels)
        self.use_cudnn, self.explicit_nhwc = use_cudnn, explicit_nhwc
        if explicit_nhwc:
            for weight in self.parameters():
                weight.data = weight.data.permute(0, 2, 3, 1).contiguous()

    def _pairs(self) -> list[tuple[nn.Conv2d, FrozenBatchNorm2d]]:
        pairs = [(self.conv1, self.bn1), (self.conv2, self.bn2), (self.conv3, self.bn3)]
        if self.downsample is not None:
            last: Any = self.downsample
            pairs.append((last[0], last[1]))
        return pairs

    @property
    def w_conv(self) -> list[Tensor]:
        """The weights of the convolutions, that of downsample last."""
        return [conv.weight for conv, _ in self._pairs()]

    def forward(self, x: Tensor) -> Tensor:
        if self.use_cudnn and not exporting():
            rows = [norm.get_scale_bias(self.explicit_nhwc) for _, norm in self._pairs()]
            scale, bias = [row[0] for row in rows], [row[1] for row in rows]
            return bottleneck_function(
                self.explicit_nhwc, self.stride, scale, bias, x, *self.w_conv
            )
        check(
            not self.explicit_nhwc or self.use_cudnn,
            "explicit nhwc with native ops is not supported.",
        )
        return self._by_torch(x)

    def _by_torch(self, x: Tensor) -> Tensor:
        if self.explicit_nhwc:
            x = channels_first(x)
        found, added = x, x
        for place, (conv, norm) in enumerate(self._pairs()):
            weight = channels_first(conv.weight) if self.explicit_nhwc else conv.weight
            source = x if place == 3 else found
            made = norm(F.conv2d(source, weight, None, conv.stride, conv.padding))
            if place == 3:
                added = made
            else:
                found = F.relu(made) if place < 2 else made
        out = F.relu(found + added)
        return out.permute(0, 2, 3, 1) if self.explicit_nhwc else out


class SpatialBottleneck(nn.Module):
    """Not here: it exchanges the rims of images between devices through memory that they share."""

    def __init__(self, *args: object, **more: object) -> None:
        raise NotImplementedError(
            "SpatialBottleneck is not in anyop.torch.apex: its halo exchange needs peer memory; Bottleneck is there"
        )
