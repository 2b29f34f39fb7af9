# SPDX-License-Identifier: Apache-2.0
"""Builds the peers of the call benchmarks once, in build/bench; about 60 s each for torch's headers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "bench"
_KERNELS = ["ops/norm/rms_norm.cc", "ops/norm/rms_norm_backward.cc"]
_FLAGS = ["-O2", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math"]


def pybind():
    """The module with rms_norm, rms_norm_out and rms_norm_backward behind pybind11."""
    return _load("anyop_bench_pybind", "call_pybind.cc")


def library() -> None:
    """torch.ops.anyop_peer.rms_norm, written with TORCH_LIBRARY."""
    _load("anyop_bench_library", "call_library.cc", is_python_module=False)


def _load(name: str, source: str, **how):
    from torch.utils.cpp_extension import load

    return load(
        name,
        [str(ROOT / "bench/peers" / source), *(str(ROOT / kernel) for kernel in _KERNELS)],
        extra_include_paths=[str(ROOT / "include"), str(_generate()), str(ROOT / "bench/peers")],
        extra_cflags=_FLAGS,
        build_directory=str(_folder(name)),
        **how,
    )


def _generate() -> Path:
    out = _folder("generated")
    command = [sys.executable, "-m", "codegen", "--out", str(out), "--library", "anyop"]
    subprocess.run([*command, str(ROOT / "ops")], cwd=ROOT, check=True)
    return out


def _folder(name: str) -> Path:
    path = BUILD / name
    path.mkdir(parents=True, exist_ok=True)
    return path
