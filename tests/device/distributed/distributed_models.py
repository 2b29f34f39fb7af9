# SPDX-License-Identifier: Apache-2.0
"""Training on several processes in torch's ways, each on any device: what the processes end with is compared."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from distributed_collectives import Place
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel


def network(p: Place, *middle: nn.Module) -> nn.Sequential:
    torch.manual_seed(1)
    layers = [nn.Linear(8, 12), nn.GELU(), *middle, nn.LayerNorm(12), nn.Linear(12, 4)]
    return nn.Sequential(*layers).to(p.device)


def mesh(p: Place) -> DeviceMesh:
    return init_device_mesh(p.device, (p.size,))


def batches(p: Place, mine: bool = True) -> list[torch.Tensor]:
    """Other ones in each process, or the same."""
    torch.manual_seed(100 + (p.rank if mine else 0))
    return [torch.randn(6, 8).to(p.device) for _ in range(3)]


def train(p: Place, model: nn.Module, inputs: list[torch.Tensor], zero: bool = False) -> Any:
    if zero:
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for batch in inputs:
        optimizer.zero_grad()
        losses.append(model(batch).square().mean())
        losses[-1].backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return [loss.detach() for loss in losses], [whole(value) for value in model.parameters()]


def whole(value: Any) -> torch.Tensor:
    value = value.detach()
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def ddp(p: Place) -> Any:
    places = None if p.device == "cpu" else [p.rank]
    return train(p, DistributedDataParallel(network(p), device_ids=places), batches(p))


def ddp_with_views_and_buffers(p: Place) -> Any:
    model = network(p, nn.BatchNorm1d(12))
    parallel = DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=1)
    found = train(p, parallel, batches(p))
    with parallel.no_sync():
        parallel(batches(p)[0]).sum().backward()
    return found, list(model.buffers()), [value.grad for value in model.parameters()]


class Forked(nn.Module):
    """Uses one of its two halves."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.halves = nn.ModuleList([nn.Linear(8, 4), nn.Linear(8, 4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.halves[dist.get_rank() % 2](x)


def ddp_with_unused(p: Place) -> Any:
    model = Forked().to(p.device)
    return train(p, DistributedDataParallel(model, find_unused_parameters=True), batches(p))


def ddp_with_hook(p: Place) -> Any:
    def halve(_, bucket):  # torch compares annotations with classes, and these would be texts
        work = dist.all_reduce(bucket.buffer().bfloat16(), async_op=True)
        return work.get_future().then(lambda done: done.value()[0].float() / p.size)

    model = DistributedDataParallel(network(p), static_graph=True)
    model.register_comm_hook(None, halve)
    return train(p, model, batches(p))


def ddp_with_zero(p: Place) -> Any:
    return train(p, DistributedDataParallel(network(p)), batches(p), zero=True)


def fsdp(p: Place) -> Any:
    model = network(p)
    for layer in (model[0], model[-1]):
        fully_shard(layer, mesh=mesh(p))
    fully_shard(model, mesh=mesh(p))
    return train(p, model, batches(p))


def fsdp_in_bfloat16(p: Place) -> Any:
    model = network(p)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    fully_shard(model, mesh=mesh(p), mp_policy=policy, reshard_after_forward=False)
    return train(p, model, [batch.bfloat16() for batch in batches(p)])


def saved_and_loaded(p: Place) -> Any:
    """A checkpoint of a sharded model, read into another one."""
    models = [network(p), network(p)]
    for model in models:
        fully_shard(model, mesh=mesh(p))
    train(p, models[0], batches(p))
    folder = [tempfile.mkdtemp() if p.rank == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    checkpoint.save(models[0].state_dict(), checkpoint_id=folder[0])
    state = models[1].state_dict()
    checkpoint.load(state, checkpoint_id=folder[0])
    models[1].load_state_dict(state)
    return [whole(value) for value in models[1].parameters()]


def tensor_parallel(p: Place) -> Any:
    model = network(p)
    model[2] = nn.Identity()
    parallelize_module(model, mesh(p), {"0": ColwiseParallel(), "3": RowwiseParallel()})
    return train(p, model, batches(p, mine=False))


def sharded_tensors(p: Place) -> Any:
    torch.manual_seed(3)
    a, b = torch.randn(6, 4).to(p.device), torch.randn(4, 6).to(p.device)
    rows, columns = (distribute_tensor(x, mesh(p), [Shard(d)]) for d, x in ((0, a), (1, b)))
    inner = rows.redistribute(placements=[Shard(1)]) @ columns.redistribute(placements=[Shard(0)])
    outer = rows @ distribute_tensor(b, mesh(p), [Replicate()])
    return rows.to_local(), inner.full_tensor(), outer.full_tensor(), (rows.sum() + 1).full_tensor()


ALL = [
    ddp,
    ddp_with_views_and_buffers,
    ddp_with_unused,
    ddp_with_hook,
    ddp_with_zero,
    fsdp,
    fsdp_in_bfloat16,
    saved_and_loaded,
    tensor_parallel,
    sharded_tensors,
]
