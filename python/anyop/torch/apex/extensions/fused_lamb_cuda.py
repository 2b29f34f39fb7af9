# SPDX-License-Identifier: Apache-2.0
"""fused_lamb_cuda: the LAMB of Apex's older optimizer."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from anyop.torch.apex.extensions import amp_C


def lamb(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Sequence[Sequence[Tensor]], lr: float, beta1: float,
    beta2: float, epsilon: float, step: int, bias_correction: int, weight_decay: float, grad_averaging: int,
    mode: int, global_grad_norm: float | Tensor, max_grad_norm: float,
) -> None:  # fmt: skip
    """Lists g, p, m, v: amp_C.multi_tensor_lamb."""
    amp_C.multi_tensor_lamb(
        chunk_size, noop_flag, tensor_lists, lr, beta1, beta2, epsilon, step, bias_correction, weight_decay,
        grad_averaging, mode, global_grad_norm, max_grad_norm,
    )  # fmt: skip
