# SPDX-License-Identifier: Apache-2.0
"""The code on docs/batch_norm.md runs as it stands; that of JAX on two devices is a batch norm of the whole batch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "batch_norm.md"
FOR_TORCH, FOR_JAX = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.S | re.M)

SAME = """
import numpy as np

assert jax.device_count() == 2
random = np.random.default_rng(0)
x, given = (random.standard_normal((8, 16, 5)).astype(np.float32) for _ in range(2))
weight, bias = (random.standard_normal(16).astype(np.float32) for _ in range(2))


def plain(x, weight, bias):
    mean, var = x.mean((0, 2), keepdims=True), x.var((0, 2), keepdims=True)
    return (x - mean) / jnp.sqrt(var + 1e-5) * weight[:, None] + bias[:, None]


found, pull = jax.vjp(jax.jit(synchronised), x, weight, bias)
expected, expected_pull = jax.vjp(plain, x, weight, bias)
for one, theirs in zip((found, *pull(given)), (expected, *expected_pull(given)), strict=True):
    np.testing.assert_allclose(one, theirs, rtol=1e-4, atol=1e-4)
"""


def test_torch():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    names: dict = {}
    exec(compile(FOR_TORCH, str(PAGE), "exec"), names)
    x = names["x"]
    expected = (torch.nn.BatchNorm2d(16)(x) + x).relu()
    torch.testing.assert_close(names["y"], expected)
    assert names["y"].is_contiguous(memory_format=torch.channels_last)


def test_jax_on_two_devices():
    pytest.importorskip("jax", reason="jax is not installed")
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", FOR_JAX + SAME], env=os.environ | flags, capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
