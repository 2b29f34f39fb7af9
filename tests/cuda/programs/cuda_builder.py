# SPDX-License-Identifier: Apache-2.0
"""The builder on a machine with a GPU: its architecture, snippets, a wheel without a compiler, what is refused."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.cuda.is_available():
    pytest.skip("torch finds no CUDA device", allow_module_level=True)

import anyop.torch  # noqa: E402
from anyop.builder import gpus  # noqa: E402

SOURCE = """
__global__ void scale_kernel(const float* x, float* out, int64_t n, float factor) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i < n) out[i] = factor * x[i];
}
int32_t scale(const float* x, float* out, int64_t n, double factor, AnyopCall* call, void* stream) {
  if (n < 1) return kAnyopOk;
  scale_kernel<<<(n + 255) / 256, 256, 0, static_cast<cudaStream_t>(stream)>>>(x, out, n, factor);
  if (cudaGetLastError() != cudaSuccess) return call->fail(call, kAnyopDeviceError, "no launch");
  return kAnyopOk;
}
"""
KERNEL = """
#include "gpu/ops/scale.h"
namespace {
__global__ void Scale(const float* x, float* out, int64_t n, float factor) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i < n) out[i] = factor * x[i];
}
}  // namespace
int32_t gpu_scale_cuda(const ScaleArgs* args, AnyopCall* call) {
  if (args->rows == 0) return kAnyopOk;
  Scale<<<(args->rows + 255) / 256, 256, 0, static_cast<cudaStream_t>(call->stream)>>>(
      static_cast<const float*>(args->x->data), static_cast<float*>(args->out->data), args->rows, args->factor);
  if (cudaGetLastError() != cudaSuccess) return call->fail(call, kAnyopDeviceError, "no launch");
  return kAnyopOk;
}
"""
SCHEMA = (
    'schema = "gpu::scale(Tensor x, float factor=2.0) -> Tensor"\nshapes = { x = "*", out = "*" }\n'
)


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "gpu").mkdir()
    (tmp_path / "gpu" / "scale.toml").write_text(SCHEMA)
    (tmp_path / "gpu" / "scale.cu").write_text(KERNEL)
    return tmp_path / "gpu"


def python(program: str, *arguments: object, **environment: str) -> str:
    """A process of its own, for a library that is loaded stays."""
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env=os.environ | environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_architectures_are_torchs():
    count = torch.cuda.device_count()
    found = {"".join(map(str, torch.cuda.get_device_capability(i))) for i in range(count)}
    assert set(gpus.gpu_archs()) == found


def test_asking_does_not_start_cuda():
    """A process that forks after CUDA's start could not use it in the child."""
    program = """
import os, anyop
from anyop.builder import gpus
assert gpus.gpu_archs()
child = os.fork()
if not child:
    import torch
    ok = float(torch.ones(3, device="cuda").sum()) == 3
    os._exit(0 if ok else 1)
print(os.waitpid(child, 0)[1])
"""
    assert python(program) == "0"


def test_a_snippet_runs_on_the_callers_stream():
    module = anyop.jit.load("gpu_snippet", source=SOURCE, functions=["scale"])
    stream = torch.cuda.Stream()
    x = torch.randn(100_003, device="cuda")
    out = torch.empty_like(x)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # the kernel must wait behind this
        x.mul_(3)
        module.scale(x, out, x.numel(), 2.0)
    stream.synchronize()
    torch.testing.assert_close(out, x * 2)
    with pytest.raises(TypeError, match="float64"):
        module.scale(x.double(), out, 1, 1.0)


def test_a_folder_is_built_for_this_gpu_and_runs_without_nvcc(folder):
    program = """
import sys, torch, anyop.torch
print(anyop.load(sys.argv[1]))
x = torch.randn(1000, device="cuda")
torch.testing.assert_close(anyop.ops.gpu.scale(x, 3.0), x * 3)
torch.testing.assert_close(torch.ops.gpu.scale(x, 3.0), x * 3)
"""
    assert python(program, folder) == "['gpu.scale']"
    without = {"PATH": "/nowhere", "ANYOP_NVCC": "", "CXX": ""}
    assert python(program, folder, **without) == "['gpu.scale']"  # from the cache


def test_one_wheel_for_several_gpus_needs_no_compiler(folder, tmp_path):
    from anyop.builder.wheel import build_wheel

    wheel = build_wheel(folder, tmp_path, name="gpu", version="1.0", arch=["80", "90"])
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    program = """
import sys, torch
sys.path.insert(0, sys.argv[1])
import anyop.torch, gpu
x = torch.randn(1000, device="cuda")
torch.testing.assert_close(anyop.ops.gpu.scale(x), x * 2)
print("good")
"""
    without = {"PATH": "/nowhere", "ANYOP_NVCC": "/nowhere/nvcc", "CXX": "/nowhere/c++"}
    without["ANYOP_CACHE_DIR"] = str(tmp_path / "empty")
    assert python(program, site, **without) == "good"
    if shutil.which("cuobjdump"):
        library = next(site.rglob("*.so"))
        listed = subprocess.run(["cuobjdump", library], capture_output=True, text=True).stdout
        assert "sm_80" in listed and "sm_90" in listed


def test_a_library_for_another_gpu_is_refused(folder, tmp_path):
    here = gpus.gpu_archs()
    other = "100" if "100" not in here else "90"
    path = anyop.build(folder, out=tmp_path / "other", arch=[f"{other}a"])
    program = """
import sys, anyop
try:
    anyop.load(sys.argv[1])
except ValueError as error:
    print(error)
"""
    said = python(program, path)
    assert f"has CUDA kernels for sm_{other}a" in said and f"sm_{here[0]}" in said
