# SPDX-License-Identifier: Apache-2.0
"""fused_layer_norm_cuda: norms and their gradients, raw. Statistics are float32, one for each row."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import anyop
from anyop.torch.apex.normalization.fused_layer_norm import Shape, flat, rows_of


def _forward(
    input: Tensor, shape: Shape, parameters: list[Tensor | None], eps: float, mixed: bool = False
) -> list[Tensor]:
    """The result, the mean where there is one, and 1 / the deviation; with one parameter the RMS norm's."""
    x, weight = rows_of(input, shape), parameters[0]
    dtype = weight.dtype if mixed and weight is not None and weight.dtype != x.dtype else None
    native: Any = anyop.native_layer_norm if len(parameters) == 2 else anyop.native_rms_norm
    out, *statistics = native(x, *(flat(p, x) for p in parameters), eps, dtype=dtype)
    return [out.view(input.shape), *(value.flatten() for value in statistics)]


def _backward(
    dout: Tensor, rstd: Tensor, input_or_output: Tensor, shape: Shape,
    parameters: list[Tensor | None], eps: float, memory_efficient: bool,
) -> list[Tensor | None]:  # fmt: skip
    """Gradients of the input and of each parameter; with memory_efficient from the result and rstd."""
    x, grad = rows_of(input_or_output, shape), rows_of(dout, shape)
    kind = "layer_norm" if len(parameters) == 2 else "rms_norm"
    rows = [flat(p, x) for p in parameters]
    unwanted = {
        f"grad_{name}": False for name, p in zip(("weight", "bias"), parameters) if p is None
    }
    if memory_efficient:
        backward = getattr(anyop, f"{kind}_from_output_backward")
        found = backward(grad, x, rstd.view(*x.shape[:-1], 1), *rows, **unwanted)
    else:
        found = getattr(anyop, f"{kind}_backward")(grad, x, rows[0], eps, **unwanted)
    of = [input_or_output, *parameters]
    return [
        None if p is None or g is None else g.view(p.shape).to(p.dtype) for p, g in zip(of, found)
    ]


@torch.no_grad()
def forward(input: Tensor, normalized_shape: Shape, epsilon: float) -> list[Tensor]:
    """Layer norm without parameters: result, mean, rstd."""
    return _forward(input, normalized_shape, [None, None], epsilon)


@torch.no_grad()
def forward_affine(
    input: Tensor, normalized_shape: Shape, gamma: Tensor, beta: Tensor, epsilon: float
) -> list[Tensor]:
    """Layer norm: result, mean, rstd."""
    return _forward(input, normalized_shape, [gamma, beta], epsilon)


@torch.no_grad()
def forward_affine_mixed_dtypes(
    input: Tensor, normalized_shape: Shape, gamma: Tensor, beta: Tensor, epsilon: float
) -> list[Tensor]:
    """Layer norm whose result has gamma's dtype: result, mean, rstd."""
    return _forward(input, normalized_shape, [gamma, beta], epsilon, mixed=True)


@torch.no_grad()
def rms_forward(input: Tensor, normalized_shape: Shape, epsilon: float) -> list[Tensor]:
    """RMS norm without a weight: result, rstd."""
    return _forward(input, normalized_shape, [None], epsilon)


@torch.no_grad()
def rms_forward_affine(
    input: Tensor, normalized_shape: Shape, gamma: Tensor, epsilon: float
) -> list[Tensor]:
    """RMS norm: result, rstd."""
    return _forward(input, normalized_shape, [gamma], epsilon)


@torch.no_grad()
def rms_forward_affine_mixed_dtypes(
    input: Tensor, normalized_shape: Shape, gamma: Tensor, epsilon: float
) -> list[Tensor]:
    """RMS norm whose result has gamma's dtype: result, rstd."""
    return _forward(input, normalized_shape, [gamma], epsilon, mixed=True)


@torch.no_grad()
def backward(
    dout: Tensor, mean: Tensor | None, invvar: Tensor, input_or_output: Tensor,
    normalized_shape: Shape, epsilon: float, memory_efficient: bool = False,
) -> Tensor | None:  # fmt: skip
    """The gradient of the input."""
    more = [None, None], epsilon, memory_efficient
    return _backward(dout, invvar, input_or_output, normalized_shape, *more)[0]


@torch.no_grad()
def backward_affine(
    dout: Tensor, mean: Tensor | None, invvar: Tensor, input_or_output: Tensor,
    normalized_shape: Shape, gamma: Tensor, beta: Tensor, epsilon: float,
    memory_efficient: bool = False,
) -> list[Tensor | None]:  # fmt: skip
    """Gradients of input, gamma and beta."""
    more = [gamma, beta], epsilon, memory_efficient
    return _backward(dout, invvar, input_or_output, normalized_shape, *more)


@torch.no_grad()
def rms_backward(
    dout: Tensor, invvar: Tensor, input_or_output: Tensor, normalized_shape: Shape,
    epsilon: float, memory_efficient: bool = False,
) -> Tensor | None:  # fmt: skip
    """The gradient of the input."""
    more = [None], epsilon, memory_efficient
    return _backward(dout, invvar, input_or_output, normalized_shape, *more)[0]


@torch.no_grad()
def rms_backward_affine(
    dout: Tensor, invvar: Tensor, input_or_output: Tensor, normalized_shape: Shape, gamma: Tensor,
    epsilon: float, memory_efficient: bool = False,
) -> list[Tensor | None]:  # fmt: skip
    """Gradients of input and gamma."""
    more = [gamma], epsilon, memory_efficient
    return _backward(dout, invvar, input_or_output, normalized_shape, *more)
