# SPDX-License-Identifier: Apache-2.0
"""What ptxas says of attention's CUDA kernels: no register in local memory, wgmma not serialized, setmaxnreg heeded.

ptxas says so in notes that fail no build and cost multiples. At one commit of three one file and architecture is
compiled, drawn by the commit; all with ANYOP_TEST_FULL=1.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from anyop.codegen.operators.operator_file import read_operator

sys.path.insert(0, str(Path(__file__).parent))
from drawn import few
from fibers import headers

ROOT = Path(__file__).parents[2]
NVCC = shutil.which(os.environ.get("CUDACXX", "nvcc"))
FLAGS = ["-std=c++17", "-O3", "--expt-relaxed-constexpr", "-Xptxas", "-v", "-cubin", "-o"]
FILES = sorted((ROOT / "ops" / "attention").glob("*.cu"))
CASES = [
    (file, arch)
    for file in FILES
    for arch in (("90a",) if file.stem.endswith("_sm90") else ("80", "90"))
]
KERNELS = [k for toml in FILES[0].parent.glob("*.toml") for k in read_operator(toml).kernels]
ONCE = {f: k.arch[:-1] for k in KERNELS if k.arch and k.arch.endswith("*") for f in k.sources}
# Bytes that a kernel may read back from local memory, the most of a file. This list may only shrink.
SPILLED = {("attention", "80"): 20, ("attention_backward", "80"): 8, ("attention_paged", "80"): 8}
# C7504 and C7508: setmaxnreg is ignored. C7510 to C7520: wgmma is serialized, or is waited for in between; C7519 says
# that a fence was added, which does no harm.
NOTES = re.compile(r"C75(?:0[48]|1[0-8]|20)|serializ|setmaxnreg ignored")


def compiled(file: Path, arch: str, folder: Path) -> str:
    """What nvcc and ptxas print."""
    include = [f"-I{place}" for place in (ROOT / "include", headers(), file.parent)]
    target = f"-gencode=arch=compute_{ONCE.get(file, arch)},code=sm_{arch}"  # as it is built
    command = [str(NVCC), *FLAGS, str(folder / "made.cubin"), target, *include, str(file)]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr[-4000:]
    return found.stdout + found.stderr


def complaints(text: str, allowed: int = 0) -> list[str]:
    """Functions that read back more bytes of spills, and notes about wgmma and setmaxnreg."""
    lines, found = text.splitlines(), []
    for at, line in enumerate(lines):
        spilled = re.search(r"(\d+) bytes spill loads", line)
        if spilled and int(spilled[1]) > allowed:
            found.append(f"{lines[at - 1].strip()}: {line.strip()}")
        if NOTES.search(line):
            found.append(line.strip())
    return found


@pytest.mark.drawn(3, together="ptxas")
@pytest.mark.skipif(NVCC is None, reason="nvcc is not here: nothing compiles CUDA kernels")
@pytest.mark.parametrize(
    ("file", "arch"), few(CASES, 1, "ptxas"), ids=lambda v: getattr(v, "stem", v)
)
def test_nothing_spills_and_nothing_is_serialized(file, arch, tmp_path):
    text = compiled(file, arch, tmp_path)
    assert "registers" in text, "ptxas says how many registers each kernel has"
    assert not complaints(text, SPILLED.get((file.stem, arch), 0))


SPILLS = """
__global__ __launch_bounds__(1024, 2) void Spills(float* x) {
  float held[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) held[i] = x[threadIdx.x + 1024 * i];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 64; ++i) x[threadIdx.x + 1024 * i] = held[i] * held[63 - i];
}
"""


@pytest.mark.skipif(NVCC is None, reason="nvcc is not here: nothing compiles CUDA kernels")
def test_a_spill_is_seen(tmp_path):
    file = tmp_path / "spills.cu"
    file.write_text(SPILLS)
    assert any("Spills" in line for line in complaints(compiled(file, "80", tmp_path)))
