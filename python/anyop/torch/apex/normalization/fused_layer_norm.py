# SPDX-License-Identifier: Apache-2.0
"""apex.normalization.fused_layer_norm: layer and RMS norms over the last dimensions."""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter, init
from torch.nn import functional as F

import anyop
from anyop.torch.apex.calls import applied, check, exporting, in_lower_dtype

Shape = Sequence[int] | int


def manual_rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, eps: float
) -> Tensor:
    """The RMS norm by torch's operators: what an exported graph holds."""
    dims = tuple(range(-len(normalized_shape), 0))
    mean = input.to(torch.float32).pow(2).mean(dims, keepdim=True)
    scaled = input * torch.rsqrt(mean + eps)
    if weight is None:
        return scaled
    half = weight.dtype in (torch.float16, torch.bfloat16)
    return weight * (scaled.to(weight.dtype) if half else scaled)


def rows_of(input: Tensor, normalized_shape: Shape) -> Tensor:
    """The last dimensions made one; the others as they are."""
    shape = _sizes(normalized_shape)
    check(
        len(shape) > 0,
        "Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one "
        f"element, but got normalized_shape={list(shape)}",
    )
    check(
        tuple(input.shape[-len(shape) :]) == shape,
        f"Given normalized_shape={list(shape)}, expected input with shape "
        f"[*, {', '.join(map(str, shape))}], but got input of size {list(input.shape)}",
    )
    rows = input if len(shape) == 1 else input.flatten(-len(shape))
    return rows if rows.stride(-1) == 1 else rows.contiguous()


def flat(parameter: Tensor | None, x: Tensor) -> Tensor | None:
    """A parameter as a row, in float32 where it has another 16-bit type than x."""
    if parameter is None:
        return None
    row = parameter.flatten().contiguous()
    return row if row.dtype in (x.dtype, torch.float32) else row.float()


def _sizes(normalized_shape: Shape) -> tuple[int, ...]:
    if isinstance(normalized_shape, numbers.Integral):
        return (int(normalized_shape),)
    return tuple(normalized_shape)  # type: ignore[arg-type]


def _norm(
    kind: str,
    input: Tensor,
    parameters: tuple[Tensor | None, ...],
    normalized_shape: Shape,
    eps: float,
    memory_efficient: bool,
    mixed: bool = False,
) -> Tensor:
    """kind: layer_norm or rms_norm. mixed: the result has the dtype of the weight."""
    x = rows_of(input, normalized_shape)
    for parameter in parameters:
        check(
            parameter is None or tuple(parameter.shape) == _sizes(normalized_shape),
            f"Expected weight and bias of shape {list(_sizes(normalized_shape))}, but got "
            f"{None if parameter is None else list(parameter.shape)}",
        )
    rows = [flat(parameter, x) for parameter in parameters]
    weight = parameters[0]
    dtype = weight.dtype if mixed and weight is not None else x.dtype
    # The operators that save the result write x's dtype, and know no float64: they save x then.
    if memory_efficient and dtype is x.dtype is not torch.float64:
        out = getattr(anyop, f"{kind}_from_output")(x, *rows, eps)[0]
    else:
        other = dtype if dtype is not x.dtype else None
        out = getattr(anyop, kind)(x, *rows, eps, dtype=other)
    return out.view(input.shape)


