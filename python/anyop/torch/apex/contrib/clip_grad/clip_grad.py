# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.clip_grad.clip_grad: gradients are clipped where they lie, without waiting."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

import anyop

_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


@torch.no_grad()
def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> Tensor:
    """Multiply all gradients by max_norm / their norm, where that is below 1. Returns the norm, on the first's device.

    Other norms than the Euclidean, sparse and complex gradients are torch's; error_if_nonfinite waits.
    Raises  RuntimeError where the norm is not finite and error_if_nonfinite.
    """
    parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    grads = [p.grad for p in parameters if p.grad is not None]
    if not grads:
        return torch.tensor(0.0)
    plain = all(g.layout is torch.strided and g.dtype in _DTYPES for g in grads)
    if norm_type != 2 or not plain:
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite)
    lists: dict[torch.device, list[Tensor]] = {}
    for g in grads:
        lists.setdefault(g.device, []).append(g)
    first = grads[0].device
    norms = [anyop.multi_tensor_l2norm(x, each=False)[0].reshape(()) for x in lists.values()]
    total = norms[0] if len(norms) == 1 else torch.stack([n.to(first) for n in norms]).norm()
    if error_if_nonfinite and not total.isfinite():
        raise RuntimeError(
            f"The total norm of order {float(norm_type)} for gradients from `parameters` is non-finite, so it cannot "
            "be clipped. To disable this error and scale the gradients by the non-finite norm anyway, set "
            "`error_if_nonfinite=False`"
        )
    factor = (max_norm / (total + 1e-6)).clamp(max=1.0).float()
    for device, x in lists.items():
        anyop.multi_tensor_scale(x, x, factor.to(device))
    return total
