# SPDX-License-Identifier: Apache-2.0
"""docs/kernel_headers.md: each header has its part, each example is in the operator it names. docs/porting.md: its
operator for CUDA compiles.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import anyop
import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "kernel_headers.md").read_text()
PARTS = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", PAGE, re.S | re.M))
HEADERS = {
    path.relative_to(ROOT / "include" / "anyop").as_posix()
    for pattern in ("cpu.h", "cuda.h", "cpu/*.h", "cuda/*.h", "forms/cuda_*.h")
    for path in (ROOT / "include" / "anyop").glob(pattern)
}


def test_every_header_has_its_part():
    assert set(PARTS) == HEADERS
    for name in HEADERS:
        assert f"(#{re.sub('[./]', '', name)})" in PAGE


@pytest.mark.parametrize("name", sorted(PARTS))
def test_examples_are_the_operators(name):
    blocks = re.findall(r"```cpp\n(.*?)```", PARTS[name], re.S)
    sources = re.findall(r"From\s+`([^`]+)`", PARTS[name])
    assert bool(blocks) == bool(sources) and (blocks or "    " in PARTS[name])
    for block in blocks:
        assert any(block.rstrip("\n") in (ROOT / source).read_text() for source in sources), block


def test_the_ported_cuda_operator_compiles(tmp_path):
    if not (shutil.which("nvcc") or Path("/usr/local/cuda/bin/nvcc").exists()):
        pytest.skip("nvcc is not here")
    page = (ROOT / "docs" / "porting.md").read_text()
    (text,) = re.findall(r"```toml\n(schema = \"port::peak_norm.*?)```", page, re.S)
    cuda = re.findall(r"```cuda\n(.*?)```", page, re.S)
    assert len(cuda) == 2
    (tmp_path / "peak_norm.toml").write_text(text)
    includes = '#include "anyop/cuda.h"\n#include "port/ops/peak_norm.h"\n\n'
    (tmp_path / "peak_norm.cu").write_text(includes + "\n".join(cuda))
    library = anyop.build(tmp_path, arch="80")
    assert b"port_peak_norm_cuda" in Path(library).read_bytes()
