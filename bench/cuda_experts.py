# SPDX-License-Identifier: Apache-2.0
"""Times experts on CUDA: fused_moe, with its gradient, with weights of 8 bits, beside a sort and torch's _grouped_mm.

    python bench/cuda_experts.py [--only forward,training,blocks,channels,routing] [--rounds 15]

Each side is captured into a CUDA graph and its first tokens are compared with float64; then sides take turns as in
bench/cuda_products.py. Bytes are those of x, the result and the weights of experts that have rows. One line of JSON
for each side goes to bench/results/cuda_experts.jsonl.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from cuda_products import paced_turns
from cuda_rows import FLUSH_BYTES, SHORT_US, capture, ceiling, device
from harness import environment, write
from torch.nn.functional import silu

FORWARD = [(T, 128, 8, 2048, 768) for T in (1, 16, 64, 256, 4096)]  # T, E, k, H, I
TRAINING = [(T, 128, 8, 2048, 768) for T in (4096, 32768)]
BLOCKS = [(T, 256, 8, 7168, 2048) for T in (128, 2048)]
ROUTING = [(64, 128, 8), (4096, 128, 8)]
CHECKED = 4  # tokens
# Of an error, in a share of the results' root mean square: bfloat16's roundings, those of 8 bits before two products.
LIMIT, LIMIT_8 = 0.05, 0.4


@dataclass
class Case:
    what: str
    shape: str
    sides: dict[str, Callable]  # each gives a tensor whose first rows are those of exact
    exact: torch.Tensor
    limit: float
    flops: float
    bytes: float


def normal(*shape: int, dtype: Any = torch.bfloat16) -> torch.Tensor:
    """Large ones expert by expert: float32 of all would not fit."""
    if len(shape) < 3:
        return torch.randn(*shape, device="cuda").to(dtype)
    return torch.stack(
        [normal(*shape[1:], dtype=torch.bfloat16).to(dtype) for _ in range(shape[0])]
    )


def grouped(x: Any, w13: Any, w2: Any, weights: Any, ids: Any) -> torch.Tensor:
    """Without waiting: torch's sort, its two grouped products, and the sum by index_add."""
    E = torch.arange(len(w13), device=x.device)
    experts, order = ids.flatten().sort(stable=True)
    ends = torch.searchsorted(experts, E, right=True).int()
    tokens = order // ids.shape[1]
    gate, up = torch._grouped_mm(x[tokens], w13.transpose(1, 2), offs=ends).chunk(2, -1)
    y = torch._grouped_mm(silu(gate) * up, w2.transpose(1, 2), offs=ends)
    y = y * weights.flatten()[order, None].to(x.dtype)
    return torch.zeros_like(x).index_add(0, tokens, y)


def token_by_token(x: Any, w13: Any, w2: Any, weights: Any, ids: Any) -> torch.Tensor:
    """Of x in float64; w13(e) and w2(e) give an expert's weights in it."""
    rows = []
    for token, of, experts in zip(x, weights.double(), ids.tolist(), strict=True):
        parts = []
        for e, weight in zip(experts, of, strict=True):
            gate, up = (w13(e) @ token).chunk(2)
            parts.append(weight * (w2(e) @ (silu(gate) * up)))
        rows.append(torch.stack(parts).sum(0))
    return torch.stack(rows)


