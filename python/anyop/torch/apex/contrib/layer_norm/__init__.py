# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.layer_norm."""

from anyop.torch.apex.contrib.layer_norm.layer_norm import FastLayerNorm

__all__ = ["FastLayerNorm"]
