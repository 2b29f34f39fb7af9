# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.conv_bias_relu."""

from anyop.torch.apex.contrib.conv_bias_relu.conv_bias_relu import (
    ConvBias,
    ConvBiasMaskReLU,
    ConvBiasReLU,
    ConvFrozenScaleBiasReLU,
)

__all__ = ["ConvBias", "ConvBiasMaskReLU", "ConvBiasReLU", "ConvFrozenScaleBiasReLU"]
