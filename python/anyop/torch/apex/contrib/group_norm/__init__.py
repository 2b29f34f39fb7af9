# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.group_norm."""

from anyop.torch.apex.contrib.group_norm.group_norm import GroupNorm

__all__ = ["GroupNorm"]
