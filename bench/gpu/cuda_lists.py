# SPDX-License-Identifier: Apache-2.0
"""Times operators over lists of tensors on CUDA beside torch's foreach and fused kernels.

    python bench/gpu/cuda_lists.py [--rounds 30] [--only llama,small] [--cases adam,norm]

Each side is captured into a CUDA graph; all take turns behind a filled second cache. The share is that of the bytes
per second of a + b -> c, of the fewest bytes that must be moved. `host_us` is the least time until an eager call
returns. What a side computes is compared with torch first. One line of JSON for each side goes to
bench/results/cuda_lists.jsonl.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cuda_rows import FLUSH_BYTES, capture, ceiling, device, replay_in_turns
from harness import environment, write

try:
    import torch
except ImportError:
    torch = None

_ATTENTION = [(2048, 2048), (512, 2048), (512, 2048), (2048, 2048)]
LAYER = [*_ATTENTION, (8192, 2048), (8192, 2048), (2048, 8192), (2048,), (2048,)]
SHAPES = {"llama": [(128256, 2048), (2048,), *LAYER * 16], "small": [(16384,)] * 2000}
RATE, STEP = 1e-3, 7.0


def drawn(shapes: list, dtype: Any, seed: int) -> list:
    generator = torch.Generator("cuda").manual_seed(seed)
    make = (torch.randn(shape, generator=generator, device="cuda") for shape in shapes)
    return [(t / 16).to(dtype) for t in make]


def adam(shapes: list, dtype: Any) -> tuple[dict[str, Callable], Callable, int]:
    """Sides, what each has written, bytes."""
    import anyop

    numel = sum(torch.Size(shape).numel() for shape in shapes)
    own = {
        side: [drawn(shapes, dtype, 0), drawn(shapes, torch.float32, 2)]
        for side in ("anyop", "torch fused")
    }
    g, lr, step = (
        drawn(shapes, dtype, 1),
        torch.tensor(RATE, device="cuda"),
        torch.tensor(STEP, device="cuda"),
    )
    moments = {side: [[t.square() for t in lists[1]], lists[1]] for side, lists in own.items()}
    v, m = moments["anyop"]
    sides = {
        "anyop": lambda: anyop.multi_tensor_adam(
            own["anyop"][0], g, m, v, lr, step, weight_decay=0.01
        )
    }
    if dtype == torch.float32:
        steps = [step.clone() for _ in shapes]

        def theirs() -> None:
            squares, means = moments["torch fused"]
            torch._fused_adamw_(own["torch fused"][0], g, means, squares, [], steps, lr=lr, beta1=0.9, beta2=0.999,
                                weight_decay=0.01, eps=1e-8, amsgrad=False, maximize=False)  # fmt: skip

        sides["torch fused"] = theirs
    item = torch.empty(0, dtype=dtype).element_size()
    return sides, lambda side: own[side][0], numel * (3 * item + 16)


def step(shapes: list, dtype: Any) -> tuple[dict[str, Callable], Callable, int]:
    """Steps of whole optimizers."""
    from anyop.torch.optim import FusedAdamW

    lr, grads = torch.tensor(RATE, device="cuda"), [drawn(shapes, dtype, 1) for _ in range(2)]
    kinds = {"anyop": lambda p: FusedAdamW(p, lr=lr, state_dtype=torch.float32)}
    if dtype == torch.float32:
        kinds["torch fused"] = lambda p: torch.optim.AdamW(p, lr=lr, fused=True, capturable=True)
    own = {side: [torch.nn.Parameter(p) for p in drawn(shapes, dtype, 0)] for side in kinds}
    sides = {side: moving(kind(own[side]), own[side], grads) for side, kind in kinds.items()}
    item, numel = grads[0][0].element_size(), sum(p.numel() for p in own["anyop"])
    return sides, lambda side: own[side], numel * (3 * item + 16)


def moving(optimizer: Any, parameters: list, grads: list) -> Callable:
    """A step; what comes before each, untimed, gives the same gradients at another place."""

    def before() -> None:
        grads.reverse()
        for p, g in zip(parameters, grads[0]):
            p.grad = g

    def call() -> None:
        optimizer.step()

    before()
    call.before = before
    return call


def norm(shapes: list, dtype: Any) -> tuple[dict[str, Callable], Callable, int]:
    import anyop

    x, found = drawn(shapes, dtype, 0), {}
    sides = {
        "anyop": lambda: found.update({"anyop": [anyop.multi_tensor_l2norm(x, each=False)[0]]}),
        "torch": lambda: found.update(
            {"torch": [torch.nn.utils.get_total_norm(x, foreach=True).float()]}
        ),
    }
    return sides, lambda side: found[side], sum(t.numel() * t.element_size() for t in x)


def scale(shapes: list, dtype: Any) -> tuple[dict[str, Callable], Callable, int]:
    import anyop

    x, factor = drawn(shapes, dtype, 0), torch.tensor(0.5, device="cuda")
    outs = {"anyop": [torch.empty_like(t) for t in x]}
    sides = {
        "anyop": lambda: anyop.multi_tensor_scale(x, outs["anyop"], factor),
        "torch foreach": lambda: outs.update({"torch foreach": torch._foreach_mul(x, 0.5)}),
    }
    return sides, lambda side: outs[side], 2 * sum(t.numel() * t.element_size() for t in x)


def sgd(shapes: list, dtype: Any) -> tuple[dict[str, Callable], Callable, int]:
    import anyop

    own = {
        side: [drawn(shapes, dtype, 0), drawn(shapes, dtype, 2)]
        for side in ("anyop", "torch fused")
    }
    g, rate = drawn(shapes, dtype, 1), torch.tensor(RATE, device="cuda")
    (p, buffer), (q, other) = own.values()
    sides = {
        "anyop": lambda: anyop.multi_tensor_sgd(
            p, g, rate, buffer, momentum=0.9, weight_decay=0.01, nesterov=True
        ),
        "torch fused": lambda: torch._fused_sgd_(
            q, g, other, lr=rate, momentum=0.9, weight_decay=0.01, dampening=0.0, nesterov=True,
            maximize=False, is_first_step=False,
        ),
    }  # fmt: skip
    return sides, lambda side: own[side][0], 5 * sum(t.numel() * t.element_size() for t in p)


def adagrad(shapes: list, dtype: Any) -> tuple[dict[str, Callable], Callable, int]:
    """Beside torch's foreach kernels: its fused one is for the CPU."""
    import anyop
    from torch.optim import adagrad as functional

    g, rate = drawn(shapes, dtype, 1), torch.tensor(RATE, device="cuda")
    own = {
        side: [drawn(shapes, dtype, 0), [t.square() for t in drawn(shapes, dtype, 2)]]
        for side in ("anyop", "torch foreach")
    }
    (p, squares), (q, others) = own.values()
    steps = [torch.zeros(()) for _ in shapes]
    sides = {
        "anyop": lambda: anyop.multi_tensor_adagrad(p, g, squares, rate),
        "torch foreach": lambda: functional.adagrad(
            q, g, others, steps, foreach=True, lr=RATE, weight_decay=0.0, lr_decay=0.0, eps=1e-10,
            maximize=False,
        ),
    }  # fmt: skip
    return sides, lambda side: own[side][0], 5 * sum(t.numel() * t.element_size() for t in p)


