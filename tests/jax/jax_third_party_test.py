# SPDX-License-Identifier: Apache-2.0
"""Operators of others on JAX's arrays: lists, changed arguments, optional results, every kind of attribute."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import anyop
import pytest

pytest.importorskip("jax", reason="jax is not installed")
TESTS = Path(__file__).parents[1]
pytestmark = pytest.mark.drawn(2, together="odd operators in JAX")


def build(folder, out):
    """The library of a folder of operators."""
    name = folder.name
    generator = [sys.executable, "-m", "anyop.codegen", "--out", out, "--library", name]
    subprocess.run([*generator, folder], check=True)
    flags = ["-O1", "-fPIC", "-fvisibility=hidden", f"-I{anyop.include_dir()}", f"-I{out}"]
    objects = []
    for source in [*out.rglob("*.c"), *folder.glob("*.cc")]:
        objects.append(out / f"{source.stem}.o")
        compiler = ["g++", "-std=c++17"] if source.suffix == ".cc" else ["gcc"]
        subprocess.run([*compiler, *flags, "-c", source, "-o", objects[-1]], check=True)
    library = out / f"lib{name}.so"
    subprocess.run(["g++", "-shared", *objects, "-o", library], check=True)
    return library


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    return [
        build(folder, tmp_path_factory.mktemp(folder.name))
        for folder in (TESTS / "third_party" / "odd", TESTS / "probe")
    ]


@pytest.mark.parametrize("when", ["before", "after"])
def test_odd_operators(libraries, when):
    """In a process of its own: a library that is loaded stays. It is loaded before or after anyop.jax."""
    program = TESTS / "third_party" / "jax_program.py"
    command = [sys.executable, program, *map(str, libraries), when]
    found = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr[-4000:]
    assert "odd operators are right" in found.stdout
