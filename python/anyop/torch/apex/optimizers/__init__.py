# SPDX-License-Identifier: Apache-2.0
"""apex.optimizers."""

from typing import Any

from anyop.torch.apex.calls import not_yet
from anyop.torch.apex.optimizers.fused_adam import FusedAdam

__all__ = ["FusedAdam"]
_NOT_YET = (
    "FusedAdagrad", "FusedLAMB", "FusedMixedPrecisionLamb", "FusedNovoGrad", "FusedSGD",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    raise not_yet("apex.optimizers", __name__, name, _NOT_YET, __all__)