def clip(shapes: list, dtype: Any) -> tuple[dict[str, Callable], Callable, int]:
    """The limit is halved before each of anyop's calls: each finds the norm too large. torch always multiplies."""
    import anyop

    own = {
        side: [torch.nn.Parameter(p) for p in drawn(shapes, dtype, 0)]
        for side in ("anyop", "torch")
    }
    for parameters in own.values():
        for p in parameters:
            p.grad = p.detach()
    g = [p.grad for p in own["anyop"]]
    most = float(torch.nn.utils.get_total_norm(g).float()) * (1 - 2**-6)
    limit = torch.tensor(2 * most, device="cuda")
    sides = {
        "anyop": lambda: anyop.multi_tensor_clip_grad_norm(g, limit.div_(2)),
        "torch": lambda: torch.nn.utils.clip_grad_norm_(own["torch"], most, foreach=True),
    }
    return sides, lambda side: own[side], 3 * sum(t.numel() * t.element_size() for t in g)


def average(shapes: list, dtype: Any) -> tuple[dict[str, Callable], Callable, int]:
    import anyop

    p, rate, number = (
        drawn(shapes, dtype, 0),
        torch.tensor(0.25, device="cuda"),
        torch.ones((), device="cuda"),
    )
    own = {side: drawn(shapes, dtype, 1) for side in ("anyop", "torch foreach")}
    sides = {
        "anyop": lambda: anyop.multi_tensor_average(p, own["anyop"], number, rate),
        "torch foreach": lambda: torch._foreach_lerp_(own["torch foreach"], p, 0.25),
    }
    return sides, lambda side: own[side], 3 * sum(t.numel() * t.element_size() for t in p)


def agrees(found: list, expected: list, dtype: Any) -> bool:
    limit = 1e-5 if dtype == torch.float32 else 1e-2
    pairs = zip(found, expected)
    return all(torch.allclose(a.float(), b.float(), rtol=limit, atol=limit) for a, b in pairs)


def host_us(call: Callable) -> float:
    best = float("inf")
    for _ in range(20):
        getattr(call, "before", lambda: None)()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - begin)
    return best * 1e6


def measure(make: Callable, name: str, dtype: Any, rounds: int, flush: Any, limit: float) -> list:
    sides, written, moved = make(SHAPES[name], dtype)
    for side in sides:
        sides[side]()
    results = {side: written(side) for side in sides}
    if not all(agrees(results["anyop"], other, dtype) for other in results.values()):
        print(f"WRONG: {make.__name__} {name} {dtype}")
        return []
    host = {side: host_us(call) for side, call in sides.items()}
    graphs = {side: capture(call)[0] for side, call in sides.items()}
    times = {n: statistics.median(us) for n, us in replay_in_turns(graphs, rounds, flush).items()}
    return [
        {"case": make.__name__, "shape": name, "dtype": str(dtype)[6:], "side": side, "median_us": round(us, 1),
         "share_of_ceiling": round(moved / us / limit, 3), "host_us": round(host[side], 1)}
        for side, us in times.items()
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--only", default=",".join(SHAPES))
    parser.add_argument("--cases", default="adam,step,sgd,adagrad,norm,scale,clip,average")
    options = parser.parse_args()
    if torch is None or not torch.cuda.is_available():
        print("skipped: there is no CUDA device that torch can use")
        return
    import anyop

    flush, rows = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda"), []
    limit = ceiling(options.rounds, flush)
    for name in options.only.split(","):
        for make in (globals()[case] for case in options.cases.split(",")):
            for dtype in (torch.float32, torch.bfloat16):
                for row in measure(make, name, dtype, options.rounds, flush, limit):
                    print(*row.values(), sep="  ", flush=True)
                    rows.append(row)
                torch.cuda.empty_cache()
    print("written to", write("cuda_lists", rows, environment(anyop, torch) | device()))


if __name__ == "__main__":
    main()
