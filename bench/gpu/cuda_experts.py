# SPDX-License-Identifier: Apache-2.0
"""Times a mixture of experts on CUDA, its routing, sorting and training step, beside torch, Liger and Triton.

    python bench/gpu/cuda_experts.py [--only fused_moe,moe_sort] [--rounds 15] [--tokens 1,16] [--sides anyop,torch]
    python bench/gpu/cuda_experts.py --check            # small sizes, results alone, also on the CPU

128 experts of 2048 by 768 features, 8 of which a token has, in bfloat16. Each side is captured into a CUDA graph, but
for Liger, which waits for the host; checked against float64 in its first tokens; and run twice for the same bits. Then
all sides take turns, each after 20 ms of idling with the second cache filled with other bytes. The share is that of the
bytes of the experts that have rows over the time without an empty kernel's. What fails is left out, and a line says so.
One line of JSON for each side goes to bench/results/cuda_experts.jsonl.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cuda_products import WRONG, is_right, paced_turns
from cuda_rows import FLUSH_BYTES, capture, ceiling, device
from harness import environment, write

try:
    import anyop
    import anyop.torch
    import torch
    from expert_peers import LIGER, by_steps, exactly, peers_of
except ImportError as missing:
    torch = None
    MISSING = missing

CHECKED_TOKENS = 16
SIZES = 128, 8, 2048, 768  # E, k, H, I
SMALL = 6, 2, 128, 128
FP8_SIZES = 256, 8, 7168, 2048
OPERATORS = ("fused_moe", "training", "fp8_block", "moe_route", "moe_sort")
# What is asked for: TFLOP/s, shares of the bytes' ceiling, milliseconds, microseconds above one empty kernel.
FIGURES = {
    ("fused_moe", 1): ("share", 0.60), ("fused_moe", 16): ("share", 0.80), ("fused_moe", 64): ("share", 0.85),
    ("fused_moe", 256): ("share", 0.85), ("fused_moe", 4096): ("tflops", 480), ("training", 4096): ("tflops", 400),
    ("training", 32768): ("tflops", 480), ("fp8_block", 128): ("us", 3300), ("fp8_block", 2048): ("us", 4200),
    ("moe_route", 64): ("above", 5), ("moe_sort", 64): ("above", 5), ("moe_route", 4096): ("above", 12),
    ("moe_sort", 4096): ("above", 12),
}  # fmt: skip


@dataclass
class Case:
    """`exact` gives the results of the first tokens in float64."""

    operator: str
    T: int
    shape: str
    dtype: str
    sides: dict[str, Callable]
    exact: Callable
    limit: float = 0.03  # of what an error has beyond rounding, over the root of the mean square
    flops: float = 0.0
    bytes: float = 0.0
    live: set[str] = field(default_factory=set)  # sides that no graph can hold


class Maker:
    def __init__(self, where: str, sizes: tuple[int, ...]):
        self.where, self.sizes = where, sizes
        # Triton's interpreter multiplies the bits of bfloat16 as if they were integers.
        self.dtype = torch.bfloat16 if where == "cuda" else torch.float16
        self.generator = torch.Generator(where).manual_seed(0)

    def normal(self, *shape: int) -> Any:
        return torch.randn(*shape, generator=self.generator, device=self.where)

    @functools.cached_property
    def weights(self) -> tuple[Any, Any]:
        E, _, H, I = self.sizes  # noqa: E741
        return self.per_expert(E, 2 * I, H, self.dtype), self.per_expert(E, H, I, self.dtype)

    def per_expert(self, E: int, n: int, k: int, dtype: Any, factor: float = 1.0) -> Any:
        """One expert at a time, so that float32 numbers of all need no room."""
        made = torch.empty(E, n, k, dtype=dtype, device=self.where)
        for e in range(E):
            made[e] = (self.normal(n, k) * (factor * k**-0.5)).to(dtype)
        return made

    def tokens(self, T: int) -> tuple[Any, Any, Any]:
        """x, weights, ids."""
        E, k, H, _ = self.sizes
        return self.normal(T, H).to(self.dtype), *anyop.moe_route(self.normal(T, E), top_k=k)

    def moved(self, ids: Any, x: Any, item: int) -> float:
        """Bytes of the experts that have rows, and of tokens."""
        _, _, H, I = self.sizes  # noqa: E741
        return len(ids.unique()) * 3 * H * I * item + 2 * x.numel() * 2 + ids.numel() * 8

    def shape(self, T: int) -> str:
        return f"T={T} E={self.sizes[0]} k={self.sizes[1]} H={self.sizes[2]} I={self.sizes[3]}"

    def fused_moe(self, T: int) -> Case:
        (x, weights, ids), (w13, w2) = self.tokens(T), self.weights
        E, k, H, I = self.sizes  # noqa: E741
        given, first = (x, w13, w2, weights, ids), slice(CHECKED_TOKENS)
        sides = {"anyop": anyop.fused_moe} | peers_of(T * k / E)
        return Case(
            "fused_moe", T, self.shape(T), str(self.dtype)[6:], {n: partial(c, *given) for n, c in sides.items()},
            partial(exactly, x[first], w13, w2, weights[first], ids[first]), flops=6.0 * T * k * H * I,
            bytes=self.moved(ids, x, 2), live={LIGER},
        )  # fmt: skip

    def training(self, T: int) -> Case:
        """Forward and all gradients; that of x is looked at."""
        (x, weights, ids), (w13, w2) = self.tokens(T), self.weights
        _, k, H, I = self.sizes  # noqa: E741
        grad_out, first = self.normal(T, H).to(self.dtype), slice(CHECKED_TOKENS)

        def step(forward: Callable, *given: Any, grad: Any = grad_out) -> Any:
            leaves = [tensor.detach().requires_grad_() for tensor in given[:4]]
            with torch.enable_grad():
                return torch.autograd.grad(forward(*leaves, given[4]), leaves, grad)[0]

        sides = {n: c for n, c in peers_of(1e9).items() if not n.startswith("triton")}
        sides["anyop by steps"] = by_steps
        if anyop.metadata("fused_moe")["backward"]:
            sides = {"anyop": anyop.fused_moe} | sides
        given = x, w13, w2, weights, ids
        of_first = x[first], w13, w2, weights[first], ids[first]
        return Case(
            "training", T, self.shape(T), str(self.dtype)[6:],
            {name: partial(step, call, *given) for name, call in sides.items()},
            partial(exact_gradient, *of_first, grad_out[first]), limit=0.06, flops=18.0 * T * k * H * I,
            bytes=3 * self.moved(ids, x, 2), live={LIGER},
        )  # fmt: skip

    def fp8_block(self, T: int) -> Case:
        """DeepSeek-V3's sizes: weights in blocks of 128 by 128, tokens quantised on the way."""
        x, weights, ids = self.tokens(T)
        _, k, H, I = self.sizes  # noqa: E741
        w13, w2, scales = *self.fp8_weights, self.fp8_scales
        first = slice(min(2, T))

        def exact() -> Any:
            used = ids[first].unique()
            wide = [
                w[used].double() * s[used].double().repeat_interleave(128, 1).repeat_interleave(128, 2)
                for w, s in zip((w13, w2), scales)
            ]  # fmt: skip
            return exactly(
                x[first], *wide, weights[first], torch.searchsorted(used, ids[first]).int()
            )

        call = partial(anyop.fused_moe_fp8_block, x, w13, w2, *scales, weights, ids)
        # Tokens and hidden features have 3 bits behind the point: errors of 2^-4 at most, 2.6 % in the mean, twice.
        return Case(
            "fp8_block", T, self.shape(T), "float8_e4m3fn", {"anyop": call}, exact, limit=0.25,
            flops=6.0 * T * k * H * I, bytes=self.moved(ids, x, 1),
        )  # fmt: skip

    @functools.cached_property
    def fp8_weights(self) -> tuple[Any, Any]:
        E, _, H, I = self.sizes  # noqa: E741
        fp8 = torch.float8_e4m3fn
        return self.per_expert(E, 2 * I, H, fp8, 64.0), self.per_expert(E, H, I, fp8, 64.0)

    @functools.cached_property
    def fp8_scales(self) -> tuple[Any, Any]:
        return tuple(
            (self.normal(len(w), w.shape[1] // 128, w.shape[2] // 128).abs() + 0.5) / 64
            for w in self.fp8_weights
        )

    def moe_route(self, T: int) -> Case:
        E, k, *_ = self.sizes
        logits = self.normal(T, E)

        def theirs() -> Any:
            best = torch.topk(logits.softmax(-1), k).values
            return best / best.sum(-1, keepdim=True)

        return Case(
            "moe_route", T, f"T={T} E={E} k={k}", "float32",
            {"anyop": lambda: anyop.moe_route(logits, top_k=k)[0], "torch": theirs},
            lambda: torch.topk(logits.double(), k).values.softmax(-1), limit=1e-5,
        )  # fmt: skip

    def moe_sort(self, T: int) -> Case:
        E, k, *_ = self.sizes
        ids = self.tokens(T)[2]
        experts = torch.arange(E, dtype=torch.int32, device=self.where)

        def theirs() -> Any:
            sorted_ids, order = ids.flatten().sort(stable=True)
            torch.searchsorted(sorted_ids, experts, right=True, out_int32=True)
            return order

        return Case(
            "moe_sort", T, f"T={T} E={E} k={k}", "int32",
            {
                "anyop": lambda: anyop.moe_sort(ids, experts=E)[0], "torch": theirs,
                "anyop moe_align": lambda: anyop.moe_align(ids, E, 1)[0],
            },
            lambda: ids.flatten().sort(stable=True).indices.double(), limit=0.0,
        )  # fmt: skip


def exact_gradient(x: Any, w13: Any, w2: Any, weights: Any, ids: Any, grad: Any) -> Any:
    wide = x.double().requires_grad_()
    with torch.enable_grad():
        out = exactly(wide, w13, w2, weights, ids)
    return torch.autograd.grad(out, wide, grad.double())[0]


class Live:
    """A call as a graph of itself."""

    def __init__(self, call: Callable):
        self.replay = call


def cases(options: argparse.Namespace, where: str) -> Iterator[Callable[[], Case]]:
    """Each makes one case when called, so that one that fails is left out alone."""
    small = options.check
    plain = Maker(where, SMALL if small else SIZES)
    tokens = [int(T) for T in options.tokens.split(",")]
    counts = {
        "fused_moe": tokens, "training": [4096, 32768], "fp8_block": [128, 2048],
        "moe_route": [64, 4096], "moe_sort": [64, 4096],
    }  # fmt: skip
    for name in options.only.split(","):
        made = plain
        if name == "fp8_block":
            if not hasattr(anyop, "fused_moe_fp8_block"):
                print("left out: fp8_block: no such operator", flush=True)
                continue
            plain.__dict__.pop("weights", None)
            made = Maker(where, SMALL if small else FP8_SIZES)
        for T in [1, 9] if small else counts[name]:
            yield partial(getattr(made, name), T)


def measure(
    case: Case, options: argparse.Namespace, flush: Any, limit: float, idle_us: float
) -> Iterator[dict]:
    case.exact = functools.cache(case.exact)
    replays = {}
    wanted = tuple(options.sides.split(","))
    for side, call in case.sides.items():
        if not side.startswith(wanted):
            continue
        try:
            if side in case.live:
                call()
                first, out, replay = call().clone(), call(), Live(call)
            else:
                replay, out = capture(call)
                replay.replay()
                first = out.clone()
                replay.replay()
            if is_same(case, side, first, out):
                replays[side] = replay
        except Exception as error:
            leave_out(case.operator, case.shape, side, error)
    times = paced_turns(replays, options.rounds, flush)
    best = min((t for side, t in times.items() if not side.startswith("anyop")), default=None)
    for side, median in times.items():
        above = max(median - idle_us, 0.01)
        yield {
            "case": case.operator, "shape": case.shape, "dtype": case.dtype, "side": side,
            "median_us": round(median, 2), "above_idle_us": round(above, 2),
            "tflops": round(case.flops / median / 1e6, 1),
            "share_of_ceiling": round(case.bytes / above / limit, 3),
            "of_best_peer": round(best / median, 3) if best else None,
        }  # fmt: skip


def is_same(case: Case, side: str, first: Any, again: Any) -> bool:
    """is_right; orders are those of torch's sort to the last."""
    if case.limit == 0 and not torch.equal(first.double(), case.exact()):
        WRONG.append(f"{case.operator} {case.shape} by {side}: another order")
        print("WRONG:", WRONG[-1], flush=True)
        return False
    return is_right(case, side, first, again)


def leave_out(operator: str, shape: str, side: str, error: Exception) -> None:
    text = (str(error).strip().split("\n") or [""])[0][:160]
    line = f"{operator} {shape} by {side}: {type(error).__name__}: {text}"
    print("left out:", line, flush=True)
    if side == "anyop":
        WRONG.append(line)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def show(row: dict, T: int) -> None:
    kind, figure = FIGURES.get((row["case"], T), ("", 0))
    found = {
        "share": row["share_of_ceiling"], "tflops": row["tflops"], "us": row["median_us"],
        "above": row["above_idle_us"],
    }.get(kind)  # fmt: skip
    verdict = ""
    if found is not None and row["side"] == "anyop":
        met = found >= figure if kind in ("share", "tflops") else found <= figure
        verdict = f"  met {kind} {figure}" if met else f"  MISSED {kind} {figure}"
    beside = f"{row['of_best_peer']:8.3f}" if row["of_best_peer"] else " " * 8
    print(
        f"{row['case']:10}{row['shape']:>36} {row['side']:20}{row['median_us']:10.2f} us"
        f"{row['above_idle_us']:10.2f}{row['tflops']:7.0f} TF{row['share_of_ceiling']:8.1%}{beside}{verdict}",
        flush=True,
    )


def check_all(options: argparse.Namespace) -> str | None:
    """Results of small calls, on whatever is here."""
    where = "cuda" if torch.cuda.is_available() else "cpu"
    for make in cases(options, where):
        case = make()
        for side, call in case.sides.items():
            try:
                right = is_same(case, side, call(), call())
            except Exception as error:
                leave_out(case.operator, case.shape, side, error)
            else:
                print("right:" if right else "wrong:", case.operator, case.shape, side, flush=True)
    return "; ".join(WRONG) or None


def main() -> str | None:
    """What was wrong, if something was."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default=",".join(OPERATORS), metavar="OP,OP")
    parser.add_argument("--tokens", default="1,16,64,256,4096", help="of fused_moe")
    parser.add_argument(
        "--sides", default="anyop,torch,liger,triton", help="beginnings of their names"
    )
    parser.add_argument("--check", action="store_true", help="results of small calls alone")
    parser.add_argument("--dry", action="store_true", help="write no results")
    options = parser.parse_args()
    if unknown := set(options.only.split(",")) - set(OPERATORS):
        parser.error(
            f"--only: {', '.join(sorted(unknown))}, expected some of {', '.join(OPERATORS)}"
        )
    if torch is None:
        print(f"skipped: {MISSING}")
        return None
    with torch.no_grad():
        if options.check:
            return check_all(options)
        if not torch.cuda.is_available():
            print("skipped: there is no CUDA device that torch can use")
            return None
        flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
        limit, one = ceiling(options.rounds, flush), torch.zeros(1, device="cuda")
        idle_us = paced_turns({"": capture(lambda: one.add_(0))[0]}, options.rounds, flush)[""]
        print(f"ceiling {limit / 1e3:.0f} GB/s, a kernel of one element {idle_us:.2f} us")
        rows = []
        for make in cases(options, "cuda"):
            try:
                case = make()
            except Exception as error:
                leave_out(make.func.__name__, f"T={make.args[0]}", "anyop", error)
                continue
            for row in measure(case, options, flush, limit, idle_us):
                show(row, case.T)
                rows.append(row | {"ceiling_gb_per_s": round(limit / 1e3)})
            del case
            torch.cuda.empty_cache()
    where = environment(anyop, torch) | device() | {"idle_us": round(idle_us, 2)}
    if not options.dry:
        print("written to", write("cuda_experts", rows, where))
    return "; ".join(WRONG) or None


if __name__ == "__main__":
    sys.exit(main())
