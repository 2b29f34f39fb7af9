# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.focal_loss."""

from anyop.torch.apex.contrib.focal_loss.focal_loss import focal_loss

__all__ = ["focal_loss"]
