# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's functions by their names, over anyop's operators."""

from anyop.torch.flashinfer import gemm

__all__ = ["gemm"]
