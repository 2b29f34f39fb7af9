# SPDX-License-Identifier: Apache-2.0
"""The plugin cuda_like beside what is a vendor's: headers, Debian's HIP runtime; what it needs, the doctor, PyTorch."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import anyop
import pytest
from anyop.doctor.runtimes import findings, look

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(Path(__file__).parent))
import false_runtimes  # noqa: E402
from false_runtimes import OPEN, ROWS, make, run, vendor_name  # noqa: E402

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler")
PLUGIN = Path(anyop._anyop.__file__).parent / "lib" / "libanyop_cuda_like.so"


@pytest.fixture(scope="module")
def hip(tmp_path_factory):
    return make("hip", tmp_path_factory.mktemp("hip"), full=True)


def include(*names: str) -> Path | None:
    """The folder of a header of a vendor's."""
    nvidia = [Path(place) for place in sys.path if place and (Path(place) / "triton").is_dir()]
    places = [*(place / "triton/backends/nvidia/include" for place in nvidia), Path("/usr/include")]
    places += [Path("/usr/local/cuda/include")]
    return next((place for place in places if all((place / n).exists() for n in names)), None)


# Their own names of numbers, where they are not called as CUDA's are.
HIP_NUMBERS = {
    "ErrorMemoryAllocation": "hipErrorOutOfMemory",
    "ErrorNoBinary": "hipErrorNoBinaryForGpu",
    "HostAllocPortable": "hipHostMallocPortable",
}
# Of two that C++ sees, the one that is exported.
HIP_OVERLOADED = {
    "hipMallocAsync": "static_cast<hipError_t (*)(void**, size_t, hipStream_t)>(hipMallocAsync)"
}
CUDA_NUMBERS = {
    "ErrorNoBinary": "cudaErrorNoKernelImageForDevice",
    "ErrorNotFound": "cudaErrorSymbolNotFound",
}


