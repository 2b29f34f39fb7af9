# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.xentropy.softmax_xentropy: cross entropy of rows of logits, a loss for each row."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

import anyop
from anyop.torch.apex.calls import applied, exporting
from anyop.torch.layers import rows_of


def _softmax_cross_entropy(
    logits: Tensor, labels: Tensor, smoothing: float = 0.0, padding_idx: int = 0,
    half_to_float: bool = False,
) -> Tensor:  # fmt: skip
    """Losses of rows (N, V), 0 where the label is padding_idx; in logits' dtype, or float32 by half_to_float."""
    if exporting():
        wide = logits.float() if half_to_float else logits
        return F.cross_entropy(
            wide, labels, ignore_index=padding_idx, reduction="none", label_smoothing=smoothing
        )
    loss, _ = anyop.cross_entropy(
        rows_of(logits), labels.contiguous(), ignore_index=padding_idx, label_smoothing=smoothing
    )
    return loss if half_to_float else loss.to(logits.dtype)


SoftmaxCrossEntropyLoss = applied("SoftmaxCrossEntropyLoss", _softmax_cross_entropy, __name__)
