# SPDX-License-Identifier: Apache-2.0
"""The plugin cuda_like on a GPU: row cuda with the real cudart, and rows of others over it by false runtimes."""

from __future__ import annotations

import glob
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "tests" / "runtimes"))
import false_runtimes  # noqa: E402
from false_runtimes import run  # noqa: E402

NVCC = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
_PLACES = [
    *(f"{folder}/nvidia/*/lib/libcudart.so.1[2-9]*" for folder in sys.path if folder),
    "/usr/local/cuda*/lib*/libcudart.so.1[2-9]",
    "/usr/lib/*/libcudart.so.1[2-9]",
]


def find_cudart() -> Path | None:
    """A libcudart of CUDA 12 or newer that finds a GPU; asked in a process of its own."""
    ask = "import ctypes, sys; n = ctypes.c_int(); cudart = ctypes.CDLL(sys.argv[1]); "
    ask += "sys.exit(cudart.cudaGetDeviceCount(ctypes.byref(n)))"
    for path in sorted(path for place in _PLACES for path in glob.glob(place)):
        if subprocess.run([sys.executable, "-c", ask, path], capture_output=True).returncode == 0:
            return Path(path)
    return None


CUDART = find_cudart()
if CUDART is None:
    pytest.skip("no libcudart.so of CUDA 12 or newer finds a GPU", allow_module_level=True)


@pytest.fixture(scope="module", params=["cuda", "hip", "maca", "musa"])
def runtime(request, tmp_path_factory) -> tuple[str, dict[str, str]]:
    """A device's name, and the environment in which its library is found."""
    if request.param == "cuda":
        folder = tmp_path_factory.mktemp("cuda")
        (folder / f"libcudart.so.{CUDART.name.split('.so.')[1].split('.')[0]}").symlink_to(CUDART)
        return "row.cuda", {"LD_LIBRARY_PATH": str(folder)}
    made = false_runtimes.make(request.param, tmp_path_factory.mktemp(request.param), cudart=CUDART)
    return request.param, made.environment


def test_the_devices_checks(runtime, report):
    name, environment = runtime
    code, text = run(environment, "-m", "anyop", "device-check", name)
    report.append(f"{name} over {CUDART}: {text.splitlines()[-1]}")
    assert code == 0 and f"{name}: 24 of 24 checks passed" in text, text


KERNEL = r"""
extern "C" __global__ void fill(int* out, int value, long long count) {
  const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = value;
}
"""
LAUNCH = """
import ctypes, sys
from anyop.conformance.device_table import Device, Image, Launch, Pointer
device = Device(sys.argv[1])
data = open(sys.argv[2], "rb").read()
image = Image(ctypes.sizeof(Image), 0, b"fill.cubin", data, len(data), None)
kernel = device.made("find_kernel", 0, device.made("load_image", 0, ctypes.byref(image)), b"fill")
back = (ctypes.c_int32 * 1000)()
with device.memory(4000) as out, device.stream() as stream:
    held = [Pointer(out), ctypes.c_int32(7), ctypes.c_int64(1000)]
    values = (Pointer * 3)(*map(ctypes.addressof, held))
    how = Launch(ctypes.sizeof(Launch), 3, values, (ctypes.c_uint32 * 3)(0, 4, 8), (4, 1, 1), (256, 1, 1), 0)
    device.launch_kernel(0, stream, kernel, ctypes.byref(how))
    device.synchronize_stream(0, stream)
    device.copy(0, ctypes.addressof(back), out, 4000, 2)
assert list(back) == [7] * 1000
try:
    device.made("find_kernel", 0, device.made("load_image", 0, ctypes.byref(image)), b"other")
except Exception as error:
    print(error)
"""


def test_an_image_runs(runtime, tmp_path):
    name, environment = runtime
    if not shutil.which(NVCC):
        pytest.skip("nvcc is not installed")
    (tmp_path / "fill.cu").write_text(KERNEL)
    images = "-gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90,code=[sm_90,compute_90]"
    words = [NVCC, "-fatbin", *images.split(), "fill.cu", "-o", "fill.cubin"]
    subprocess.run(words, cwd=tmp_path, check=True)
    code, text = run(environment, "-c", LAUNCH, name, str(tmp_path / "fill.cubin"))
    assert code == 0 and "looking for the kernel other in fill.cubin" in text, text


def test_a_tiny_qwen3_is_near_the_cpus(runtime, tmp_path, report):
    """By torch's device; which overloads ran on the CPU is said, as their names differ by version."""
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    name, environment = runtime
    (tmp_path / "routes.txt").write_text("aten.* = native, cpu_fallback\n")
    own = {"ANYOP_DEVICE_PLATFORM": name, "ANYOP_ROUTES": str(tmp_path / "routes.txt")}
    code, text = run(environment | own, "tests/runtimes/qwen3.py")
    assert code == 0, text
    found = json.loads(text.rsplit("report ", 1)[1])
    ran = {backend: len(ops) for backend, ops in found["used"].items()}
    report.append(f"{name}: a tiny Qwen3 off by {found['off']:.1e}, overloads {ran}")
    assert found["off"] < 1e-5 and found["same"], text
