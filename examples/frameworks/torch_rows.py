# SPDX-License-Identifier: Apache-2.0
"""Two rows and what is added to them, normalised by one compiled kernel: PyTorch."""

import anyop
import torch

x = torch.arange(8.0).reshape(2, 4)
more = torch.full((2, 4), 0.5)
weight = torch.tensor([1.0, 1, 2, 2], requires_grad=True)

y = anyop.rms_norm(anyop.add(x, more), weight, eps=1e-6)
for row in y.tolist():
    print(*[f"{value:.4f}" for value in row])
