# SPDX-License-Identifier: Apache-2.0
"""apex.contrib, as far as it is there."""

from anyop.torch.apex.contrib import (
    bottleneck,
    clip_grad,
    conv_bias_relu,
    focal_loss,
    group_norm,
    index_mul_2d,
    layer_norm,
    optimizers,
    sparsity,
    transducer,
    xentropy,
)

__all__ = [
    "bottleneck",
    "clip_grad",
    "conv_bias_relu",
    "focal_loss",
    "group_norm",
    "index_mul_2d",
    "layer_norm",
    "optimizers",
    "sparsity",
    "transducer",
    "xentropy",
]
