# SPDX-License-Identifier: Apache-2.0
"""NVIDIA Apex's module tree and extension modules, with anyop's operators behind them.

``with anyop.torch.apex.install():`` lets a program that imports ``apex`` or one of its extensions run unchanged.
docs/apex.md says what is there.
"""

from anyop.torch.apex import (
    contrib,
    fused_dense,
    mlp,
    multi_tensor_apply,
    normalization,
    optimizers,
    parallel,
    transformer,
)
from anyop.torch.apex.contrib.layer_norm import FastLayerNorm
from anyop.torch.apex.fused_dense import FusedDense, FusedDenseGeluDense
from anyop.torch.apex.installing import install
from anyop.torch.apex.mlp import MLP
from anyop.torch.apex.normalization import (
    FusedLayerNorm,
    FusedRMSNorm,
    MixedFusedLayerNorm,
    MixedFusedRMSNorm,
)
from anyop.torch.apex.transformer import AttnMaskType
from anyop.torch.apex.transformer.functional import (
    FusedScaleMaskSoftmax,
    fused_apply_rotary_pos_emb,
    fused_apply_rotary_pos_emb_2d,
    fused_apply_rotary_pos_emb_cached,
    fused_apply_rotary_pos_emb_thd,
)

__all__ = [
    "MLP",
    "AttnMaskType",
    "FastLayerNorm",
    "FusedDense",
    "FusedDenseGeluDense",
    "FusedLayerNorm",
    "FusedRMSNorm",
    "FusedScaleMaskSoftmax",
    "MixedFusedLayerNorm",
    "MixedFusedRMSNorm",
    "contrib",
    "fused_apply_rotary_pos_emb",
    "fused_apply_rotary_pos_emb_2d",
    "fused_apply_rotary_pos_emb_cached",
    "fused_apply_rotary_pos_emb_thd",
    "fused_dense",
    "install",
    "mlp",
    "multi_tensor_apply",
    "normalization",
    "optimizers",
    "parallel",
    "transformer",
]


def __dir__() -> list[str]:
    """What users call, without the modules behind it."""
    return sorted({*__all__, *(name for name in globals() if name[:2] == "__")})
