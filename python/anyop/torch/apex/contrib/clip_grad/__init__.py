# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.clip_grad."""

from anyop.torch.apex.contrib.clip_grad.clip_grad import clip_grad_norm_

__all__ = ["clip_grad_norm_"]