def fused_layer_norm_affine(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    normalized_shape: Shape,
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> Tensor:
    """Layer norm with weight and bias; memory_efficient saves the result in place of the input."""

    def run(input: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return _norm("layer_norm", input, (weight, bias), normalized_shape, eps, memory_efficient)

    return in_lower_dtype(run, input, weight, bias)


def fused_layer_norm(
    input: Tensor, normalized_shape: Shape, eps: float = 1e-6, memory_efficient: bool = False
) -> Tensor:
    """Layer norm without parameters."""

    def run(input: Tensor) -> Tensor:
        return _norm("layer_norm", input, (None, None), normalized_shape, eps, memory_efficient)

    return in_lower_dtype(run, input)


def mixed_dtype_fused_layer_norm_affine(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    normalized_shape: Shape,
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> Tensor:
    """Layer norm whose result has the dtype of the weight."""

    def run(input: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        more = normalized_shape, eps, memory_efficient, True
        return _norm("layer_norm", input, (weight, bias), *more)

    return in_lower_dtype(run, input, weight, bias)


def fused_rms_norm_affine(
    input: Tensor,
    weight: Tensor,
    normalized_shape: Shape,
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> Tensor:
    """RMS norm with weight; memory_efficient saves the result in place of the input."""

    def run(input: Tensor, weight: Tensor) -> Tensor:
        return _norm("rms_norm", input, (weight,), normalized_shape, eps, memory_efficient)

    return in_lower_dtype(run, input, weight)


def fused_rms_norm(
    input: Tensor, normalized_shape: Shape, eps: float = 1e-6, memory_efficient: bool = False
) -> Tensor:
    """RMS norm without a weight."""

    def run(input: Tensor) -> Tensor:
        return _norm("rms_norm", input, (None,), normalized_shape, eps, memory_efficient)

    return in_lower_dtype(run, input)


def mixed_dtype_fused_rms_norm_affine(
    input: Tensor,
    weight: Tensor,
    normalized_shape: Shape,
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> Tensor:
    """RMS norm whose result has the dtype of the weight."""

    def run(input: Tensor, weight: Tensor) -> Tensor:
        return _norm("rms_norm", input, (weight,), normalized_shape, eps, memory_efficient, True)

    return in_lower_dtype(run, input, weight)


def _affine_only(name: str, given: dict[str, Any]) -> None:
    if "elementwise_affine" in given:
        warnings.warn(f"{name} does not support `elementwise_affine` argument", stacklevel=3)
        if not given.pop("elementwise_affine"):
            raise RuntimeError(f"{name} does not support `elementwise_affine = False`")
    if given:
        raise TypeError(f"{name} got unexpected keyword arguments {sorted(given)}")


class _Norm(torch.nn.Module):
    """What the four classes share; affine names the parameters."""

    affine: tuple[str, ...] = ("weight",)
    weight: Tensor | None
    bias: Tensor | None

    def __init__(
        self,
        normalized_shape: Shape,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        memory_efficient: bool = False,
    ) -> None:
        super().__init__()
        self.normalized_shape = torch.Size(_sizes(normalized_shape))
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self.memory_efficient = memory_efficient
        for name in self.affine:
            parameter = (
                Parameter(torch.empty(self.normalized_shape)) if elementwise_affine else None
            )
            self.register_parameter(name, parameter)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for name in self.affine if self.elementwise_affine else ():
            (init.ones_ if name == "weight" else init.zeros_)(getattr(self, name))

    def extra_repr(self) -> str:
        return "{normalized_shape}, eps={eps}, elementwise_affine={elementwise_affine}".format(
            **self.__dict__
        )


class FusedLayerNorm(_Norm):
    """Layer norm over the dimensions normalized_shape; the result has the input's dtype."""

    affine = ("weight", "bias")

    def forward(self, input: Tensor) -> Tensor:
        if exporting():
            return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)
        more = self.normalized_shape, self.eps, self.memory_efficient
        if self.weight is not None and self.bias is not None:
            return fused_layer_norm_affine(input, self.weight, self.bias, *more)
        return fused_layer_norm(input, *more)


class FusedRMSNorm(_Norm):
    """RMS norm over the dimensions normalized_shape; the result has the input's dtype."""

    def forward(self, input: Tensor) -> Tensor:
        if exporting():
            return manual_rms_norm(input, self.normalized_shape, self.weight, self.eps)
        more = self.normalized_shape, self.eps, self.memory_efficient
        if self.weight is not None:
            return fused_rms_norm_affine(input, self.weight, *more)
        return fused_rms_norm(input, *more)


class MixedFusedLayerNorm(FusedLayerNorm):
    """FusedLayerNorm whose result has the dtype of its parameters."""

    def __init__(
        self,
        normalized_shape: Shape,
        eps: float = 1e-5,
        *,
        memory_efficient: bool = False,
        **kwargs: Any,
    ) -> None:
        _affine_only("MixedFusedLayerNorm", kwargs)
        super().__init__(normalized_shape, eps, True, memory_efficient)

    def forward(self, input: Tensor) -> Tensor:
        if exporting():
            return super().forward(input)
        more = self.normalized_shape, self.eps, self.memory_efficient
        return mixed_dtype_fused_layer_norm_affine(input, self.weight, self.bias, *more)


class MixedFusedRMSNorm(FusedRMSNorm):
    """FusedRMSNorm whose result has the dtype of its weight."""

    def __init__(
        self,
        normalized_shape: Shape,
        eps: float = 1e-5,
        *,
        memory_efficient: bool = False,
        **kwargs: Any,
    ) -> None:
        _affine_only("MixedFusedRMSNorm", kwargs)
        super().__init__(normalized_shape, eps, True, memory_efficient)

    def forward(self, input: Tensor) -> Tensor:
        if exporting():
            return super().forward(input)
        more = self.normalized_shape, self.eps, self.memory_efficient
        return mixed_dtype_fused_rms_norm_affine(input, self.weight, *more)


FusedLayerNormAffineFunction = applied(
    "FusedLayerNormAffineFunction", fused_layer_norm_affine, __name__
)
FusedLayerNormFunction = applied("FusedLayerNormFunction", fused_layer_norm, __name__)
FusedLayerNormAffineMixedDtypesFunction = applied(
    "FusedLayerNormAffineMixedDtypesFunction", mixed_dtype_fused_layer_norm_affine, __name__
)
FusedRMSNormAffineFunction = applied("FusedRMSNormAffineFunction", fused_rms_norm_affine, __name__)
FusedRMSNormFunction = applied("FusedRMSNormFunction", fused_rms_norm, __name__)
FusedRMSNormAffineMixedDtypesFunction = applied(
    "FusedRMSNormAffineMixedDtypesFunction", mixed_dtype_fused_rms_norm_affine, __name__
)
