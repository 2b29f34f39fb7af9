# SPDX-License-Identifier: Apache-2.0
"""The README's operator, as it is written there: built, called from Python, its C++ line compiled."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import anyop
import prepared
import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("jax", reason="JAX is not installed")

README = (Path(__file__).parents[2] / "README.md").read_text()


def block(language: str, after: str = "") -> str:
    found = re.search(rf"```{language}\n(.*?)```", README[README.index(after) :], re.S)
    assert found, language
    return found[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("readme")
    (root / "ops" / "acme").mkdir(parents=True)
    (root / "ops" / "acme" / "scale.toml").write_text(block("toml"))
    (root / "ops" / "acme" / "scale.cc").write_text(block("cpp", "`ops/acme/scale.cc`"))
    return root


def test_the_python_lines(folder):
    """All but the last call run; the last raises what its comment says."""
    code = block("python")
    good, bad = code.split("anyop.ops.acme.scale(\n", 1)
    message = re.search(r"TypeError: (.*)", bad)[1]
    program = f"""
import anyop, jax, jax.numpy as jnp, numpy as np, torch
y = torch.empty(3)
{good}
assert (anyop.ops.acme.scale(np.ones(3, np.float32)) == 2).all()
assert (y == 5).all()
assert (jax.jit(anyop.ops.acme.scale)(jnp.ones(3)) == 2).all()
try:
    anyop.ops.acme.scale(
{bad}
except TypeError as error:
    assert str(error) == {message!r}, error
else:
    raise SystemExit("no error")
print("as it says")
"""
    program = program.replace(
        "try:\n    anyop.ops.acme.scale(\n", "try:\n  anyop.ops.acme.scale(\n"
    )
    done = prepared.run(
        "torch",
        [sys.executable, "-c", program],
        cwd=folder,
        timeout=300,
    )
    assert done.returncode == 0 and "as it says" in done.stdout, done.stderr + program


def test_the_cpp_line(folder):
    library = anyop.build(folder / "ops" / "acme", out=folder / "built")
    assert Path(library).name == "libacme.so"
    lines = block("cpp", "\nC++\n").splitlines()
    program = [
        lines[0],
        '#include "anyop/tensor.h"',
        "void call(const anyop::Tensor& x) {",
        *lines[1:],
        "(void)y; }",
    ]
    (folder / "call.cc").write_text("\n".join(program) + "\n")
    command = ["g++", "-std=c++17", "-fsyntax-only", f"-I{folder / 'built' / 'include'}"]
    command += [f"-I{anyop.include_dir()}", str(folder / "call.cc")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
