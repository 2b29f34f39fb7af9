# SPDX-License-Identifier: Apache-2.0
"""What an operator writes in the memory of what it reads, on this kind of CPU and on those that torch can play.

ANYOP_TEST_FULL=1 tries every overload, from torch too, and each kind of CPU.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import prepared
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

WORK = Path(__file__).parent / "overlap_work.py"
FULL = bool(os.environ.get("ANYOP_TEST_FULL"))
STEP = 1 if FULL else 13
CPUS = {
    "this": {},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
    | {"MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "sse": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}
    | {"MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
}
RUNS = [(framework, cpu) for cpu in CPUS for framework in ("NumPy", "torch")]
if not FULL:
    RUNS = [("NumPy", "this"), ("torch", "sse")]


@pytest.mark.parametrize(("framework", "cpu"), RUNS)
def test_what_is_written_over_what_is_read(framework, cpu, report):
    process = prepared.run(
        "torch",
        [sys.executable, str(WORK), framework, str(STEP)],
        env={**os.environ, **CPUS[cpu]},
        timeout=1200,
    )
    lines = process.stdout.splitlines()
    assert process.returncode == 0, process.stderr[-1500:] + "\n".join(lines[-20:])
    report.append(lines[-1])


PRODUCT = """
import numpy as np, torch
from anyop import aten
for dtype in ("float32", "float64", "int64"):
    x = np.arange(36, dtype=dtype).reshape(6, 6)
    made = [x.copy() for _ in range(4)]
    assert aten.mm(made[0], made[0], out=made[0]) is made[0]
    tensor = torch.from_numpy(made[1])
    assert aten.mm(tensor, tensor, out=tensor) is tensor
    aten.addmm_(made[2], made[2], made[2], beta=0)
    aten.bmm(made[3][None], made[3][None], out=made[3][None])
    for array in made:
        assert np.allclose(array, x @ x), array
"""


@pytest.mark.parametrize("cpu", CPUS)
def test_products_into_their_own_arguments(cpu):
    """Torch itself clears the result first on some CPUs, and then multiplies nothing."""
    command = [sys.executable, "-c", PRODUCT]
    environment = {**os.environ, **CPUS[cpu]}
    process = prepared.run("torch", command, env=environment)
    assert process.returncode == 0, process.stderr[-2000:]
