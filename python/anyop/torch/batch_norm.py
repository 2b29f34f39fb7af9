# SPDX-License-Identifier: Apache-2.0
"""A batch norm over the processes of torch.distributed: its layer, and the autograd function behind it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

import anyop


class SyncBatchNorm(torch.nn.SyncBatchNorm):
    """Batch norm of (N, C, *) whose statistics are those of all processes; see torch.nn.SyncBatchNorm.

    fuse_relu:  the result is cut off at 0; one bit for each element is saved for the gradient.
    A call with `z`, of the input's shape, adds it to the result before that.
    Batches may differ in size. Inputs, on any device, are contiguous or in the memory format channels_last; others are
    copied.
    """

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1,
        affine: bool = True, track_running_stats: bool = True, process_group: Any = None,
        device: torch.device | str | None = None, dtype: torch.dtype | None = None,
        *, fuse_relu: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, process_group, device, dtype
        )
        self.fuse_relu = fuse_relu

    def forward(self, input: Tensor, z: Tensor | None = None) -> Tensor:
        self._check_input_dim(input)
        self._check_non_zero_input_channels(input)
        return in_either_order(self, input, z, self.fuse_relu, self.process_group)

    @classmethod
    def convert_sync_batchnorm(cls, module: torch.nn.Module, process_group: Any = None) -> Any:
        """The module with a SyncBatchNorm for each of torch's batch norms in it, which keeps parameters and buffers."""
        made = module
        if isinstance(module, _BatchNorm):
            made = like(cls(module.num_features, process_group=process_group, affine=False), module)
        for name, child in module.named_children():
            made.add_module(name, cls.convert_sync_batchnorm(child, process_group))
        return made


def like(made: Any, module: _BatchNorm) -> Any:
    """`made` with the options, parameters and buffers of the module, the same objects."""
    for name in ("eps", "momentum", "affine", "track_running_stats", "training"):
        setattr(made, name, getattr(module, name))
    made._parameters.update(module._parameters)
    made._buffers.update(module._buffers)
    if hasattr(module, "qconfig"):
        made.qconfig = module.qconfig
    return made


def in_either_order(module: Any, x: Tensor, z: Tensor | None, relu: bool, group: Any) -> Tensor:
    """The batch norm of a module of torch's attributes, of (N, C, *) in the memory format that x has."""
    last = not x.is_contiguous() and x.movedim(1, -1).is_contiguous()
    if not last:
        return of_module(module, x, z, relu, group, False)
    moved = None if z is None else z.movedim(1, -1)
    return of_module(module, x.movedim(1, -1), moved, relu, group, True).movedim(-1, 1)


def of_module(
    module: Any, x: Tensor, z: Tensor | None, relu: bool, group: Any, last: bool
) -> Tensor:
    """The same of (N, C, *), or with `last` of (N, *, C)."""
    momentum: Any = module.momentum
    if module.training and module.track_running_stats and module.num_batches_tracked is not None:
        module.num_batches_tracked.add_(1)
        if momentum is None:  # the mean of all batches so far
            momentum = module.num_batches_tracked.to(torch.float32).reciprocal()
    tracks = not module.training or module.track_running_stats
    running = (module.running_mean, module.running_var) if tracks else (None, None)
    if not module.training and running[0] is not None:
        return _Fixed.apply(
            x.contiguous(), module.weight, module.bias, z, *running, module.eps, relu, last
        )
    world = group if module.training and _has_group() else False
    return _Synchronized.apply(
        x.contiguous(), module.weight, module.bias, z, *running,
        0.0 if momentum is None else momentum, module.eps, relu, world, last,
    )  # fmt: skip


def _has_group() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


