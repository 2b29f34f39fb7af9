# SPDX-License-Identifier: Apache-2.0
"""Optimizers that step through all parameters of a device in one call, with torch.optim's and Apex's arguments."""

from anyop.torch.optim.adagrad import FusedAdagrad
from anyop.torch.optim.adam import FusedAdam, FusedAdamW
from anyop.torch.optim.lamb import FusedLAMB
from anyop.torch.optim.novograd import FusedNovoGrad
from anyop.torch.optim.sgd import FusedSGD

__all__ = ["FusedAdagrad", "FusedAdam", "FusedAdamW", "FusedLAMB", "FusedNovoGrad", "FusedSGD"]
