# SPDX-License-Identifier: Apache-2.0
"""apex.optimizers."""

from typing import Any

from anyop.torch.apex.calls import not_yet
from anyop.torch.apex.optimizers.fused_adagrad import FusedAdagrad
from anyop.torch.apex.optimizers.fused_adam import FusedAdam
from anyop.torch.apex.optimizers.fused_lamb import FusedLAMB
from anyop.torch.apex.optimizers.fused_novograd import FusedNovoGrad
from anyop.torch.apex.optimizers.fused_sgd import FusedSGD

__all__ = ["FusedAdagrad", "FusedAdam", "FusedLAMB", "FusedNovoGrad", "FusedSGD"]
_NOT_YET = ("FusedMixedPrecisionLamb",)


def __getattr__(name: str) -> Any:
    raise not_yet("apex.optimizers", __name__, name, _NOT_YET, __all__)