@pytest.mark.parametrize(
    ("name", "headers", "numbers", "absent"),
    [
        ("cuda", ("cuda_runtime_api.h", "cuda.h"), CUDA_NUMBERS, ()),
        ("hip", ("hip/hip_runtime_api.h",), HIP_NUMBERS, ("LaunchHostFunc",)),
    ],
)
def test_prototypes_and_numbers_are_those_of_the_vendors_headers(
    name, headers, numbers, absent, tmp_path
):
    folder, row = include(*headers), ROWS[name]
    if folder is None:
        pytest.skip(f"{headers[0]} is not installed")
    lists = {"RUNTIME": (false_runtimes.FUNCTIONS, row["prefix"])}
    lists |= {"MODULES": (false_runtimes.MODULES, row.get("module_prefix", row["prefix"]))}
    lines = []
    for kind, (names, prefix) in lists.items():
        theirs = {n: vendor_name(row, n, prefix, -1) for n in names if n not in absent}
        pairs = [f"F({n}, {HIP_OVERLOADED.get(their, their)})" for n, their in theirs.items()]
        lines.append(f"#define {kind}(F) {' '.join(pairs)}")
    lines += [f'#include "{header}"' for header in (*headers, "runtime_api.h")]
    source = (ROOT / "tests/runtimes/prototypes.cc").read_text()
    for number in re.findall(r"NUMBER\((\w+)\)", source):
        lines.append(f"#define NUMBER_{number} {numbers.get(number, row['prefix'] + number)}")
    (tmp_path / "vendor.h").write_text("\n".join([*lines, ""]))
    words = [
        "g++",
        "-std=c++17",
        "-fsyntax-only",
        "-D__HIP_PLATFORM_AMD__",
        "-D__HIP_DISABLE_CPP_FUNCTIONS__",
    ]
    words += [
        f"-isystem{folder}",
        "-include",
        str(tmp_path / "vendor.h"),
        f"-I{false_runtimes.SOURCES}",
        f"-I{anyop.include_dir()}",
    ]
    words += [str(ROOT / "tests/runtimes/prototypes.cc")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    vendor = (tmp_path / "vendor.h").read_text()
    for right, wrong in (
        ("F(StreamDestroy,", "F(EventElapsedTime,"),
        (f"{row['prefix']}ErrorNotReady\n", f"{row['prefix']}ErrorNoDevice\n"),
    ):
        assert right in vendor
        (tmp_path / "vendor.h").write_text(vendor.replace(right, wrong))
        assert subprocess.run(words, capture_output=True).returncode == 1, "it cannot fail"


HIP = next(iter(Path("/usr/lib").glob("*/libamdhip64.so")), None)


@pytest.mark.skipif(HIP is None, reason="libamdhip64 is not installed (Debian: libamdhip64-dev)")
def test_the_row_hip_opens_debians_runtime():
    """All names but those that may be missing, 0 devices without an error, memory refused with its text."""
    (found,) = [row for row in look() if row["name"] == "hip"]
    assert found["devices"] == "0" and "problem" not in found and int(found["version"]) > 40200000
    assert set(found["missing"]) <= {"hipLaunchHostFunc", "hipMallocAsync", "hipFreeAsync"}
    code, text = run({}, "-c", OPEN, "hip")
    assert code == 0 and "devices range(0, 0)\n" in text, text
    assert f"finds no device of AMD ROCm; {ROWS['hip']['mend']}" in text, text


def test_what_the_plugin_needs():
    assert PLUGIN.stat().st_size <= 300_000
    needed = subprocess.run(
        ["readelf", "-d", PLUGIN], capture_output=True, text=True, check=True
    ).stdout
    libraries = {
        line.split("[")[1].split(".so")[0] for line in needed.splitlines() if "(NEEDED)" in line
    }
    ours = {"libpthread", "libdl", "librt", "libstdc++", "libm", "libgcc_s", "libc"}
    assert {name for name in libraries if not name.startswith("ld-linux")} <= ours


def test_nothing_is_opened_before_it_is_asked_for(hip):
    program = "import anyop; print('amdhip64' in open('/proc/self/maps').read())\n"
    program += "from anyop.conformance.device_table import Device; device = Device('hip')\n"
    program += "print('amdhip64' in open('/proc/self/maps').read()); device.devices\n"
    program += "print('amdhip64' in open('/proc/self/maps').read())"
    assert run(hip.environment, "-c", program) == (0, "False\nFalse\nTrue\n")


TORCH = """
import torch
import anyop.torch.device
x = torch.arange(12.0, device="anyop").reshape(3, 4)
print((x @ x.T).softmax(-1).cpu().sum().item(), torch.anyop.get_device_name())
"""


def test_pytorchs_device_over_a_row(tmp_path):
    pytest.importorskip("torch", reason="torch is not installed")
    environment = make("maca", tmp_path).environment | {"ANYOP_DEVICE_PLATFORM": "maca"}
    code, text = run(environment, "-c", TORCH)
    assert code == 0 and text.splitlines()[-1] == "3.0 false MetaX MACA 0 over host", text


def test_the_doctor_lists_runtimes(tmp_path, monkeypatch):
    """A false one is said to be one; one that lacks a name, or ends the process, is a problem of its own alone."""
    for key, value in make("maca", tmp_path).environment.items():
        monkeypatch.setenv(key, value)
    make("tang", tmp_path, lacks=["Malloc"])
    (tmp_path / "crash.c").write_text(
        "void f(void) __attribute__((constructor)); void f(void) { __builtin_trap(); }"
    )
    words = [
        "gcc",
        "-shared",
        "-fPIC",
        str(tmp_path / "crash.c"),
        "-o",
        str(tmp_path / "libtopsrt.so"),
    ]
    subprocess.run(words, check=True)
    found = {finding.name: finding for finding in findings()}
    maca = found["maca runtime"]
    assert maca.state == "ok" and maca.text.startswith(
        f"MetaX MACA in {tmp_path}/libmcruntime.so; version 262"
    )
    assert "a false runtime of tests; 2 devices; lacks mcDeviceGetAttribute" in maca.text
    assert (
        found["tang runtime"].state == "problem"
        and "lacks tangMalloc: it is" in found["tang runtime"].text
    )
    assert found["tops runtime"].text == "opening it ends the process with -4"
    monkeypatch.setenv("ANYOP_RUNTIMES", str(tmp_path))
    (broken,) = findings()
    assert broken.state == "problem" and f"{tmp_path} is no file of rows" in broken.text
