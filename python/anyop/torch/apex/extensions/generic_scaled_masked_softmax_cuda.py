# SPDX-License-Identifier: Apache-2.0
"""generic_scaled_masked_softmax_cuda: scaled_masked_softmax_cuda of any length, as that one is here."""

from anyop.torch.apex.extensions.scaled_masked_softmax_cuda import backward, forward

__all__ = ["backward", "forward"]
