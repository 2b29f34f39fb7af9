# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.optimizers: the older optimizers, which take gradients and write copies of 16 bits."""

from anyop.torch.apex.contrib.optimizers.fp16_optimizer import FP16_Optimizer
from anyop.torch.apex.contrib.optimizers.fused_adam import FusedAdam
from anyop.torch.apex.contrib.optimizers.fused_lamb import FusedLAMB
from anyop.torch.apex.contrib.optimizers.fused_sgd import FusedSGD

__all__ = ["FP16_Optimizer", "FusedAdam", "FusedLAMB", "FusedSGD"]
