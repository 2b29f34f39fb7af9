# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.sparsity."""

from anyop.torch.apex.contrib.sparsity.asp import ASP
from anyop.torch.apex.contrib.sparsity.sparse_masklib import create_mask

__all__ = ["ASP", "create_mask"]
