# SPDX-License-Identifier: Apache-2.0
"""transducer_joint_cuda: the joint of a transducer and its gradient, raw."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import anyop
from anyop.torch.apex.calls import check


def random_place(device: torch.device) -> tuple[Tensor, Tensor]:
    """A seed and an offset on the device, by torch's generator of it."""
    seed = torch.randint(2**62, (1,), dtype=torch.int64, device=device)
    return seed, torch.zeros_like(seed)


@torch.no_grad()
def forward(
    f: Tensor, g: Tensor, f_len: Tensor, g_len: Tensor, batch_offset: Tensor, packed_batch: int,
    opt: int, pack_output: bool, relu: bool, dropout: bool, dropout_prob: float, tile_size: int,
) -> list[Tensor]:  # fmt: skip
    """The sums, and what was kept of them where there is ReLU or dropout."""
    masked = relu or dropout
    check(opt == 1 or not masked, "ReLU and dropout fusion is only supported with opt=1")
    place = random_place(f.device) if dropout and dropout_prob > 0 else (None, None)
    wanted: dict[str, Any] = {"relu": relu, "dropout": dropout_prob if dropout else 0.0}
    if not masked:
        wanted["mask"] = False
    given = f.contiguous(), g.contiguous(), f_len, g_len.to(f_len.dtype)
    if pack_output:
        found = anyop.transducer_joint_packed(
            *given, batch_offset.long(), packed_batch, *place, **wanted
        )
    else:
        found = anyop.transducer_joint(*given, *place, **wanted)
    return list(found) if masked else [found[0]]


@torch.no_grad()
def backward(
    input: list[Tensor], f_len: Tensor, g_len: Tensor, batch_offset: Tensor, max_f_len: int,
    max_g_len: int, pack_output: bool, scale: float,
) -> list[Tensor]:  # fmt: skip
    """Gradients of f and g. input: that of the sums, and the mask of the forward call if it had one."""
    grad = input[0].contiguous()
    if len(input) > 1:
        grad = torch.where(input[1].bool(), grad * scale, 0)
    sizes = len(f_len), grad.shape[-1]
    f, g = (grad.new_empty(sizes[0], n, sizes[1]) for n in (max_f_len, max_g_len))  # never read
    given = grad, f, g, f_len, g_len.to(f_len.dtype)
    if pack_output:
        return list(anyop.transducer_joint_packed_backward(*given, batch_offset.long()))
    return list(anyop.transducer_joint_backward(*given))
