# SPDX-License-Identifier: Apache-2.0
"""apex.optimizers."""

from anyop.torch.apex.optimizers.fused_adagrad import FusedAdagrad
from anyop.torch.apex.optimizers.fused_adam import FusedAdam
from anyop.torch.apex.optimizers.fused_lamb import FusedLAMB
from anyop.torch.apex.optimizers.fused_mixed_precision_lamb import FusedMixedPrecisionLamb
from anyop.torch.apex.optimizers.fused_novograd import FusedNovoGrad
from anyop.torch.apex.optimizers.fused_sgd import FusedSGD

__all__ = [
    "FusedAdagrad",
    "FusedAdam",
    "FusedLAMB",
    "FusedMixedPrecisionLamb",
    "FusedNovoGrad",
    "FusedSGD",
]
