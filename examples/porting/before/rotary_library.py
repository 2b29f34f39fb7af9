# SPDX-License-Identifier: Apache-2.0
"""The Python half of rotary_library.cc: shapes for torch.compile, and gradients."""

import torch


def register() -> None:
    """Complete torch.ops.before.rotary, once the library is loaded."""

    def fake(x, cos, sin):
        return torch.empty_like(x, memory_format=torch.contiguous_format)

    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[1:])

    def backward(ctx, grad_out):
        return torch.ops.before.rotary_backward(grad_out, *ctx.saved_tensors), None, None

    torch.library.register_fake("before::rotary", fake)
    torch.library.register_fake("before::rotary_backward", fake)
    torch.library.register_autograd("before::rotary", backward, setup_context=setup_context)
