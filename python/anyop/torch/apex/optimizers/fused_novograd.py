# SPDX-License-Identifier: Apache-2.0
"""apex.optimizers.fused_novograd: anyop.torch.optim.FusedNovoGrad, which has Apex's arguments and defaults."""

from anyop.torch.optim.novograd import FusedNovoGrad

__all__ = ["FusedNovoGrad"]
