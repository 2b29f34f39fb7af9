# SPDX-License-Identifier: Apache-2.0
"""The Python half of rotary_pybind.cc: gradients. torch.compile cannot trace it."""

import torch


def differentiable(module):
    """rotary(x, cos, sin) over the built extension module."""

    class Rotary(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, cos, sin):
            ctx.save_for_backward(cos, sin)
            return module.rotary(x, cos, sin)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, grad_out):
            return module.rotary_backward(grad_out, *ctx.saved_tensors), None, None

    return Rotary.apply
