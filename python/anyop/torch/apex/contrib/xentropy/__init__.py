# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.xentropy."""

from anyop.torch.apex.contrib.xentropy.softmax_xentropy import SoftmaxCrossEntropyLoss

__all__ = ["SoftmaxCrossEntropyLoss"]
