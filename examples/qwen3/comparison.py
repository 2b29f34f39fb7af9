# SPDX-License-Identifier: Apache-2.0
"""The same work on the device below anyop, cpu or cuda, and how results differ."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from . import InputError
from .work import Work

ROOT = Path(__file__).resolve().parents[2]
COMPARED = ("logits", "greedy", "sampled", "losses", "logits after training")
# Of the largest value, where operators do not run by aten: kernels may sum in another order.
NEAR = 0.05


def reference(options: argparse.Namespace, work: Work) -> tuple[str, dict]:
    """The device below, and what it computes. CUDA gets a process of its own, which knows nothing of anyop."""
    from anyop.torch import device

    if device.platform() != "cuda":
        return "cpu", work.results("cpu")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.pt"
        command = [sys.executable, "-m", "examples.qwen3", *repeated(options, work.shards)]
        environment = os.environ | {
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        command += ["--device", "cuda", "--save", str(path)]
        found = subprocess.run(command, env=environment, capture_output=True, text=True)
        if found.returncode != 0:
            raise InputError(f"the comparison with cuda failed: {found.stderr.strip()[-2000:]}")
        return "cuda", torch.load(path)


def repeated(options: argparse.Namespace, shards: int) -> list[str]:
    """Arguments for the same work."""
    words = ["--shards", str(shards)]
    for name in ("model", "size", "dtype", "rows", "length", "tokens", "steps", "adamw", "rate"):
        if (value := getattr(options, name)) is not None:
            words += [f"--{name}", str(value)]
    return words


def compare(found: dict, expected: dict) -> tuple[list[str], bool]:
    """A line for each result, and whether all are the same or near."""
    lines, good = [], True
    for name in COMPARED:
        if name in found:
            text, is_near = difference(found[name], expected[name])
            lines.append(f"{name}: {text}")
            good &= is_near
    return lines, good


def difference(found: torch.Tensor, expected: torch.Tensor) -> tuple[str, bool]:
    if found.shape != expected.shape:
        return f"shape {tuple(found.shape)}, expected {tuple(expected.shape)}", False
    finite = bool(found.isfinite().all()) if found.is_floating_point() else True
    if torch.equal(found, expected):
        return "bitwise equal", finite
    if not found.is_floating_point():
        same = int((found == expected).cummin(1).values.sum())
        return f"the first {same} of {found.numel()} tokens equal", True
    worst = (found - expected).abs().max().item() / expected.abs().max().item()
    return f"differ by at most {worst:.1e} of the largest", finite and worst <= NEAR
