# SPDX-License-Identifier: Apache-2.0
"""Kernels in CUDA images of nvcc, and a tvm-ffi library with CUDA code, on a GPU: values, streams, graphs, errors.

The folder is built by the C++ compiler alone; nvcc makes the images before.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

import anyop
import pytest
from anyop.builder.build import build

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.cuda.is_available():
    pytest.skip("there is no CUDA device that torch can use", allow_module_level=True)
NVCC = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
if not os.path.exists(NVCC):
    pytest.skip("nvcc is not installed", allow_module_level=True)
MAJOR, MINOR = torch.cuda.get_device_capability()
HERE = MAJOR * 10 + MINOR
SPIN_CYCLES = 200_000_000  # 0.1 s and more

CODE = """\
extern "C" __global__ void scale_kernel(const float* x, float* out, long long count, float factor) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < count) out[i] = factor * x[i];
}
extern "C" __global__ void sum_kernel(const double* x, double* out, int D, bool twice) {
  extern __shared__ double row[];  // all of it, 8 bytes an element
  for (int d = threadIdx.x; d < D; d += blockDim.x) row[d] = x[(long long)blockIdx.x * D + d];
  __syncthreads();
  if (threadIdx.x != 0) return;
  double sum = 0;
  for (int d = 0; d < D; ++d) sum += row[d];
  out[blockIdx.x] = twice ? 2 * sum : sum;
}
"""
SCALE = """\
schema = "{0}::scale(Tensor x, float factor=2.0) -> Tensor"
shapes = {{ x = "*", out = "*" }}
[kernels]
cuda = {{ file = {1}, entry = "scale_kernel", grid = ["ceil(numel(*)/256)"], block = [256], arguments = \
["x", "out", {2}, "factor:float"] }}
"""
SUM = """\
schema = "images::row_sum(Tensor x, bool twice=False) -> Tensor"
shapes = { x = "* D", out = "*" }
dtypes = { x = ["float64"] }
[kernels]
cuda = { file = "all.fatbin", entry = "sum_kernel", grid = "rows", block = 128, shared_bytes = "8*D", arguments = \
["x", "out", "D:int32", "twice"] }
"""


def nvcc(folder: Path, output: str, *flags: str) -> None:
    command = [NVCC, *flags, str(folder / "code.cu"), "-o", str(folder / output)]
    subprocess.run(command, check=True, capture_output=True)


def folder_of(folder: Path, namespace: str, files: str, count: str = '"rows"') -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "code.cu").write_text(CODE)
    (folder / "scale.toml").write_text(SCALE.format(namespace, files, count))
    return folder


def built(folder: Path, name: str):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANYOP_NVCC", "/nonexistent/nvcc")
        anyop.load(build(folder, name=name, out=folder.parent / f"{name}-out"))
    return getattr(anyop.ops, name)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Cubins for this device and for another, PTX, a fatbin of two."""
    folder = folder_of(
        tmp_path_factory.mktemp("images") / "ops", "images", '["other.cubin", "here.cubin"]'
    )
    (folder / "row_sum.toml").write_text(SUM)
    nvcc(folder, "here.cubin", "-cubin", f"-arch=sm_{HERE}")
    nvcc(folder, "other.cubin", "-cubin", f"-arch=sm_{120 if HERE < 120 else 90}")
    pair = [f"-gencode=arch=compute_{sm},code=sm_{sm}" for sm in sorted({80, HERE})]
    nvcc(folder, "all.fatbin", "-fatbin", *pair)
    return built(folder, "images")


@pytest.mark.parametrize("shape", [(0,), (1,), (255,), (256,), (257,), (3, 0, 5), (), (1025, 1023)])
def test_values(images, shape):
    x = torch.randn(shape, device="cuda")
    assert torch.equal(images.scale(x, 3), x * 3)
    out = torch.empty_like(x)
    assert images.scale(x, out=out) is out and torch.equal(out, x * 2)


@pytest.mark.parametrize("D", [1, 127, 6144, 6145, 12000])
def test_much_shared_memory(images, D):
    """48 KiB are 6,144 doubles; more must be asked for."""
    x = torch.randn(7, D, device="cuda", dtype=torch.float64)
    torch.testing.assert_close(images.row_sum(x, True), 2 * x.sum(1))


def test_too_much_shared_memory(images):
    with pytest.raises(anyop.DeviceError, match=r"row_sum: CUDA says .* while starting"):
        images.row_sum(torch.zeros(1, 10**6, device="cuda", dtype=torch.float64))
    assert torch.equal(images.scale(torch.ones(2, device="cuda")).cpu(), torch.full((2,), 2.0))


def test_the_callers_stream(images):
    x, late = torch.randn(1000, device="cuda"), torch.zeros(1000, device="cuda")
    images.scale(x)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        begin = time.perf_counter()
        torch.cuda._sleep(SPIN_CYCLES)
        late.copy_(x)
        found = images.scale(late)
        called_s = time.perf_counter() - begin
        assert not stream.query(), "the spin was too short to show anything"
    stream.synchronize()
    assert torch.equal(found, 2 * x) and called_s < (time.perf_counter() - begin) / 2


