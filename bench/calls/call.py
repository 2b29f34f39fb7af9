# SPDX-License-Identifier: Apache-2.0
"""Times one call: anyop against pybind11 with torch's headers, torch.native_layer_norm and tvm-ffi, in one run.

    python bench/calls/call.py [--rounds 15]

Builds its peer once (about 60 s, in build/bench): the same kernel behind pybind11. All tensors are owned by Python
alone: one that C++ holds too is borrowed faster by every path. One line of JSON for each call goes to
bench/results/call.jsonl.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import peers.build
from harness import ROOT, environment, spread, take_turns, write

CALLS = 2000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    import anyop
    import numpy as np
    import torch

    torch.set_num_threads(1)
    anyop.set_num_threads(1)
    pybind = peers.build.pybind()
    import tvm_ffi

    ffi = tvm_ffi.get_global_func("anyop.rms_norm")

    def tensors(*shapes):
        return [torch.randn(*shape) for shape in shapes]

    def arrays(*shapes):
        return [np.random.default_rng(0).standard_normal(shape, np.float32) for shape in shapes]

    x, w, y, bias = tensors((1, 16), (16,), (1, 16), (16,))
    X, W, Y = tensors((4, 64), (64,), (4, 64))
    nx, nw, ny = arrays((1, 16), (16,), (1, 16))
    nX, nW, nY = arrays((4, 64), (64,), (4, 64))
    sides = {
        "loop": lambda: None,
        "pybind11 1x16": lambda: pybind.rms_norm_out(x, w, y),
        "anyop 1x16": lambda: anyop.rms_norm(x, w, out=y),
        "pybind11 4x64": lambda: pybind.rms_norm_out(X, W, Y),
        "anyop 4x64": lambda: anyop.rms_norm(X, W, out=Y),
        "pybind11 4x64 allocating": lambda: pybind.rms_norm(X, W),
        "anyop 4x64 allocating": lambda: anyop.rms_norm(X, W),
        "torch.native_layer_norm": lambda: torch.native_layer_norm(x, (16,), w, bias, 1e-5),
        "anyop.native_layer_norm": lambda: anyop.native_layer_norm(x, w, bias),
        "tvm_ffi numpy 1x16": lambda: ffi(nx, nw, 1e-6, 0.0, None, ny),
        "anyop numpy 1x16": lambda: anyop.rms_norm(nx, nw, out=ny),
        "tvm_ffi numpy 4x64": lambda: ffi(nX, nW, 1e-6, 0.0, None, nY),
        "anyop numpy 4x64": lambda: anyop.rms_norm(nX, nW, out=nY),
        "anyop numpy 4x64 allocating": lambda: anyop.rms_norm(nX, nW),
        "tvm_ffi torch 4x64": lambda: ffi(X, W, 1e-6, 0.0, None, Y),
        "torch.add out=": lambda: torch.add(x, x, out=y),
        "numpy.add out=": lambda: np.add(nx, nx, out=ny),
    }
    check(
        sides,
        torch,
        np,
        {"4x64": (X, W), "1x16": (x, w)},
        {"4x64": (nX, nW), "1x16": (nx, nw)},
        (x, w, bias),
    )
    with torch.no_grad():
        times = take_turns(sides, rounds, CALLS)
    recording = "anyop 4x64 while gradients are recorded"
    times |= take_turns({recording: sides["anyop 4x64"]}, rounds, CALLS)
    show_and_write(times, environment(anyop, np, torch, tvm_ffi))


def check(sides, torch, np, pairs, numpy_pairs, layer_norm) -> None:
    """Every side of one operator gives one result."""
    for name, side in sides.items():
        key = next((k for k in pairs if k in name), None)
        if key and "numpy" not in name:
            x, w = pairs[key]
            torch.testing.assert_close(
                torch.nn.functional.rms_norm(x, w.shape, w, 1e-6),
                result_of(side, sides, name, pairs),
            )
        elif key:
            x, w = numpy_pairs[key]
            expected = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * w
            np.testing.assert_allclose(
                result_of(side, sides, name, numpy_pairs), expected, rtol=1e-5, atol=1e-6
            )
    x, w, bias = layer_norm
    expected = torch.native_layer_norm(x, (x.shape[-1],), w, bias, 1e-5)
    for found, wanted in zip(sides["anyop.native_layer_norm"](), expected, strict=True):
        torch.testing.assert_close(found, wanted)


def result_of(side, sides, name, _pairs):
    """The result; tvm-ffi returns none for a place that was given, so anyop reads the same place after it."""
    result = side()
    if result is not None:
        return result
    twin = name.replace("tvm_ffi torch", "anyop").replace("tvm_ffi numpy", "anyop numpy")
    before = sides[twin]()
    before[...] = 0
    side()
    return before


# What is asked of each call: (call, peer, at most).
FIGURES = [
    ("anyop 4x64", "pybind11 4x64", 2.0),
    ("anyop 4x64 while gradients are recorded", "pybind11 4x64", 2.0),
    ("anyop 1x16", "pybind11 1x16", 3.2),
    ("anyop.native_layer_norm", "torch.native_layer_norm", 1.1),
    ("anyop numpy 1x16", "tvm_ffi numpy 1x16", 0.6),
    ("anyop numpy 4x64", "tvm_ffi numpy 4x64", 0.6),
    ("anyop 4x64 allocating", "pybind11 4x64 allocating", None),
    ("anyop 4x64", "tvm_ffi torch 4x64", None),
]


def show_and_write(times: dict[str, list[float]], where: dict) -> None:
    loop_ns = min(times.pop("loop"))
    print(f"{'call':42}{'min ns':>9}{'median':>9}   (the loop's {loop_ns:.0f} ns taken off)")
    rows = []
    for name, values in times.items():
        row = spread([value - loop_ns for value in values])
        rows.append({"call": name, **row})
        print(f"{name:42}{row['min_ns']:9.0f}{row['median_ns']:9.0f}")
    best = {row["call"]: row["min_ns"] for row in rows}
    print(f"\n{'ratio of minima':78}{'found':>7}{'at most':>9}")
    for call, peer, limit in FIGURES:
        ratio = best[call] / best[peer]
        verdict = "" if limit is None else f"{limit:9.2f}  {'met' if ratio <= limit else 'MISSED'}"
        print(f"{call + ' / ' + peer:78}{ratio:7.2f}{verdict}")
        rows.append({"ratio_of": call, "to": peer, "ratio": round(ratio, 3), "at_most": limit})
    print("written to", write("call", rows, where).relative_to(ROOT))


if __name__ == "__main__":
    main()
