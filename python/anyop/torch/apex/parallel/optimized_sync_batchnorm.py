# SPDX-License-Identifier: Apache-2.0
"""apex.parallel.optimized_sync_batchnorm: batch norm over several processes, with an addition and a ReLU."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from anyop.torch.batch_norm import in_either_order, of_module


class SyncBatchNorm(_BatchNorm):
    """anyop.torch.nn.SyncBatchNorm by Apex's arguments; channel_last: of (N, *, C)."""

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
        track_running_stats: bool = True, process_group: Any = None, channel_last: bool = False,
        fuse_relu: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self.process_group = process_group
        self.channel_last = channel_last
        self.fuse_relu = fuse_relu

    def _specify_process_group(self, process_group: Any) -> None:
        self.process_group = process_group

    def _specify_channel_last(self, channel_last: bool) -> None:
        self.channel_last = channel_last

    def forward(self, input: Tensor, z: Tensor | None = None) -> Tensor:
        if self.channel_last and input.dim() != 2:
            return of_module(self, input, z, self.fuse_relu, self.process_group, True)
        return in_either_order(self, input, z, self.fuse_relu, self.process_group)
