# SPDX-License-Identifier: Apache-2.0
"""apex.optimizers.fused_lamb: anyop.torch.optim.FusedLAMB, which has Apex's arguments and defaults."""

from anyop.torch.optim.lamb import FusedLAMB

__all__ = ["FusedLAMB"]
