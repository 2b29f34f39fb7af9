# SPDX-License-Identifier: Apache-2.0
"""Host time of a call on CUDA tensors: Triton kernels in images beside CUDA's, Triton's own launcher and torch.

    python bench/calls/triton_call.py [--rounds 60] [--json FILE]

Each value is checked first. Then all callees take turns, 100 calls without waiting in each round, and the least round
counts: what a call costs the host, not the GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import time
from pathlib import Path

import anyop
import torch
import triton
from anyop._load import core
from anyop.backend.python import load_source

CALLS = 100
ROWS, D = 64, 1024


def kernel(op: str, name: str):
    """The Triton kernel of an operator."""
    (form,) = (i for i in json.loads(core.implementations(op)) if i["name"] == "triton.python")
    told = json.loads(form["text"])
    return getattr(load_source(op, told["file"], told["source"]), name)


def callees():
    """Name -> backend that is in use around it, and call; each gives a tensor."""
    x = torch.randn(ROWS, D, device="cuda", dtype=torch.bfloat16)
    w, wide = torch.ones_like(x[0]), torch.randn(ROWS, 2 * D, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(x)
    norm, gated = kernel("rms_norm", "_rms_norm"), kernel("silu_and_mul", "_silu_and_mul")
    F = torch.nn.functional

    def by_triton():
        norm[(32,)](x, w, out, ROWS, D, D, D, 1e-6, 0.0, 2, D, True, True, num_warps=4)
        return out

    def gated_by_triton():
        gated[(32, 1)](wide, out, ROWS, D, 2 * D, D, 2, D)
        return out

    found = {
        "rms_norm: Triton's launcher": (None, by_triton),
        "rms_norm: torch": (None, lambda: F.rms_norm(x, (D,), w, 1e-6)),
        "silu_and_mul: Triton's launcher": (None, gated_by_triton),
        "silu_and_mul: torch silu(a) * b": (None, lambda: F.silu(wide[:, :D]) * wide[:, D:]),
        "softmax: torch": (None, lambda: torch.softmax(x, -1)),
    }
    for backend in ("cuda", "triton", "triton.python"):
        end = f"anyop {backend}"
        found[f"rms_norm: {end}"] = backend, lambda: anyop.rms_norm(x, w)
        found[f"rms_norm: {end}, out="] = backend, lambda: anyop.rms_norm(x, w, out=out)
        if backend != "cuda":
            found[f"silu_and_mul: {end}"] = backend, lambda: anyop.silu_and_mul(wide)
            found[f"softmax: {end}"] = backend, lambda: anyop.softmax(x)
    for name in ("jax", "cupy"):
        try:
            importlib.import_module(name)
        except ImportError:
            print(f"{name} is not installed: left out")
            continue
        given = importlib.import_module(f"{name}.dlpack" if name == "jax" else name)
        there, there_w = (given.from_dlpack(t.float()) for t in (x, w))
        for backend in ("cuda", "triton"):
            call = lambda a=there, b=there_w: anyop.rms_norm(a, b)  # noqa: E731
            found[f"rms_norm of {name}: anyop {backend}"] = backend, call
    return x, w, wide, found


def using(backend):
    """A scope, as in a program that is routed."""
    return anyop.use(backend) if backend else contextlib.nullcontext()


def check(x, w, wide, found) -> None:
    """Every callee against float64."""
    X = x.double()
    gate, value = wide.double().chunk(2, -1)
    exact = {
        "rms_norm": X * (X.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * w.double(),
        "silu_and_mul": torch.nn.functional.silu(gate) * value,
        "softmax": X.softmax(-1),
    }
    for name, (backend, call) in found.items():
        with using(backend):
            result = torch.from_dlpack(call()).double()
        expected = exact[name.partition(":")[0].partition(" ")[0]]
        error = float(((result - expected).abs() / (1 + expected.abs())).max())
        assert error < 1.7e-2, f"{name}: off by {error}"


def main() -> None:
    """Times, and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    x, w, wide, found = callees()
    check(x, w, wide, found)
    least = dict.fromkeys(found, float("inf"))
    for _ in range(options.rounds):
        for name, (backend, call) in found.items():
            torch.cuda.synchronize()
            with using(backend):
                begin = time.perf_counter_ns()
                for _ in range(CALLS):
                    call()
                least[name] = min(least[name], (time.perf_counter_ns() - begin) / CALLS / 1e3)
    torch.cuda.synchronize()
    device = torch.cuda.get_device_name()
    print(
        f"{device}, torch {torch.__version__}, Triton {triton.__version__}, anyop {anyop.__version__}"
    )
    print(f"host time of a call, us, least of {options.rounds} rounds of {CALLS}; {ROWS}x{D}")
    for name, us in sorted(least.items()):
        print(f"  {name:45} {us:8.2f}")
    if options.json:
        record = {
            "device": device,
            "torch": torch.__version__,
            "triton": triton.__version__,
            "us": least,
        }
        with options.json.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
