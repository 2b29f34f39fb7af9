# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's functions by their names, over anyop's operators; sampling and fused_moe on Paddle's tensors too."""

from anyop import _frameworks
from anyop.torch.flashinfer import fused_moe, sampling

__all__ = ["fused_moe", "sampling"]

if _frameworks.real_torch() is not None:
    from anyop.torch.flashinfer import gemm

    __all__ += ["gemm"]
