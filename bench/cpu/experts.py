# SPDX-License-Identifier: Apache-2.0
"""Times fused_moe on the CPU against a loop over experts in torch and its _grouped_mm, in one run.

    python bench/cpu/experts.py [--training] [--rounds 7] [--threads 1] [--dtypes float32,bfloat16] [--dry]

With --training a time is that of the call and of its gradients of x, both weights and the routing's. The loop is that
of Hugging Face's models; before _grouped_mm slots are sorted, its results are
added by index_add_. Each result is compared with torch first. One line of JSON for each case goes
to bench/results/experts.jsonl.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import anyop
import anyop.torch
import torch
from harness import beside_torch, environment, write
from torch.nn.functional import linear, silu

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2}  # of the greatest result
SIZES = [  # T, E, k, H, I
    (1, 8, 2, 1024, 1024),
    (16, 8, 2, 1024, 1024),
    (256, 8, 2, 1024, 1024),
    (16, 64, 8, 512, 256),
    (256, 64, 8, 512, 256),
]


def loop(x, w13, w2, weights, ids):
    out = torch.zeros_like(x)
    for e in ids.unique():
        tokens, at = torch.where(ids == e)
        gate, up = linear(x[tokens], w13[e]).chunk(2, -1)
        y = linear(silu(gate) * up, w2[e]) * weights[tokens, at, None].to(x.dtype)
        out.index_add_(0, tokens, y)
    return out


def grouped_mm(x, w13, w2, weights, ids):
    order = ids.flatten().argsort(stable=True)
    tokens, ends = order // ids.shape[1], ids.flatten().bincount(minlength=len(w13))
    ends = ends.cumsum(0, dtype=torch.int32)
    gate, up = torch._grouped_mm(x[tokens], w13.transpose(1, 2), ends).chunk(2, -1)
    y = torch._grouped_mm(silu(gate) * up, w2.transpose(1, 2), ends)
    y = y * weights.flatten()[order, None].to(x.dtype)
    return torch.zeros_like(x).index_add_(0, tokens, y)


def training(function: Callable[..., Any], given: tuple, grad: Any) -> Callable[[], Any]:
    """Gives the gradient of x; those of w13, w2 and weights are computed, too."""

    def call() -> Any:
        learnt = [t.detach().requires_grad_() for t in given[:4]]
        with torch.enable_grad():
            return torch.autograd.grad(function(*learnt, given[4]), learnt, grad)[0]

    return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--training", action="store_true", help="with gradients")
    parser.add_argument("--dry", action="store_true", help="write no results")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    anyop.set_num_threads(options.threads)
    torch.manual_seed(0)
    rows = []
    with torch.no_grad():
        for dtype in (getattr(torch, name) for name in options.dtypes.split(",")):
            for sizes in SIZES:
                rows += measure(sizes, dtype, options)
    where = environment(anyop, torch) | {"threads": options.threads}
    if not options.dry:
        print("written to", write("experts", rows, where).name)


def measure(sizes: tuple, dtype: torch.dtype, options: argparse.Namespace) -> list[dict]:
    T, E, k, H, I = sizes  # noqa: E741
    x = torch.randn(T, H).to(dtype)
    w13, w2 = (torch.randn(E, 2 * I, H) / H**0.5).to(dtype), torch.randn(E, H, I).to(dtype)
    weights, ids = anyop.moe_route(torch.randn(T, E), top_k=k)
    given, rows = (x, w13, w2, weights, ids), []
    functions = [torch.ops.anyop.fused_moe, loop, grouped_mm]
    grad = torch.randn(T, H).to(dtype)
    for theirs in functions[1:]:
        ours, other = (
            training(f, given, grad) if options.training else lambda f=f: f(*given)
            for f in (functions[0], theirs)
        )
        try:
            expected = other()
        except (AttributeError, RuntimeError) as error:
            print(f"torch's {theirs.__name__} does not run: {str(error).splitlines()[0]}")
            continue
        limit = TOLERANCE[dtype] * expected.double().abs().max().item()
        name = f"T={T} E={E} k={k} H={H} I={I}"
        what = theirs.__name__ + (", training" if options.training else "")
        rows.append({"what": what} | beside_torch(what, name, ours, other, limit, options.rounds))
    return rows


if __name__ == "__main__":
    main()
