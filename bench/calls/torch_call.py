# SPDX-License-Identifier: Apache-2.0
"""Times one call on torch tensors, with and without a gradient, against extensions written with torch's headers.

    python bench/calls/torch_call.py [--rounds 15]

rms_norm of 1x16: three tensors and a float. The peers have anyop's own kernels behind pybind11, TORCH_LIBRARY and
tvm-ffi, and are built once (about 2 min, in build/bench). All tensors are owned by Python alone. Twice in one run: with
the glue and, in a process of its own, without. One line of JSON for each call goes to bench/results/torch_call.jsonl.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import peers.build
from harness import ROOT, environment, spread, take_turns, write

CALLS = 2000
# What is asked of each call: (call, peer, at most).
FIGURES = [
    ("anyop out=", "pybind11 out", 1.3),
    ("anyop out=", "tvm_ffi out", 0.55),
    ("anyop allocating", "pybind11 allocating", 1.3),
    ("torch.ops.anyop.rms_norm.default", "TORCH_LIBRARY .default", 1.25),
    ("torch.ops.anyop.rms_norm.out", "TORCH_LIBRARY .out", None),
    ("anyop forward + backward", "pybind11 in autograd.Function", 1.2),
    ("torch.ops.anyop forward + backward", "pybind11 in autograd.Function", None),
    ("anyop out= while gradients are recorded", "pybind11 out", 1.3),
]
FIGURES_WITHOUT_GLUE = [("anyop out=", "pybind11 out", 3.5)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    with_glue = os.environ.get("ANYOP_TORCH_GLUE") != "0"
    measure(rounds, with_glue)
    if with_glue:
        again = dict(os.environ, ANYOP_TORCH_GLUE="0")
        subprocess.run([sys.executable, __file__, "--rounds", str(rounds)], env=again, check=True)


def measure(rounds: int, with_glue: bool) -> None:
    import anyop
    import anyop.torch
    import torch
    import tvm_ffi
    from anyop.native.glues import torch_glue

    assert (torch_glue.load() is not None) == with_glue, torch_glue.problem
    torch.set_num_threads(1)
    anyop.set_num_threads(1)
    sides, recorded = no_gradient(anyop, torch, tvm_ffi), with_gradient(anyop, torch)
    check(torch, sides, recorded)
    with torch.no_grad():
        times = take_turns(sides, rounds, CALLS)
    times |= take_turns(recorded, rounds, CALLS // 4)
    recording = "anyop out= while gradients are recorded"
    times |= take_turns({recording: sides["anyop out="]}, rounds, CALLS)
    show_and_write(times, with_glue, environment(anyop, torch, tvm_ffi))


def no_gradient(anyop, torch, tvm_ffi) -> dict:
    pybind = peers.build.pybind()
    peers.build.library()
    ffi = tvm_ffi.get_global_func("anyop.rms_norm")
    ours, theirs = torch.ops.anyop.rms_norm, torch.ops.anyop_peer.rms_norm
    ours_default, theirs_default = ours.default, theirs.default
    ours_out, theirs_out = ours.out, theirs.out
    x, w, y = torch.randn(1, 16), torch.randn(16), torch.randn(1, 16)
    return {
        "loop": lambda: None,
        "pybind11 out": lambda: pybind.rms_norm_out(x, w, y, 1e-6),
        "anyop out=": lambda: anyop.rms_norm(x, w, 1e-6, out=y),
        "tvm_ffi out": lambda: ffi(x, w, 1e-6, 0.0, None, y),
        "pybind11 allocating": lambda: pybind.rms_norm(x, w, 1e-6),
        "anyop allocating": lambda: anyop.rms_norm(x, w, 1e-6),
        "TORCH_LIBRARY .default": lambda: theirs_default(x, w, 1e-6),
        "torch.ops.anyop.rms_norm.default": lambda: ours_default(x, w, 1e-6),
        "TORCH_LIBRARY .out": lambda: theirs_out(x, w, 1e-6, out=y),
        "torch.ops.anyop.rms_norm.out": lambda: ours_out(x, w, 1e-6, out=y),
        "torch.add out=": lambda: torch.add(x, x, out=y),
    }


def with_gradient(anyop, torch) -> dict:
    pybind = peers.build.pybind()

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight, eps):
            ctx.save_for_backward(x, weight)
            ctx.eps = eps
            return pybind.rms_norm(x, weight, eps)

        @staticmethod
        def backward(ctx, grad_out):
            grads = pybind.rms_norm_backward(grad_out, *ctx.saved_tensors, ctx.eps)
            return *grads, None

    x, w = torch.randn(1, 16, requires_grad=True), torch.randn(16, requires_grad=True)
    seed = torch.randn(1, 16)

    def both(forward):
        def run():
            return torch.autograd.grad(forward(x, w, 1e-6), (x, w), seed)

        return run

    return {
        "pybind11 in autograd.Function": both(Function.apply),
        "anyop forward + backward": both(anyop.rms_norm),
        "torch.ops.anyop forward + backward": both(torch.ops.anyop.rms_norm.default),
        "pybind11 in autograd.Function, forward": lambda: Function.apply(x, w, 1e-6),
        "anyop forward with a gradient": lambda: anyop.rms_norm(x, w, 1e-6),
    }


def check(torch, sides: dict, recorded: dict) -> None:
    """Every side of one kind gives one result."""
    with torch.no_grad():
        expected = sides["pybind11 allocating"]().clone()
        for name in ("anyop allocating", "torch.ops.anyop.rms_norm.default", "anyop out="):
            torch.testing.assert_close(sides[name](), expected, rtol=0, atol=0)
    expected = recorded["pybind11 in autograd.Function"]()
    for name in ("anyop forward + backward", "torch.ops.anyop forward + backward"):
        for found, wanted in zip(recorded[name](), expected, strict=True):
            torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def show_and_write(times: dict[str, list[float]], with_glue: bool, where: dict) -> None:
    loop_ns = min(times.pop("loop"))
    how = "with the glue" if with_glue else "without the glue"
    print(f"{how:46}{'min ns':>9}{'median':>9}   (the loop's {loop_ns:.0f} ns taken off)")
    rows = []
    for name, values in times.items():
        row = spread([value - loop_ns for value in values])
        rows.append({"call": name, "glue": with_glue, **row})
        print(f"{name:46}{row['min_ns']:9.0f}{row['median_ns']:9.0f}")
    best = {row["call"]: row["min_ns"] for row in rows}
    print(f"\n{'ratio of minima':78}{'found':>7}{'at most':>9}")
    for call, peer, limit in FIGURES if with_glue else FIGURES_WITHOUT_GLUE:
        ratio = best[call] / best[peer]
        verdict = "" if limit is None else f"{limit:9.2f}  {'met' if ratio <= limit else 'MISSED'}"
        print(f"{call + ' / ' + peer:78}{ratio:7.2f}{verdict}")
        rows.append(
            {
                "ratio_of": call,
                "to": peer,
                "glue": with_glue,
                "ratio": round(ratio, 3),
                "at_most": limit,
            }
        )
    print("written to", write("torch_call", rows, where).relative_to(ROOT), flush=True)


if __name__ == "__main__":
    main()
