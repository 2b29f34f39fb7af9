# SPDX-License-Identifier: Apache-2.0
"""apex.parallel, as far as it is there: batch norm over several processes."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from anyop.torch.apex.calls import not_yet
from anyop.torch.apex.parallel.optimized_sync_batchnorm import SyncBatchNorm
from anyop.torch.batch_norm import like

__all__ = ["SyncBatchNorm", "convert_syncbn_model", "create_syncbn_process_group"]
_NOT_YET = ("DistributedDataParallel", "LARC", "ReduceOp", "Reducer")


def __getattr__(name: str) -> Any:
    raise not_yet("apex.parallel", __name__, name, _NOT_YET, __all__)


def convert_syncbn_model(
    module: torch.nn.Module, process_group: Any = None, channel_last: bool = False
) -> torch.nn.Module:
    """The module with a SyncBatchNorm for each of torch's batch norms in it, which keeps parameters and buffers."""
    made = module
    if isinstance(module, torch.nn.modules.instancenorm._InstanceNorm):
        return module
    if isinstance(module, _BatchNorm):
        norm = SyncBatchNorm(
            module.num_features,
            affine=False,
            process_group=process_group,
            channel_last=channel_last,
        )
        made = like(norm, module)
    for name, child in module.named_children():
        made.add_module(name, convert_syncbn_model(child, process_group, channel_last))
    return made


def create_syncbn_process_group(group_size: int) -> Any:
    """The group of this process, group_size of them each; None for all. Every process must call it."""
    if group_size == 0:
        return None
    world = torch.distributed.get_world_size()
    assert world >= group_size
    assert world % group_size == 0
    mine = None
    for first in range(0, world, group_size):
        ranks = range(first, first + group_size)
        made = torch.distributed.new_group(list(ranks))
        mine = made if torch.distributed.get_rank() in ranks else mine
    assert mine is not None
    return mine
