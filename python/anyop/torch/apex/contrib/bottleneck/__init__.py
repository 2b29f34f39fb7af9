# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.bottleneck."""

from anyop.torch.apex.contrib.bottleneck.bottleneck import Bottleneck, SpatialBottleneck

__all__ = ["Bottleneck", "SpatialBottleneck"]
