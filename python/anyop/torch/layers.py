# SPDX-License-Identifier: Apache-2.0
"""Layers that run anyop operators: torch.nn's own modules with another forward, and two that torch.nn lacks.

Each is a subclass of torch.nn's module of that name. Arguments, parameters, initial values, state dict, repr and
isinstance are torch's; only forward differs. What an operator cannot do is refused when the module is made.
Inputs that an operator needs contiguous are made so here, as users of torch expect.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import anyop
from anyop.torch.batch_norm import SyncBatchNorm

__all__ = [
    "GELU",
    "Attention",
    "CrossEntropyLoss",
    "Embedding",
    "LayerNorm",
    "Linear",
    "LogSoftmax",
    "RMSNorm",
    "ReLU",
    "SiLU",
    "SiluAndMul",
    "Softmax",
    "SyncBatchNorm",
]


class Linear(torch.nn.Linear):
    """``anyop.linear``; see torch.nn.Linear."""

    def forward(self, input: Tensor) -> Tensor:
        return anyop.linear(input.contiguous(), self.weight.contiguous(), self.bias)


class FewRowsLinear(Linear):
    """``anyop.linear`` for at most 16 rows, torch's product for more, where that is faster; replace() chooses it."""

    def forward(self, input: Tensor) -> Tensor:
        if input.numel() > 16 * self.in_features:
            return torch.nn.Linear.forward(self, input)
        return super().forward(input)


class RMSNorm(torch.nn.RMSNorm):
    """``anyop.rms_norm``; see torch.nn.RMSNorm. eps=None is the epsilon of the type that sums."""

    def forward(self, x: Tensor) -> Tensor:
        rows = _rows(x, self.normalized_shape)
        eps = self.eps
        if eps is None:
            eps = torch.finfo(torch.float64 if x.dtype is torch.float64 else torch.float32).eps
        weight = _flat(self.weight)
        if weight is not None and weight.dtype not in (x.dtype, torch.float32):
            weight = weight.float()  # torch's takes any; the result has x's dtype in both
        return _shaped(anyop.rms_norm(rows, weight, eps), x)


class LayerNorm(torch.nn.LayerNorm):
    """``anyop.layer_norm``; see torch.nn.LayerNorm."""

    def forward(self, input: Tensor) -> Tensor:
        rows = _rows(input, self.normalized_shape)
        found = anyop.layer_norm(rows, _flat(self.weight), _flat(self.bias), self.eps)
        return _shaped(found, input)


