# SPDX-License-Identifier: Apache-2.0
"""The tree's CUDA kernels that are not Hopper's own, compiled for AMD's GPUs by the headers of anyop/hip.

To assembly: neither device libraries nor a device are needed, and nothing is run. Two files, drawn by the commit, each
for one GPU; all for both with ANYOP_TEST_FULL=1.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import anyop
import pytest
from anyop.codegen.operators.operator_file import read_operator

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "shared"))
from drawn import few  # noqa: E402

CLANG = next(filter(None, map(shutil.which, ("clang++-21", "clang++-20", "clang++-19"))), None)
if CLANG is None or not Path("/usr/include/hip/hip_runtime.h").exists():
    pytest.skip(
        "no clang of 19 or later, or no headers of HIP (Debian: clang-19 libamdhip64-dev)",
        allow_module_level=True,
    )
# Read where the file is from: whether it is read once for all GPUs, as the build tells it.
PORTABLE = {
    source: "*" in kernel.arch
    for file in sorted((ROOT / "ops").rglob("*.toml"))
    for kernel in read_operator(file).kernels
    if kernel.device == "cuda" and kernel.arch and not kernel.arch.startswith("90")
    for source in kernel.sources
    if source.suffix == ".cu"
}


def compile_hip(source: Path, *flags: str) -> str:
    """What clang makes of it. anyop/hip stands before anyop's own headers."""
    include = Path(anyop.include_dir())
    places = (include / "anyop" / "hip", include)
    words = ["-x", "hip", "-std=c++17", "-D__CUDACC__", "-nogpulib", "-w"]
    words += [f"-DANYOP_READ_ONCE={PORTABLE.get(source, False):d}", *(f"-I{p}" for p in places)]
    command = [CLANG, *words, *flags, str(source), "-o", "-"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[:4000]
    return done.stdout


@pytest.mark.drawn(2)
@pytest.mark.parametrize("arch", ["gfx90a", "gfx942"])
@pytest.mark.parametrize("source", few(list(PORTABLE), 2, "hip"), ids=lambda path: path.stem)
def test_a_kernel_is_compiled(source, arch):
    device = compile_hip(source, f"--offload-arch={arch}", "--offload-device-only", "-O1", "-S")
    assert f"amdgcn-amd-amdhsa--{arch}" in device
    if "__global__" in source.read_text():
        assert ".amdhsa_kernel" in device
    if arch == "gfx90a":  # what starts them is the same for all
        compile_hip(source, f"--offload-arch={arch}", "--offload-host-only", "-fsyntax-only")


def test_there_are_such_files():
    """What only CUDA's toolkit compiles is Hopper's alone, and each of these has a portable twin."""
    assert len(PORTABLE) >= 150
    assert not [path.name for path in PORTABLE if "sm90" in path.name]


def test_lanes_are_those_of_a_warp(tmp_path):
    """A vote of a wavefront of 64 lanes is shifted to the half that asks: a kernel that counts, seen in its code."""
    source = tmp_path / "count.cu"
    source.write_text(
        '#include "anyop/cuda.h"\n'
        "__global__ void Count(unsigned* out, const int* x) {\n"
        "  out[threadIdx.x] = __ballot_sync(~0u, x[threadIdx.x]);\n}\n"
    )
    device = compile_hip(source, "--offload-arch=gfx90a", "--offload-device-only", "-O1", "-S")
    assert "v_lshrrev_b64" in device and "v_cmp_ne_u32" in device
