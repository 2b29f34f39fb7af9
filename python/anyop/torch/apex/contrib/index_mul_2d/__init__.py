# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.index_mul_2d."""

from anyop.torch.apex.contrib.index_mul_2d.index_mul_2d import index_mul_2d

__all__ = ["index_mul_2d"]