class _Synchronized(torch.autograd.Function):
    """By the statistics of the batch; group: that of torch.distributed, None for all processes, False for none."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, z: Tensor | None,
        running_mean: Tensor | None, running_var: Tensor | None, momentum: Tensor | float, eps: float,
        relu: bool, group: Any, last: bool,
    ) -> Tensor:  # fmt: skip
        C = x.shape[-1 if last else 1]
        count = x.numel() // C
        size = 1 if group is False else torch.distributed.get_world_size(group)
        if size == 1 and count == 1:
            raise ValueError(
                f"Expected more than 1 value per channel when training, got input size {x.shape}"
            )
        # Mean, variance and count, as one message.
        own = torch.full((2 * C + 1,), count, dtype=_wide(x), device=x.device)
        _operator("stats", last)(x, mean=own[:C], var=own[C:-1])
        all_ = own[None]
        if size > 1:
            all_ = own.new_empty(size, 2 * C + 1)
            torch.distributed.all_gather(list(all_), own, group)
        counts = all_[:, -1]
        mean, _, rstd = anyop.batch_norm_combine(
            all_[:, :C], all_[:, C:-1], counts, running_mean, running_var, momentum, eps=eps
        )
        out = _applied(ctx, x, weight, bias, z, mean, rstd, relu, last, counts)
        ctx.group, ctx.size = group, size
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        def shared(sums: Tensor) -> None:
            if ctx.size > 1:
                torch.distributed.all_reduce(sums, group=ctx.group)

        return *_gradients(ctx, grad_out, shared), *[None] * 7


class _Fixed(torch.autograd.Function):
    """By given statistics."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, z: Tensor | None, mean: Tensor,
        var: Tensor, eps: float, relu: bool, last: bool,
    ) -> Tensor:  # fmt: skip
        rstd = (var.to(_wide(x)) + eps).rsqrt()
        return _applied(ctx, x, weight, bias, z, mean.to(_wide(x)), rstd, relu, last, None)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        return *_gradients(ctx, grad_out, None), *[None] * 5


def _applied(
    ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, z: Tensor | None, mean: Tensor,
    rstd: Tensor, relu: bool, last: bool, counts: Tensor | None,
) -> Tensor:  # fmt: skip
    weight, bias = (
        p.to(_wide(x)) if p is not None and p.dtype not in (x.dtype, torch.float32) else p
        for p in (weight, bias)
    )
    residual = None if z is None else z.contiguous()
    found, mask = _operator("apply", last)(
        x, mean, rstd, weight, bias, residual, relu=relu,
        mask=None if relu and any(ctx.needs_input_grad[:4]) else False,
    )  # fmt: skip
    ctx.save_for_backward(x, weight, mean, rstd, mask, counts)
    ctx.last = last
    return found


def _gradients(ctx: Any, grad_out: Tensor, shared: Any) -> list[Tensor | None]:
    """Of x, weight, bias and z; shared adds up sums over processes, None: statistics are constants."""
    x, weight, mean, rstd, mask, counts = ctx.saved_tensors
    of_x, of_weight, of_bias, of_z = ctx.needs_input_grad[:4]
    grad_out = grad_out.contiguous()
    sums, parameters = None, [None, None]
    if of_weight or of_bias or (of_x and shared):
        sums = mean.new_empty(2, len(mean))
        parameters = _operator("reduce", ctx.last)(
            grad_out, x, mean, rstd, weight, mask, sum_dy=sums[0], sum_dy_xmu=sums[1],
            grad_weight=None if of_weight else False, grad_bias=None if of_bias else False,
        )[2:]  # fmt: skip
    if of_x and shared:
        shared(sums)
    grads = [None, None]
    if of_x or of_z:
        totals = (*sums, counts) if of_x and shared else (None, None, None)
        grads = _operator("backward", ctx.last)(
            grad_out, x, mean, rstd, weight, mask, *totals,
            grad_x=None if of_x else False, grad_residual=None if of_z else False,
        )  # fmt: skip
    return [grads[0], *parameters, grads[1]]


def _operator(name: str, last: bool) -> Any:
    return getattr(anyop, f"batch_norm_{name}{'_channels_last' if last else ''}")


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype is torch.float64 else torch.float32
