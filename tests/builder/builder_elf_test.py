# SPDX-License-Identifier: Apache-2.0
"""What is read of libraries: machine, exported and needed names; those of another machine are never loaded."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
from pathlib import Path

import anyop
import anyop.builder
import pytest
import small_builds as sb
from anyop.builder.elf import Elf, NotElf, machine_of

cache_folder = sb.cache_folder
OTHER = "aarch64-linux-gnu-g++"


@pytest.fixture
def library(tmp_path) -> Path:
    """A library with an exported, a hidden and a weak function, which needs libm."""
    if not sb.GXX:
        pytest.skip("there is no g++")
    source = tmp_path / "x.cc"
    source.write_text(
        '#include <cmath>\nextern "C" double shown(double x) { return std::sin(x); }\n'
        'extern "C" __attribute__((visibility("hidden"))) int hidden_one() { return 1; }\n'
        'extern "C" __attribute__((weak)) int weak_one();\nint use() { return weak_one ? weak_one() : 0; }\n'
    )
    command = [sb.GXX, "-shared", "-fPIC", str(source), "-o", str(tmp_path / "libx.so"), "-lm"]
    subprocess.run(command, check=True)
    return tmp_path / "libx.so"


def test_it_reads_what_nm_and_readelf_read(library):
    found = Elf(str(library))
    assert found.machine == machine_of(str(library)) == os.uname().machine
    assert {"shown", "_Z3usev"} <= found.exported and "hidden_one" not in found.exported
    assert "sin" in found.undefined and "weak_one" not in found.undefined
    assert "libm.so.6" in found.needed
    if not (nm := shutil.which("nm")):
        pytest.skip("there is no nm to compare with")
    text = subprocess.run(
        [nm, "-D", "--defined-only", library], capture_output=True, text=True
    ).stdout
    assert found.exported == {line.split()[-1].split("@")[0] for line in text.splitlines()}
    (sine,) = [symbol for symbol in found.symbols() if symbol.name == "sin"]
    assert re.fullmatch(r"GLIBC_2\.\d+(\.\d+)?", sine.version)


def test_damaged_files_are_refused_and_never_hang(library, tmp_path):
    good, draw, path = library.read_bytes(), random.Random(3), tmp_path / "damaged.so"
    headers = len(good) - 64 * 40  # the section headers lie at the end
    refused = 0
    for number in range(600):
        data = bytearray(good)
        if number % 4 == 0:
            del data[draw.randrange(len(data)) :]
        else:
            low, high = ((0, 64), (headers, len(data)), (0, len(data)))[number % 3]
            data[draw.randrange(low, high)] = draw.randrange(256)
        path.write_bytes(data)
        try:
            found = Elf(str(path))
            _ = found.exported, found.undefined, found.needed, found.symbols("static")
        except NotElf as error:
            assert str(path) in str(error)
            refused += 1
    assert refused > 100


@pytest.mark.parametrize(
    "data", [b"", b"\x7fELF", b"#!/bin/sh\n" * 20, b"\x7fELF\x01\x01" + bytes(90)]
)
def test_what_is_no_library_is_refused(data, tmp_path):
    (tmp_path / "x.so").write_bytes(data)
    assert machine_of(str(tmp_path / "x.so")) is None
    with pytest.raises(NotElf, match=r"x\.so is no 64-bit ELF file"):
        Elf(str(tmp_path / "x.so"))
    with pytest.raises(ValueError, match=r"x\.so"):
        anyop.load(tmp_path / "x.so")


def test_a_library_of_another_machine_is_refused(library, tmp_path):
    data = bytearray(library.read_bytes())
    other = 183 if data[18] == 62 else 62
    data[18:20] = other.to_bytes(2, "little")
    (tmp_path / "other.so").write_bytes(data)
    machine = {183: "aarch64", 62: "x86_64"}[other]
    with pytest.raises(
        ValueError, match=f"other.so is for {machine}, this machine is {os.uname().machine}"
    ):
        anyop.load(tmp_path / "other.so")


@sb.needs_compiler
def test_a_cross_compiled_library_has_entries_of_its_own(cache_folder, tmp_path):
    if not shutil.which(OTHER):
        pytest.skip(f"there is no {OTHER}")
    if os.uname().machine == "aarch64":
        pytest.skip("this machine is an aarch64 itself")
    folder = sb.write_operator(tmp_path / "ops")
    here = sb.build(folder)
    there = sb.build(folder, toolchains={"host": OTHER})
    assert [Elf(str(path)).machine for path in (here, there)] == [os.uname().machine, "aarch64"]
    assert here.parent.parent != there.parent.parent
    assert sb.call(folder, sb.environment(cache_folder)) == "6.0"
    assert "is for aarch64, this machine is" in sb.call(there, sb.environment(cache_folder))


@sb.needs_compiler
def test_a_compiler_for_another_machine_is_an_error(cache_folder, tmp_path, monkeypatch):
    """CXX names it, but nothing says that it should be for another machine."""
    if not shutil.which(OTHER) or os.uname().machine == "aarch64":
        pytest.skip(f"there is no {OTHER}, or this is an aarch64 itself")
    monkeypatch.setenv("CXX", OTHER)
    with pytest.raises(anyop.BuildError, match=r"libops\.so is for aarch64, expected"):
        anyop.build(sb.write_operator(tmp_path / "ops"))
    assert sb.entries(cache_folder) == []
