# SPDX-License-Identifier: Apache-2.0
"""apex.multi_tensor_apply."""

from anyop.torch.apex.multi_tensor_apply.multi_tensor_apply import MultiTensorApply

__all__ = ["MultiTensorApply", "multi_tensor_applier"]

multi_tensor_applier = MultiTensorApply(2048 * 32)
