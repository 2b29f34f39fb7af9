# SPDX-License-Identifier: Apache-2.0
"""Builds bias_gelu before and after the move, and as a tvm-ffi export; times builds and calls.

    python examples/from_pybind11/bench.py [--rounds 20] [--write]

Builds are cold: folders of their own, torch's headers and all, about half a minute. All three are compared with
torch.nn.functional.gelu, then they take turns. --write adds a line for each to bench/results/from_pybind11.jsonl.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import anyop
import torch
import tvm_ffi
from lines import HERE, SIDES, counts
from torch.utils import cpp_extension

sys.path.insert(0, str(HERE.parents[1] / "bench"))
from harness import environment, spread, take_turns, write

SHAPES = [(1, 64), (64, 1024)]


def build_pybind11(folder: str) -> Callable:
    source = str(HERE / SIDES["pybind11"][0])
    return cpp_extension.load(
        "bias_gelu_pybind", [source], extra_cflags=["-O2"], build_directory=folder
    ).bias_gelu


def build_tvm_ffi(folder: str) -> Callable:
    library = Path(folder, "bias_gelu.so")
    include = {tvm_ffi.libinfo.find_include_path(), tvm_ffi.libinfo.find_dlpack_include_path()}
    command = ["g++", "-O2", "-std=c++17", "-fPIC", "-shared", *(f"-I{path}" for path in include)]
    subprocess.run([*command, str(HERE / SIDES["tvm-ffi"][0]), "-o", str(library)], check=True)
    return tvm_ffi.load_module(str(library)).bias_gelu


def build_anyop(folder: str) -> Callable:
    os.environ["ANYOP_CACHE_DIR"] = folder
    anyop.load(anyop.build(HERE / "ops", name="moved"))
    return anyop.ops.moved.bias_gelu


BUILDERS = {"pybind11": build_pybind11, "tvm-ffi": build_tvm_ffi, "anyop": build_anyop}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    rows, functions = {}, {}
    anyop.add(torch.ones(1), torch.ones(1))  # builds what anyop needs for torch, once for all
    with tempfile.TemporaryDirectory() as scratch:
        for name, build in BUILDERS.items():
            os.mkdir(folder := f"{scratch}/{name}")
            begin = time.perf_counter()
            functions[name] = build(folder)
            seconds = round(time.perf_counter() - begin, 2)
            files = len(SIDES[name])
            rows[name] = {"side": name, "files": files, "lines": counts()[name], "build_s": seconds}
        for shape in SHAPES:
            for name, nanoseconds in calls(functions, shape, options.rounds).items():
                rows[name]["x".join(map(str, shape))] = spread(nanoseconds)
    for row in rows.values():
        print(", ".join(f"{key} {value}" for key, value in row.items()))
    if options.write:
        print("written to", write("from_pybind11", [*rows.values()], environment(anyop, torch)))


def calls(functions: dict[str, Callable], shape: tuple[int, int], rounds: int) -> dict[str, list]:
    """Nanoseconds of a call that allocates its result."""
    x, bias = torch.randn(shape), torch.randn(shape[-1])
    expected = torch.nn.functional.gelu(x + bias)
    for function in functions.values():
        torch.testing.assert_close(function(x, bias), expected, rtol=2e-6, atol=2e-6)
    sides = {name: lambda call=call: call(x, bias) for name, call in functions.items()}
    return take_turns(sides, rounds, max(2**20 // x.numel() // 16, 1))


if __name__ == "__main__":
    main()
