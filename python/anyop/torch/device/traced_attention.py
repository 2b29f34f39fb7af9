# SPDX-License-Identifier: Apache-2.0
"""scaled_dot_product_attention as graphs see it: the kernel that torch takes for such tensors of the inner device.

The C++ kernel of the device asks torch by the tensors' memory; those that are traced have none.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from anyop.torch.device.inner import inner_device

_aten = torch.ops.aten


def install() -> None:
    """Where torch's dispatcher asks Python's kernels, as it does while it traces, it takes this one."""
    kernel = _aten.scaled_dot_product_attention.default.py_impl
    kernel(torch._C.DispatchKey.AutogradPrivateUse1)(attention)
    kernel(torch._C.DispatchKey.PrivateUse1)(attention)


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Torch's operator, decomposed."""
    qkv, last = (query, key, value), (dropout_p, is_causal)
    kernel = _chosen(qkv, attn_mask, last, {"scale": scale, "enable_gqa": enable_gqa})
    mask = _as_numbers(attn_mask, query.dtype)
    if kernel is _aten._scaled_dot_product_flash_attention_for_cpu:
        return kernel(*qkv, *last, attn_mask=mask, scale=scale)[0]
    if kernel is _aten._scaled_dot_product_flash_attention:
        exact = query.shape[-1] ** -0.5 if scale is None else scale
        padded = [_pad_last(tensor, 8) for tensor in qkv]
        return kernel(*padded, *last, False, scale=exact)[0][..., : value.shape[-1]]
    needs_gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in qkv)
    if kernel is _aten._scaled_dot_product_efficient_attention:
        if mask is not None:
            mask = _expand(_pad_last(mask, 16)[..., : mask.shape[-1]], query, key)
        return kernel(*qkv, mask, needs_gradient, *last, scale=scale)[0]
    if kernel is _aten._scaled_dot_product_cudnn_attention:
        return kernel(*qkv, mask, needs_gradient, *last, False, scale=scale)[0]
    return _aten._scaled_dot_product_attention_math(
        *qkv, mask, *last, None, scale=scale, enable_gqa=enable_gqa
    )[0]


class _Seen(TorchDispatchMode):
    """Notes which operators run."""

    def __init__(self) -> None:
        super().__init__()
        self.packets: list[Any] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.packets.append(op.overloadpacket)
        return op(*args, **kwargs or {})


def _chosen(qkv: Any, mask: Any, last: tuple[float, bool], named: dict[str, Any]) -> Any:
    """The kernel that torch runs on such tensors of the inner device; None: it computes step by step."""
    from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

    with disable_proxy_modes_tracing(), _Seen() as seen:
        alike = [_like(tensor) for tensor in (*qkv, mask)]
        torch.nn.functional.scaled_dot_product_attention(*alike, *last, **named)
    names = (packet for packet in seen.packets if "_scaled_dot_product" in str(packet))
    return next(names, None)


def _like(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """One of the inner device; no memory where the tensor has none."""
    if tensor is None:
        return None
    made = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=inner_device(tensor.device)
    )
    return made.requires_grad_(tensor.requires_grad)


def _as_numbers(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """A mask of bool as what is added."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask.logical_not(), float("-inf"))


def _pad_last(tensor: torch.Tensor, multiple: int) -> torch.Tensor:
    rest = tensor.shape[-1] % multiple
    return torch.nn.functional.pad(tensor, (0, multiple - rest)) if rest else tensor


def _expand(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return mask.expand(*query.shape[:3], key.shape[2])
