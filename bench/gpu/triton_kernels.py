# SPDX-License-Identifier: Apache-2.0
"""Times backends of an operator in one run: anyop's Triton kernels, its CUDA kernels where there are, torch's (aten).

    python bench/gpu/triton_kernels.py [--rounds 40] [--only rms_norm,add] [--shapes 8192x8192,64x8192]

Device time as in cuda_rows.py: each side is a CUDA graph, checked against float64, replayed in turns with a cold
second cache; the share is of what a + b -> c reaches in the same run. Then the time that the host takes for a call, on
64 x 256. One line of JSON for each side goes to bench/results/triton_kernels.jsonl.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import anyop
from cuda_rows import (
    EPS,
    FLUSH_BYTES,
    LIMITS,
    Case,
    ceiling,
    device,
    double_backward,
    measure,
    rms,
    show,
    torch,
)
from harness import environment, spread, take_turns, write

SHAPES = "8192x8192,16384x4096,64x8192"


def sides(operator: str, call: Callable) -> dict[str, Callable]:
    """The call on each backend that computes it on a CUDA device."""
    kernels = anyop.metadata(operator)["kernels"]
    backends = [k["backend"] for k in kernels if k["device"] in ("cuda", "any")]

    def on(backend: str) -> Callable:
        def run():
            with anyop.use(backend):
                return call()

        return run

    return {name: on(name) for name in ("cuda", "triton", "aten") if name in backends}


def cases(rows: int, D: int, dtype: torch.dtype):
    """Those of Triton's kernels; a float64 result lies beside others of its size, so it is made in parts."""
    generator = torch.Generator("cuda").manual_seed(0)

    def random(*shape):
        return torch.randn(*shape, generator=generator, device="cuda").to(dtype)

    def exact(function, *wide):
        return lambda: (
            torch.cat(
                [
                    function(*(v.double() for v in part)).float()
                    for part in zip(*(v.split(512) for v in wide))
                ]
            ),
        )

    x, grad, weight, bias = random(rows, D), random(rows, D), random(D), random(D)
    out, half = torch.empty_like(x), torch.empty(rows, D // 2, dtype=dtype, device="cuda")
    grad_weight = torch.empty_like(weight)
    F, W, B = torch.nn.functional, weight.double(), bias.double()
    table = [
        ("rms_norm", 2, lambda: anyop.rms_norm(x, weight, EPS, out=out), exact(lambda v: rms(v, W), x)),
        ("layer_norm", 2, lambda: anyop.layer_norm(x, weight, bias, out=out),
         exact(lambda v: F.layer_norm(v, (D,), W, B, 1e-5), x)),
        ("softmax", 2, lambda: anyop.softmax(x, out=out), exact(lambda v: v.softmax(-1), x)),
        ("silu", 2, lambda: anyop.silu(x, out=out), exact(F.silu, x)),
        ("gelu", 2, lambda: anyop.gelu(x, out=out), exact(F.gelu, x)),
        ("silu_and_mul", 1.5, lambda: anyop.silu_and_mul(x, out=half),
         exact(lambda v: F.silu(v[:, : D // 2]) * v[:, D // 2 :], x)),
        ("add", 3, lambda: anyop.add(x, grad, out=out), exact(torch.add, x, grad)),
        ("rms_norm_backward", 3,
         lambda: anyop.rms_norm_backward(grad, x, weight, EPS, grad_x=out, grad_weight=grad_weight),
         lambda: double_backward(grad, x, weight)),
    ]  # fmt: skip
    for operator, tensors, call, exactly in table:
        yield Case(operator, exactly, sides(operator, call), tensors)


def host_times(rounds: int):
    """Microseconds until a call returns; the device is waited for between sides."""
    x = torch.randn(64, 256, device="cuda")
    weight, out = torch.ones(256, device="cuda"), torch.empty_like(x)
    found = sides("rms_norm", lambda: anyop.rms_norm(x, weight, EPS, out=out))
    found["torch"] = lambda: torch.nn.functional.rms_norm(x, (256,), weight, EPS)
    for side, times in take_turns(found, rounds, calls=50, pause_s=0.01).items():
        yield {"case": "host time of rms_norm", "side": side, **spread(times)}


def main() -> None:
    """Runs all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--only", default="", metavar="OP,OP", help="default: all operators")
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--dtype", default="bfloat16", choices=LIMITS)
    options = parser.parse_args()
    if torch is None or not torch.cuda.is_available():
        print("skipped: there is no CUDA device that torch can use")
        return
    import triton

    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    limit = ceiling(options.rounds, flush)
    print(f"ceiling {limit / 1e3:.0f} GB/s")
    only, results = set(filter(None, options.only.split(","))), []
    with torch.no_grad():
        for rows, D in (map(int, shape.split("x")) for shape in options.shapes.split(",")):
            for case in cases(rows, D, getattr(torch, options.dtype)):
                if only and case.operator not in only:
                    continue
                for row in measure(case, rows, D, options.dtype, options.rounds, flush, limit):
                    show(row)
                    results.append(row | {"ceiling_gb_per_s": round(limit / 1e3)})
        for row in host_times(options.rounds):
            print(
                f"{row['case']}: {row['side']:8}{row['min_ns'] / 1e3:8.1f}{row['median_ns'] / 1e3:8.1f} us"
            )
            results.append(row)
    where = environment(anyop, torch, triton) | device()
    print("written to", write("triton_kernels", results, where))


if __name__ == "__main__":
    main()