class Embedding(torch.nn.Embedding):
    """``anyop.embedding``; see torch.nn.Embedding. An index out of range is a ValueError.

    The row padding_idx gets no gradient. max_norm, scale_grad_by_freq and sparse are refused.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, usual in (("max_norm", None), ("scale_grad_by_freq", False), ("sparse", False)):
            if getattr(self, name) != usual:
                raise NotImplementedError(f"anyop.torch.nn.Embedding does not support {name}")

    def forward(self, input: Tensor) -> Tensor:
        found = anyop.embedding(input.contiguous(), self.weight.contiguous())
        if self.padding_idx is None or not torch.is_grad_enabled():
            return found
        padding = (input == self.padding_idx).unsqueeze(-1)
        return torch.where(padding, found.detach(), found)


class SiLU(torch.nn.SiLU):
    """``anyop.silu``; see torch.nn.SiLU. inplace=True is refused."""

    def __init__(self, inplace: bool = False):
        _refuse_inplace("SiLU", inplace)
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        return anyop.silu(input)


class ReLU(torch.nn.ReLU):
    """``anyop.relu``; see torch.nn.ReLU. inplace=True is refused."""

    def __init__(self, inplace: bool = False):
        _refuse_inplace("ReLU", inplace)
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        return anyop.relu(input)


class GELU(torch.nn.GELU):
    """``anyop.gelu``; see torch.nn.GELU."""

    def forward(self, input: Tensor) -> Tensor:
        return anyop.gelu(input, approximate=self.approximate)


class Softmax(torch.nn.Softmax):
    """``anyop.softmax``; see torch.nn.Softmax. dim must be given."""

    def __init__(self, dim: int):
        super().__init__(_given("Softmax", dim))

    def forward(self, input: Tensor) -> Tensor:
        return anyop.softmax(input.contiguous(), self.dim)


class LogSoftmax(torch.nn.LogSoftmax):
    """``anyop.log_softmax``; see torch.nn.LogSoftmax. dim must be given."""

    def __init__(self, dim: int):
        super().__init__(_given("LogSoftmax", dim))

    def forward(self, input: Tensor) -> Tensor:
        return anyop.log_softmax(input.contiguous(), self.dim)


class CrossEntropyLoss(torch.nn.CrossEntropyLoss):
    """``anyop.cross_entropy``; see torch.nn.CrossEntropyLoss. Classes have no weights, targets are classes.

    z_loss:   factor of the square of a row's logarithm of its sum of exponentials, which is added to its loss.
    inplace:  where a gradient is recorded, forward writes it where the logits lie; what reads them later gets that.
    The loss of float16 and bfloat16 is float32.
    """

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        *,
        z_loss: float = 0.0,
        inplace: bool = False,
    ) -> None:
        if weight is not None:
            raise NotImplementedError("anyop.torch.nn.CrossEntropyLoss does not support weight")
        super().__init__(None, size_average, ignore_index, reduce, reduction, label_smoothing)
        if self.reduction not in ("mean", "sum", "none"):
            raise ValueError(f"{self.reduction} is not a valid value for reduction")
        self.z_loss = z_loss
        self.inplace = inplace

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        if target.is_floating_point():
            raise NotImplementedError(
                "anyop.torch.nn.CrossEntropyLoss does not support probabilities as targets"
            )
        rows, classes = (
            rows_of(input.movedim(1, -1) if input.dim() > 2 else input),
            target.contiguous(),
        )
        numbers = self.ignore_index, self.label_smoothing, self.z_loss
        recorded = torch.is_grad_enabled() and rows.requires_grad
        if self.inplace and recorded and not torch.compiler.is_compiling():
            from anyop.torch.cross_entropy import in_place

            return in_place(rows, classes, self.reduction, *numbers)
        names = dict(zip(("ignore_index", "label_smoothing", "z_loss"), numbers, strict=True))
        loss: Tensor = anyop.cross_entropy(rows, classes, **names)[0]
        if self.reduction == "none":
            return loss
        total = loss.sum()
        return total if self.reduction == "sum" else total / (classes != self.ignore_index).sum()


class SiluAndMul(torch.nn.Module):
    """SwiGLU, ``anyop.silu_and_mul``: x (*, 2*D) gives silu of the first half times the second, (*, D)."""

    def forward(self, x: Tensor) -> Tensor:
        return anyop.silu_and_mul(rows_of(x))


class Attention(torch.nn.Module):
    """``anyop.attention``: q (B, H, S, D), k (B, G, T, D), v (B, G, T, E) give (B, H, S, E); H is a multiple of G.

    scale:  factor of the scores; None: 1 / sqrt(D).
    causal: query s attends to keys 0 to s only.
    The mask of a call, broadcastable to (B, H, S, T): bool, True where a query may attend, or numbers that are
    added to the scores. It gets no gradient. A query that may attend nowhere gets 0.
    """

    def __init__(self, scale: float | None = None, causal: bool = False):
        super().__init__()
        self.scale = scale
        self.causal = causal

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = map(rows_of, (q, k, v))
        return anyop.attention(q, k, v, mask, scale=self.scale, causal=self.causal)

    def extra_repr(self) -> str:
        return f"scale={self.scale}, causal={self.causal}"


def _rows(x: Tensor, normalized_shape: tuple[int, ...]) -> Tensor:
    """The normalised dimensions of x made one, which is contiguous."""
    count = len(normalized_shape)
    if tuple(x.shape[-count:]) != normalized_shape:
        shape = ", ".join(map(str, normalized_shape))
        raise ValueError(f"input has shape {tuple(x.shape)}, expected (*, {shape})")
    return rows_of(x if count == 1 else x.flatten(-count))


def _flat(parameter: Tensor | None) -> Tensor | None:
    return parameter if parameter is None or parameter.dim() == 1 else parameter.flatten()


def _shaped(found: Tensor, x: Tensor) -> Tensor:
    return found if found.dim() == x.dim() else found.view(x.shape)


def rows_of(x: Tensor) -> Tensor:
    """Rows as they are where their elements are neighbours: no operator here needs more."""
    return x if x.dim() and x.stride(-1) == 1 else x.contiguous()


def _refuse_inplace(name: str, inplace: bool) -> None:
    if inplace:
        raise NotImplementedError(f"anyop.torch.nn.{name} does not support inplace=True")


def _given(name: str, dim: int | None) -> int:
    if dim is None:
        raise ValueError(f"anyop.torch.nn.{name}: dim must be given")
    return dim
