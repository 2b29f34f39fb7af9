# SPDX-License-Identifier: Apache-2.0
"""A Linear that also keeps its weight in the order in which the CPU multiplies few rows fastest."""

from __future__ import annotations

import torch
from torch import Tensor

import anyop
from anyop.torch import layers

MOST_ROWS = 128  # beyond them plain weights are as fast


class PackedLinear(layers.Linear):
    """Linear for a weight that stays as it is: bfloat16 on the CPU, at most 128 rows, no gradient recorded.

    Such calls read a packed copy of the weight, made by the first of them and again when the weight was changed:
    another tensor, another memory, or another version, which all of torch's in-place operations raise. Changes that
    torch does not see, through ``.data``, NumPy or another process, are not noticed: call repack(). All other calls
    are those of Linear. Parameters, state dict, copies and pickles are Linear's; the copy is never saved.
    """

    def forward(self, input: Tensor) -> Tensor:
        weight, bias = self.weight, self.bias
        if not may_pack(self) or not _is_plain(input, weight, bias):
            return super().forward(input)
        kept = self.__dict__.get("_kept")
        if kept is None or not kept.is_of(weight):
            kept = _Kept(weight)
            self.__dict__["_kept"] = kept
        return anyop.linear_packed(input.contiguous(), kept.packed, bias)

    def repack(self) -> None:
        """Forget the packed copy: the next call makes another."""
        self.__dict__.pop("_kept", None)


class _Kept:
    """A packed weight, and what shows that it is still that of the weight. Copies and pickles have none."""

    def __init__(self, weight: Tensor) -> None:
        self.weight, self.version = weight, weight._version
        self.memory = weight.detach()  # held, so that no other tensor comes to lie there
        self.packed = anyop.pack_weight(self.memory.contiguous())

    def is_of(self, weight: Tensor) -> bool:
        same = weight is self.weight and weight._version == self.version
        return same and weight.data_ptr() == self.memory.data_ptr()

    def __reduce__(self) -> tuple:
        return _nothing, ()


def _nothing() -> None:
    return None


def may_pack(module: torch.nn.Linear) -> bool:
    """Whether a weight of this type, device and shape can be packed."""
    weight = module.weight
    fits = (
        weight.dtype is torch.bfloat16 and weight.device.type == "cpu" and not weight.is_inference()
    )
    return fits and weight.shape[0] % 64 == 0 and weight.shape[1] % 2 == 0 and weight.numel() > 0


def _is_plain(input: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    if torch.compiler.is_compiling() or type(input) is not Tensor:
        return False
    if input.dtype is not torch.bfloat16 or input.numel() > MOST_ROWS * weight.shape[1]:
        return False
    tensors = (input, weight) if bias is None else (input, weight, bias)
    return not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors))