def test_a_graph_is_captured_even_by_the_first_call(tmp_path):
    """The image is loaded in the capture."""
    folder = folder_of(tmp_path / "ops", "captured", '"here.cubin"')
    nvcc(folder, "here.cubin", "-cubin", f"-arch=sm_{HERE}")
    scale = built(folder, "captured").scale
    x = torch.randn(1000, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = scale(x)
    x.copy_(torch.arange(1000.0))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(found, 2 * x)


def test_threads_that_have_no_context(tmp_path):
    """Sixteen first calls at once."""
    folder = folder_of(tmp_path / "ops", "threaded", '"here.cubin"')
    nvcc(folder, "here.cubin", "-cubin", f"-arch=sm_{HERE}")
    scale, x, wrong = built(folder, "threaded").scale, torch.randn(5000, device="cuda"), []
    torch.cuda.synchronize()
    start = threading.Barrier(16)

    def call():
        start.wait()
        for _ in range(20):
            found = scale(x)
        torch.cuda.synchronize()
        if not torch.equal(found, 2 * x):
            wrong.append(found)

    threads = [threading.Thread(target=call) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_ptx_is_compiled_by_the_driver(tmp_path):
    folder = folder_of(tmp_path / "ops", "from_ptx", '["other.cubin", "any.ptx"]')
    nvcc(folder, "other.cubin", "-cubin", f"-arch=sm_{120 if HERE < 120 else 90}")
    nvcc(folder, "any.ptx", "-ptx", "-arch=compute_80")
    scale, x = built(folder, "from_ptx").scale, torch.randn(777, device="cuda")
    try:
        assert torch.equal(scale(x), 2 * x)
    except NotImplementedError as error:  # nvcc newer than the driver: its PTX is not read
        assert "any.ptx (sm_80)" in str(error) and f"sm_{HERE}" in str(error)
        pytest.skip(f"the driver does not read PTX of this nvcc: {error}")


def test_no_image_fits(tmp_path):
    folder = folder_of(tmp_path / "ops", "foreign", '"other.cubin"')
    other = 120 if HERE < 120 else 90
    nvcc(folder, "other.cubin", "-cubin", f"-arch=sm_{other}")
    message = (
        f"foreign.scale: no image of scale_kernel for sm_{HERE}, .* other.cubin \\(sm_{other}\\)"
    )
    with pytest.raises(NotImplementedError, match=message):
        built(folder, "foreign").scale(torch.ones(3, device="cuda"))
    assert torch.ones(3, device="cuda").sum().item() == 3


@pytest.mark.parametrize("count", ['"rows:int32"', '"rows", "rows"'])
def test_arguments_unlike_the_kernels(count, tmp_path):
    name = f"unlike_{len(count)}"
    folder = folder_of(tmp_path / "ops", name, '"here.cubin"', count)
    nvcc(folder, "here.cubin", "-cubin", f"-arch=sm_{HERE}")
    with pytest.raises(
        anyop.InternalError,
        match=r"argument 3 of scale_kernel has 8|argument 4 of scale_kernel has 4",
    ):
        built(folder, name).scale(torch.ones(3, device="cuda"))


MODULE = """\
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>
__global__ void Double(const float* x, float* out, long long count) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < count) out[i] = 2 * x[i];
}
void Run(tvm::ffi::TensorView x, tvm::ffi::TensorView out) {
  auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(x.device().device_type, x.device().device_id));
  if (x.numel() == 0) return;
  auto *from = static_cast<float*>(x.data_ptr()), *to = static_cast<float*>(out.data_ptr());
  Double<<<(x.numel() + 255) / 256, 256, 0, stream>>>(from, to, x.numel());
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, Run);
"""
DOUBLE = """\
schema = "modules::doubled(Tensor x) -> Tensor"
shapes = { x = "*", out = "*" }
kernels = { cuda = { file = "double.so", function = "run" } }
"""


def test_a_tvm_ffi_library_runs_on_the_callers_stream(tmp_path):
    spec = importlib.util.find_spec("tvm_ffi")
    if spec is None:
        pytest.skip("tvm-ffi is not installed")
    runtime, folder = Path(spec.submodule_search_locations[0]), tmp_path / "ops"
    folder.mkdir()
    (folder / "code.cu").write_text(MODULE)
    (folder / "doubled.toml").write_text(DOUBLE)
    paths = ["-I", str(runtime / "include"), "-L", str(runtime / "lib"), "-ltvm_ffi"]
    nvcc(
        folder, "double.so", "-std=c++17", "-shared", "-Xcompiler=-fPIC", f"-arch=sm_{HERE}", *paths
    )
    doubled = built(folder, "modules").doubled
    x, late = torch.randn(3000, device="cuda"), torch.zeros(3000, device="cuda")
    assert torch.equal(doubled(x), 2 * x)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(SPIN_CYCLES)
        late.copy_(x)
        found = doubled(late)
        assert not stream.query(), "the spin was too short to show anything"
    stream.synchronize()
    assert torch.equal(found, 2 * x)
