# SPDX-License-Identifier: Apache-2.0
"""Times backends of an operator in one run: anyop's Triton kernels, its CUDA kernels where there are, torch's (aten).

    python bench/gpu/triton_kernels.py [--rounds 40] [--only rms_norm,add] [--shapes 8192x8192,64x8192]

Cases, checks and device time are those of cuda_rows.py. Then the time that the host takes for a call, on 64 x 256. One
line of JSON for each side goes to bench/results/triton_kernels.jsonl.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import anyop
import torch
from cuda_rows import FLUSH_BYTES, LIMITS, WRONG, ceiling, chosen, device, idle_time, measure, show
from harness import environment, spread, take_turns, write

SHAPES = "8192x8192,16384x4096,64x8192"
FAMILIES = "norms,softmaxes,activations"
BACKENDS = ("cuda", "triton", "aten")


def sides(operator: str, call: Callable) -> dict[str, Callable]:
    """The call on each backend that computes it on a CUDA device; of one that Triton has no kernel for, none."""
    kernels = anyop.metadata(operator)["kernels"]
    backends = {k["backend"] for k in kernels if k["device"] in ("cuda", "any")}

    def on(backend: str) -> Callable:
        def run():
            with anyop.use(backend):
                return call()

        return run

    return {name: on(name) for name in BACKENDS if name in backends} if "triton" in backends else {}


def host_times(rounds: int):
    """Microseconds until a call returns; the device is waited for between sides."""
    x = torch.randn(64, 256, device="cuda")
    weight, out = torch.ones(256, device="cuda"), torch.empty_like(x)
    found = sides("rms_norm", lambda: anyop.rms_norm(x, weight, out=out))
    found["torch"] = lambda: torch.nn.functional.rms_norm(x, (256,), weight, 1e-6)
    for side, times in take_turns(found, rounds, calls=50, pause_s=0.01).items():
        yield {"case": "host time of rms_norm", "side": side, **spread(times)}


def main() -> str | None:
    """What was wrong, if something was."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--families", default=FAMILIES)
    parser.add_argument("--only", default="", metavar="OP,OP", help="default: all operators")
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--dtype", default="bfloat16", choices=LIMITS)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("skipped: there is no CUDA device that torch can use")
        return None
    import triton

    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    limit, idle_us = ceiling(options.rounds, flush), idle_time(options.rounds, flush)
    print(f"ceiling {limit / 1e3:.0f} GB/s, a kernel of one element {idle_us:.2f} us")
    results = []
    with torch.no_grad():
        for family, case in chosen(options, {}, "cuda"):
            found = sides(case.operator, lambda case=case: case.call(*case.tensors))
            for row in measure(case, found, options.rounds, flush, limit, idle_us):
                show(row, "")
                results.append(row | {"family": family, "ceiling_gb_per_s": round(limit / 1e3)})
        for row in host_times(options.rounds):
            times = f"{row['min_ns'] / 1e3:8.1f}{row['median_ns'] / 1e3:8.1f} us"
            print(f"{row['case']}: {row['side']:8}{times}")
            results.append(row)
    print(
        "written to", write("triton_kernels", results, environment(anyop, torch, triton) | device())
    )
    return "; ".join(WRONG) or None


if __name__ == "__main__":
    sys.exit(main())
