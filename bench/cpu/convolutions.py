# SPDX-License-Identifier: Apache-2.0
"""Times conv_bias_act and its gradient against torch's operators on channels_last tensors, in one run.

    python bench/cpu/convolutions.py [--rounds 7] [--threads 1] [--dtypes float32,bfloat16]

The sizes are ResNet-50's. torch runs conv2d, scale, bias and relu, without a scale conv2d with bias
and relu in place; for the gradients what its autograd runs for these. Each result is compared
with torch first. One line of JSON for each case goes to bench/results/convolutions.jsonl.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import anyop
import torch
from harness import beside_torch, environment, write
from torch.nn import functional

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 5e-3}
SIZES = [  # N, H = W, C, K, window, stride, padding
    (8, 112, 3, 64, 7, 2, 3),
    (8, 56, 64, 64, 1, 1, 0),
    (8, 56, 64, 64, 3, 1, 1),
    (8, 56, 64, 256, 1, 1, 0),
    (8, 56, 128, 128, 3, 2, 1),
    (8, 28, 512, 128, 1, 1, 0),
    (8, 28, 128, 128, 3, 1, 1),
    (8, 14, 256, 256, 3, 1, 1),
    (8, 14, 1024, 2048, 1, 2, 0),
    (8, 7, 512, 512, 3, 1, 1),
    (1, 56, 64, 64, 3, 1, 1),
    (1, 200, 64, 64, 3, 1, 1),
    (1, 14, 256, 256, 3, 1, 1),
]
Case = tuple[str, str, Callable, Callable]  # what, sizes, ours, torch's


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtypes", default="float32,bfloat16")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    anyop.set_num_threads(options.threads)
    rows = []
    with torch.no_grad():
        for dtype in (getattr(torch, name) for name in options.dtypes.split(",")):
            for case in cases(dtype):
                rows.append(measure(case, dtype, options.rounds))
    where = environment(anyop, torch) | {"threads": options.threads}
    print("written to", write("convolutions", rows, where).name)


def cases(dtype: torch.dtype) -> Iterator[Case]:
    for N, H, C, K, R, stride, padding in SIZES:
        x, weight = torch.randn(N, H, H, C).to(dtype), torch.randn(K, R, R, C).to(dtype)
        scale, bias = torch.randn(K).to(dtype), torch.randn(K).to(dtype)
        images, windows = x.permute(0, 3, 1, 2), weight.permute(0, 3, 1, 2)
        rows = (scale.view(1, K, 1, 1), bias.view(1, K, 1, 1))
        size = f"N={N} H={H} C={C} K={K} R={R} stride={stride}"
        more = (None, None, stride, padding)

        def with_bias(x=images, w=windows, b=bias, s=stride, p=padding):
            return functional.conv2d(x, w, b, s, p).relu_()

        def with_scale(x=images, w=windows, r=rows, s=stride, p=padding):
            return functional.relu(functional.conv2d(x, w, None, s, p) * r[0] + r[1])

        def fused(scale, x=x, w=weight, b=bias, more=more):
            return lambda: anyop.conv_bias_act(x, w, scale, b, *more).permute(0, 3, 1, 2)

        yield "bias", size, fused(None), with_bias
        yield "scale, bias", size, fused(scale), with_scale
        out = with_bias().permute(0, 2, 3, 1)
        grad = torch.randn(out.shape).to(dtype)
        yield "gradients", size, *gradients(grad, x, weight, out, stride, padding)


def gradients(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, stride: int,
    padding: int,
) -> tuple[Callable, Callable]:  # fmt: skip
    """Of x and weight, behind a bias, which gets one too."""
    turned = [t.permute(0, 3, 1, 2) for t in (grad, x, weight, out)]
    sizes = [turned[0].shape[1]], [stride] * 2, [padding] * 2, [1, 1]

    def theirs():
        seen = torch.ops.aten.threshold_backward(turned[0], turned[3], 0)
        return torch.ops.aten.convolution_backward(
            seen, turned[1], turned[2], *sizes, False, [0, 0], 1, [True, True, True]
        )[1]

    def ours():
        return anyop.conv_bias_act_backward(
            grad, x, weight, None, out, stride, padding, grad_residual=False
        )[1].permute(0, 3, 1, 2)

    return ours, theirs


def measure(case: Case, dtype: torch.dtype, rounds: int) -> dict:
    what, sizes, ours, theirs = case
    limit = TOLERANCE[dtype] * theirs().double().abs().max().item()
    return {"what": what} | beside_torch(what, sizes, ours, theirs, limit, rounds)


if __name__ == "__main__":
    main()
