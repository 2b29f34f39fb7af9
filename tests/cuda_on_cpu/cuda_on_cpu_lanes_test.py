# SPDX-License-Identifier: Apache-2.0
"""Portable CUDA kernels on wavefronts of 64 lanes, as AMD's GPUs have: the standard tests, by fibers without a GPU.

What lanes exchange goes by anyop/hip/lanes.h, as it is compiled for HIP, over HIP's functions on fibers
(wave_on_cpu.h): the other half of a wavefront is never read. Three operators, drawn by the commit; all with
ANYOP_TEST_FULL=1.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from anyop import testing

sys.path.insert(0, str(Path(__file__).parent))

from drawn import few
from fibers import COMPILER, FLAGS, HERE, ROOT, compile_kernels, on_fibers, register, remove

pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy is ml_dtypes'")
# Rows, columns that are summed, element by element, lanes that vote, tiles of products.
KINDS = {
    "cuda": [
        "layer_norm", "rms_norm", "l2_normalize", "softmax", "log_softmax", "softmax_backward",
        "layer_norm_backward", "masked_mean", "add", "gelu", "silu_and_mul", "topk", "sort",
        "grouped_linear", "attention", "group_norm",
    ],
    "cuda_tiles": ["linear"],
}  # fmt: skip
DRAWN = few([(name, kind) for kind, names in KINDS.items() for name in names], 3, "lanes")
pytestmark = pytest.mark.drawn(2, together="operators on 64 lanes")


@pytest.fixture(scope="module", autouse=True)
def registered(tmp_path_factory):
    for kind in KINDS:
        if names := [name for name, backend in DRAWN if backend == kind]:
            folder = tmp_path_factory.mktemp(kind)
            register(compile_kernels(folder, names, kind, "-DANYOP_WAVE_ON_CPU=1"), names, kind)
    yield
    remove([name for name, _ in DRAWN])


@pytest.mark.parametrize("name", [name for name, _ in DRAWN])
def test_standard_cases(name):
    (subject,) = (s for s in testing.find_subjects(ROOT / "ops") if s.name == name)
    there = replace(subject.on("cuda"), function=on_fibers(subject.function))
    failures, cases = [], 0
    choices = [c for c in testing.dtype_choices(subject.metadata) if c.is_uniform]
    for choice in few(choices or testing.dtype_choices(subject.metadata), 4, name):
        for case in few(testing.standard_cases(there, choice), 12, f"{name} {choice}"):
            cases += 1
            try:
                testing.check_case(there, case)
            except testing.CheckError as error:
                failures.append(str(error))
    assert not failures, f"{len(failures)} of {cases}:\n" + "\n".join(failures[:8])
    assert cases >= 6


LANES = """
#include "cuda_on_cpu.h"
#include <cstdio>
int main() {
  static unsigned found[6][64];
  const int all = %s;
  cuda_on_cpu::Run(dim3(1), dim3(64), 0, false, [&] {
    const unsigned t = threadIdx.x;
    if (!all && t < 32) return;  // the other half is done
    found[0][t] = __shfl_sync(~0u, t, 3);
    found[1][t] = __shfl_xor_sync(~0u, t, 16);
    found[2][t] = __shfl_up_sync(~0u, t, 1);
    found[3][t] = __shfl_down_sync(~0u, t, 1);
    found[4][t] = __ballot_sync(~0u, t == 5 || t == 33);
    found[5][t] = __reduce_add_sync(~0u, 1u) + __any_sync(~0u, t == 40) + 2 * __all_sync(~0u, t > 31);
  });
  for (auto& row : found) {
    for (unsigned value : row) std::printf("%%u ", value);
    std::printf("\\n");
  }
}
"""


@pytest.mark.parametrize("all_there", [True, False])
def test_a_warp_is_half_a_wavefront(all_there, tmp_path):
    """Each half has its own lanes 0 to 31, also where the other one is gone."""
    (tmp_path / "lanes.cc").write_text(LANES % int(all_there))
    include = [f"-I{HERE}", f"-I{ROOT / 'include'}", "-DANYOP_WAVE_ON_CPU=1"]
    program, files = tmp_path / "lanes", [tmp_path / "lanes.cc", HERE / "cuda_on_cpu.cc"]
    subprocess.run([COMPILER, *FLAGS, *include, *files, "-o", program], check=True, timeout=300)
    done = subprocess.run([program], capture_output=True, text=True, timeout=300)
    rows = [list(map(int, line.split())) for line in done.stdout.splitlines()]
    expected = [
        [half * 32 + 3 for half in (0, 1) for _ in range(32)],
        [t ^ 16 for t in range(64)],
        [t if t % 32 == 0 else t - 1 for t in range(64)],
        [t if t % 32 == 31 else t + 1 for t in range(64)],
        [1 << 5] * 32 + [1 << 1] * 32,
        [32] * 32 + [32 + 1 + 2] * 32,
    ]
    first = 0 if all_there else 32
    assert [row[first:] for row in rows] == [row[first:] for row in expected]
