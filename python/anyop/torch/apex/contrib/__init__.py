# SPDX-License-Identifier: Apache-2.0
"""apex.contrib, as far as it is there."""

from anyop.torch.apex.contrib import layer_norm

__all__ = ["layer_norm"]
