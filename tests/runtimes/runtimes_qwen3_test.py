# SPDX-License-Identifier: Apache-2.0
"""A tiny Qwen3 of transformers, unchanged, on a false Ascend and on OpenCL: near the CPU's, with its fallbacks."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from false_runtimes import make, run

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler")
NATIVE = {"add.Tensor", "embedding", "mm", "mul.Tensor", "silu"}
# Of these overloads at least one call ran on the CPU. The list may only become shorter. It is that of the versions
# below: others call other overloads.
FALLS_BACK = {
    "_scaled_dot_product_flash_attention_for_cpu", "add.Tensor", "all", "any", "arange.start_out", "argmax",
    "bitwise_and.Tensor", "bitwise_not", "bitwise_or.Tensor", "cat", "cos", "cumsum", "eq.Scalar", "fill_.Scalar",
    "lt.Scalar", "masked_fill_.Scalar", "max", "mean.dim", "mul.Tensor", "neg", "pow.Tensor_Scalar", "rsqrt", "sin",
    "sub.Tensor",
}  # fmt: skip
VERSIONS = {"torch": "2.13.0", "transformers": "5.24.0"}


POCL = Path("/etc/OpenCL/vendors/pocl.icd")


@pytest.mark.parametrize("platform", ["ascend", "opencl"])
def test_qwen3(platform, tmp_path):
    for name in VERSIONS:
        pytest.importorskip(name, reason=f"{name} is not installed")
    routes = tmp_path / "routes.txt"
    routes.write_text("aten.* = native, cpu_fallback\n")
    if platform == "ascend":
        environment = make("ascend", tmp_path).environment
    else:
        if not POCL.exists():
            pytest.skip("PoCL is not installed (Debian: pocl-opencl-icd)")
        environment = {"ANYOP_OPENCL_DEVICE": "Portable Computing Language"}
    environment |= {"ANYOP_DEVICE_PLATFORM": platform, "ANYOP_ROUTES": str(routes)}
    code, text = run(environment, "tests/runtimes/qwen3.py")
    assert code == 0, text
    report = json.loads(text.rsplit("report ", 1)[1])
    # 7.8e-7 and 3.3e-7 were measured: sums of 64 to 128 products of float32 in another order, over two layers.
    assert report["off"] < 1e-5 and report["same"], text
    used = {backend: set(ops) for backend, ops in report["used"].items()}
    assert used["native"] >= NATIVE and used.keys() == {"native", "cpu_fallback"}
    if all(
        importlib.metadata.version(name).split("+")[0] == known for name, known in VERSIONS.items()
    ):
        assert used["cpu_fallback"] <= FALLS_BACK, "an operator falls back that did not"
        assert used["cpu_fallback"] >= FALLS_BACK, "take out of the list what falls back no more"
