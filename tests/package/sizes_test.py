# SPDX-License-Identifier: Apache-2.0
"""The report of what operators take in the library: read from objects, by a small one."""

import importlib.util
import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools" / "sizes.py"


def test_sections_of_an_object(tmp_path):
    spec = importlib.util.spec_from_file_location("sizes", TOOL)
    sizes = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sizes)
    folder = tmp_path / "CMakeFiles" / "anyop_kernels.dir" / "ops" / "norm"
    folder.mkdir(parents=True)
    source = tmp_path / "a.c"
    source.write_text(
        'const char a[3000] = {1}; const char b[500] __attribute__((section(".nv_fatbin"))) = {1};'
    )
    made = folder / "scale.cu.o"
    subprocess.run(["gcc", "-c", source, "-o", made], check=True)
    ((cpu, gpu),) = sizes.by_operator(tmp_path).values()
    assert 3000 <= cpu < 4000 and 500 <= gpu < 600
    ran = subprocess.run([sys.executable, TOOL, tmp_path], capture_output=True, text=True)
    assert ran.returncode == 0 and "scale" in ran.stdout
    ran = subprocess.run([sys.executable, TOOL, folder], capture_output=True, text=True)
    assert ran.returncode == 1 and "no kernels were built there" in ran.stderr
