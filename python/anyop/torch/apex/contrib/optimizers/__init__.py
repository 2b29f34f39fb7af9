# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.optimizers: the older optimizers, which take gradients and write copies of 16 bits."""

from typing import Any

from anyop.torch.apex.calls import not_yet
from anyop.torch.apex.contrib.optimizers.fp16_optimizer import FP16_Optimizer
from anyop.torch.apex.contrib.optimizers.fused_adam import FusedAdam
from anyop.torch.apex.contrib.optimizers.fused_sgd import FusedSGD

__all__ = ["FP16_Optimizer", "FusedAdam", "FusedSGD"]
_NOT_YET = ("FusedLAMB",)


def __getattr__(name: str) -> Any:
    raise not_yet("apex.contrib.optimizers", __name__, name, _NOT_YET, __all__)