class Maker:
    def __init__(self, anyop: Any):
        self.anyop = anyop

    def layer(self, T: int, E: int, k: int, H: int, I: int, dtype: Any = torch.bfloat16) -> tuple:  # noqa: E741
        x, w13, w2 = normal(T, H), normal(E, 2 * I, H, dtype=dtype), normal(E, H, I, dtype=dtype)
        weights, ids = self.anyop.moe_route(torch.randn(T, E, device="cuda"), top_k=k)
        return x, w13, w2, weights, ids

    def case(self, what: str, call: tuple, exact: Any, limit: float, **sides: Callable) -> Case:
        x, w13, w2, _, ids = call
        (T, H), (E, width, _), k = x.shape, w13.shape, ids.shape[1]
        read = (w13[0].nbytes + w2[0].nbytes) * len(ids.unique()) + 2 * x.nbytes
        shape = f"T{T} E{E} k{k} H{H} I{width // 2}"
        return Case(what, shape, sides, exact, limit, 3.0 * T * k * H * width, read)

    def forward(self) -> Iterator[Case]:
        for sizes in FORWARD:
            call = self.layer(*sizes)
            call = (call[0], call[1] * call[0].shape[1] ** -0.5, *call[2:])
            yield self.case("forward", call, exactly(*call), LIMIT,
                            anyop=partial(self.anyop.fused_moe, *call), torch=partial(grouped, *call))  # fmt: skip

    def training(self) -> Iterator[Case]:
        """Forward and all gradients; grad_x is looked at."""
        for sizes in TRAINING:
            x, w13, w2, weights, ids = self.layer(*sizes)
            w13 *= x.shape[1] ** -0.5
            grad = normal(*x.shape)

            def ours(call=(x, w13, w2, weights, ids), grad=grad):
                _, *kept = self.anyop.native_fused_moe(*call)
                backward: Any = self.anyop.fused_moe_backward
                return backward(grad, *call[:4], *kept, grad_bias13=False, grad_bias2=False)[0]

            def theirs(call=(x, w13, w2, weights, ids), grad=grad):
                learnt = [t.detach().requires_grad_() for t in call[:4]]
                return torch.autograd.grad(grouped(*learnt, call[4]), learnt, grad)[0]

            first = x[:CHECKED].double().requires_grad_()
            out = exactly(first, w13, w2, weights, ids)
            (exact,) = torch.autograd.grad(out, first, grad[:CHECKED].double())
            case = self.case("training", (x, w13, w2, weights, ids), exact, LIMIT,
                             anyop=ours, torch=theirs)  # fmt: skip
            case.flops *= 3
            yield case

    def blocks(self) -> Iterator[Case]:
        for sizes in BLOCKS:
            call = self.layer(*sizes, dtype=torch.float8_e4m3fn)
            (E, width, H), inner = call[1].shape, call[2].shape[2]
            s13 = torch.full((E, width // 128, H // 128), H**-0.5, device="cuda")
            s2 = torch.full((E, H // 128, inner // 128), inner**-0.5, device="cuda")
            ours = partial(self.anyop.fused_moe_fp8_block, *call[:3], s13, s2, *call[3:])
            exact = scaled_exactly(*call, H**-0.5, inner**-0.5)
            yield self.case("blocks", call, exact, LIMIT_8, anyop=ours)

    def channels(self) -> Iterator[Case]:
        """int8 and e4m3, the largest of the forward sizes."""
        for dtype in (torch.int8, torch.float8_e4m3fn):
            call = self.layer(*FORWARD[-1], dtype=torch.bfloat16)
            factor = 40.0 if dtype == torch.int8 else 1.0
            w13, w2 = ((w * factor).clamp(-127, 127).to(dtype) for w in call[1:3])
            (E, width, H), inner = w13.shape, w2.shape[2]
            s13, s2 = H**-0.5 / factor, inner**-0.5 / factor
            scales = (
                torch.full((E, width), s13, device="cuda"),
                torch.full((E, H), s2, device="cuda"),
            )
            ours = partial(self.anyop.fused_moe_w8a8, call[0], w13, w2, *scales, *call[3:])
            made = (call[0], w13, w2, *call[3:])
            case = self.case("channels", made, scaled_exactly(*made, s13, s2), LIMIT_8, anyop=ours)
            case.shape += f" {str(dtype)[6:]}"
            yield case

    def routing(self) -> Iterator[Case]:
        """moe_route and moe_sort; the weights are looked at."""
        for T, E, k in ROUTING:
            logits = torch.randn(T, E, device="cuda")

            def ours(logits=logits, E=E, k=k):
                weights, ids = self.anyop.moe_route(logits, top_k=k)
                self.anyop.moe_sort(ids, E)
                return weights

            def theirs(logits=logits, E=E, k=k):
                weights, ids = logits.softmax(-1).topk(k)
                experts, _ = ids.flatten().sort(stable=True)
                torch.searchsorted(experts, torch.arange(E, device="cuda"), right=True)
                return weights / weights.sum(-1, keepdim=True)

            exact = logits.double().topk(k)[0].softmax(-1)
            yield Case("routing", f"T{T} E{E} k{k}", {"anyop": ours, "torch": theirs}, exact,
                       1e-4, 0, logits.nbytes)  # fmt: skip


def exactly(x: Any, w13: Any, w2: Any, weights: Any, ids: Any) -> torch.Tensor:
    first = x[:CHECKED].double()
    return token_by_token(first, lambda e: w13[e].double(), lambda e: w2[e].double(),
                          weights[:CHECKED], ids[:CHECKED])  # fmt: skip


def scaled_exactly(x: Any, w13: Any, w2: Any, weights: Any, ids: Any, s13: float, s2: float) -> Any:
    first = x[:CHECKED].double()
    return token_by_token(first, lambda e: w13[e].double() * s13, lambda e: w2[e].double() * s2,
                          weights[:CHECKED], ids[:CHECKED])  # fmt: skip


def captured(case: Case, wrong: list[str]) -> dict[str, Any]:
    """A graph of each side that is right; anyop's gives the same bits twice."""
    graphs = {}
    for side, call in case.sides.items():
        try:
            graph, out = capture(call)
        except RuntimeError as error:
            if side == "anyop":
                raise
            print(f"left out: {case.what} {case.shape} by {side}: {str(error).splitlines()[0]}")
            continue
        graph.replay()
        first = out.clone()
        graph.replay()
        error = (first[: len(case.exact)].double() - case.exact).abs().max()
        share = (error / case.exact.square().mean().sqrt()).item()
        if share <= case.limit and (side != "anyop" or torch.equal(first, out)):
            graphs[side] = graph
            continue
        wrong.append(f"{case.what} {case.shape} by {side}: error {share:.1e}, or other bits")
        print("WRONG:", wrong[-1], flush=True)
    return graphs


def main() -> str | None:
    """What was wrong, if something was."""
    names = ["forward", "training", "blocks", "channels", "routing"]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(names), metavar="CASE,CASE")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("skipped: there is no CUDA device that torch can use")
        return None
    import anyop
    import anyop.torch

    torch.manual_seed(0)
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    limit, one = ceiling(options.rounds, flush), torch.zeros(1, device="cuda")
    idle_us = paced_turns({"": capture(lambda: one.add_(0))[0]}, options.rounds, flush)[""]
    print(f"ceiling {limit / 1e3:.0f} GB/s, a kernel of one element {idle_us:.2f} us")
    rows, wrong = [], []
    for name in options.only.split(","):
        for case in getattr(Maker(anyop), name)():
            times = paced_turns(captured(case, wrong), options.rounds, flush)
            for side, median in times.items():
                busy = max(median - idle_us, 1e-3) if median < SHORT_US else median
                row = {"case": case.what, "shape": case.shape, "side": side,
                       "median_us": round(median, 2), "tflops": round(case.flops / median / 1e6, 1),
                       "share_of_ceiling": round(case.bytes / busy / limit, 3)}  # fmt: skip
                print(f"{case.what:10}{case.shape:42}{side:8}{median:12.2f} us {row['tflops']:7.1f} TF"
                      f"{row['share_of_ceiling']:9.1%}", flush=True)  # fmt: skip
                rows.append(row | {"ceiling_gb_per_s": round(limit / 1e3)})
    where = environment(anyop, torch) | device() | {"idle_us": round(idle_us, 2)}
    print("written to", write("cuda_experts", rows, where))
    return "; ".join(wrong) or None


if __name__ == "__main__":
    sys.exit(main())
