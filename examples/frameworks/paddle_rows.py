# SPDX-License-Identifier: Apache-2.0
"""Two rows and what is added to them, normalised by one compiled kernel: PaddlePaddle."""

import anyop
import paddle

x = paddle.arange(8, dtype="float32").reshape([2, 4])
more = paddle.full([2, 4], 0.5)
weight = paddle.to_tensor([1.0, 1, 2, 2], stop_gradient=False)

y = anyop.rms_norm(anyop.add(x, more), weight, eps=1e-6)
for row in y.tolist():
    print(*[f"{value:.4f}" for value in row])
