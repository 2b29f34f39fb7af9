# SPDX-License-Identifier: Apache-2.0
"""examples/hopper_product on the CPU and in the docs; the programs of cuda_hopper.py, which run on a GPU, compile."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import anyop
import pytest
from drawn import FULL

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "hopper_product" / "ops"
PRIMITIVES = ROOT / "tests" / "hopper" / "primitives.cu"
NVCC = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
HOPPER = ["-std=c++17", "-O1", "--expt-relaxed-constexpr", "-gencode=arch=compute_90a,code=sm_90a"]
CHECK = """
import sys, anyop
from anyop import testing
anyop.load(sys.argv[1])
(subject,) = testing.find_subjects(sys.argv[2])
(choice,) = testing.dtype_choices(subject.metadata)
cases = list(testing.standard_cases(subject, choice))
for case in cases:
    testing.check_case(subject, case)
print(len(cases))
"""


@pytest.mark.drawn(3, together="examples/hopper_product")
def test_the_example_on_the_cpu(tmp_path):
    pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy is an ml_dtypes array")
    try:
        library = anyop.build(FOLDER, out=tmp_path, name="hopper", backends=["cpu"])
    except anyop.MissingToolError as error:
        pytest.skip(str(error))
    # A process of its own: a library that is loaded stays.
    command = [sys.executable, "-c", CHECK, library, FOLDER]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 30


def test_the_docs_show_the_example():
    text = (FOLDER / "product_sm90.cu").read_text()
    assert f"```cuda\n{text}```" in (ROOT / "docs" / "devices.md").read_text()


@pytest.mark.skipif(not NVCC, reason="there is no nvcc")
@pytest.mark.skipif(not FULL, reason="compiles for half a minute: make test-full")
def test_the_programs_compile(tmp_path):
    command = [NVCC, *HOPPER, f"-I{ROOT / 'include'}", PRIMITIVES, "-o", tmp_path / "primitives"]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    names = subprocess.run([tmp_path / "primitives"], capture_output=True, text=True).stdout.split()
    assert len(names) == len(set(names)) >= 17
