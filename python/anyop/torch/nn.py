# SPDX-License-Identifier: Apache-2.0
"""The layers that run anyop operators, by torch.nn's names.

They stand in anyop.torch.layers, for anyop.torch may not import what users import by itself.
"""

from anyop.torch.layers import (
    GELU,
    Attention,
    Embedding,
    LayerNorm,
    Linear,
    LogSoftmax,
    ReLU,
    RMSNorm,
    SiLU,
    SiluAndMul,
    Softmax,
)

__all__ = [
    "GELU",
    "Attention",
    "Embedding",
    "LayerNorm",
    "Linear",
    "LogSoftmax",
    "RMSNorm",
    "ReLU",
    "SiLU",
    "SiluAndMul",
    "Softmax",
]
