# SPDX-License-Identifier: Apache-2.0
"""A residual sum and its norm in torch, in float32."""


def fused_add_rms_norm(x, residual, weight, eps):
    total = residual.float() + x.float()
    residual.copy_(total)
    scale = (total.square().mean(-1, keepdim=True) + eps).rsqrt()
    x.copy_(total * scale * weight.float())
