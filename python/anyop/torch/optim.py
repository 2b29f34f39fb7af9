# SPDX-License-Identifier: Apache-2.0
"""Optimizers that step through all parameters of a device in one call, with Apex's names and torch.optim's arguments.

They stand in modules of their own, for anyop.torch may not import what users import by itself.
"""

from anyop.torch.adam import FusedAdam, FusedAdamW

__all__ = ["FusedAdam", "FusedAdamW"]
