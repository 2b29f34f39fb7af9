# SPDX-License-Identifier: Apache-2.0
"""Libraries for another processor: built, put into wheels, and refused by name where they cannot run.

That they compute rightly is tested in an emulator: tools/aarch64.py.
"""

import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import anyop
import pytest
from anyop.builder.elf import Elf
from anyop.builder.errors import BuildError
from anyop.builder.wheel import build_wheel
from anyop.builder.wheel_platform import platform_tag

COMPILER = "aarch64-linux-gnu-g++"
MACHINE = os.uname().machine
OTHER = "s390x" if MACHINE == "aarch64" else "aarch64"
NUMBERS = {"aarch64": 183, "s390x": 22}  # e_machine
FOLDER = Path(__file__).parents[1] / "abi" / "0.1"  # of which blend.toml and blend.cc are taken


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("ANYOP_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "blend").mkdir()
    for name in ("blend.toml", "blend.cc"):
        shutil.copy(FOLDER / name, tmp_path / "blend")
    return tmp_path / "blend"


def foreign(path: Path) -> Path:
    """A library that says it is for another processor."""
    source = path.with_suffix(".c")
    source.write_text("int AnyopLibraryEntry(void) { return 0; }")
    subprocess.run(["gcc", "-shared", "-fPIC", str(source), "-o", str(path)], check=True)
    data = bytearray(path.read_bytes())
    data[18:20] = NUMBERS[OTHER].to_bytes(2, "little")
    path.write_bytes(data)
    return path


def test_a_library_for_another_machine_is_refused_by_name(tmp_path):
    path = foreign(tmp_path / "libother.so")
    before = anyop.list_ops()
    says = re.escape(f"{path} is for {OTHER}, this machine is {MACHINE}")
    for given in (path, tmp_path):
        with pytest.raises(ValueError, match=says):
            anyop.load(given)
    assert anyop.list_ops() == before
    assert "libother" not in Path("/proc/self/maps").read_text()


def test_a_wheel_is_for_one_machine_and_one_that_wheels_are_for(tmp_path):
    path = foreign(tmp_path / "libother.so")
    shutil.copy(path.with_suffix(".c"), tmp_path / "own.c")
    own = tmp_path / "own.so"
    subprocess.run(["gcc", "-shared", "-fPIC", str(tmp_path / "own.c"), "-o", str(own)], check=True)
    with pytest.raises(BuildError, match=f"libraries for {' and '.join(sorted((MACHINE, OTHER)))}"):
        platform_tag([str(own), str(path)])
    path.write_bytes(path.read_bytes()[:18] + (243).to_bytes(2, "little") + path.read_bytes()[20:])
    with pytest.raises(BuildError, match="no manylinux wheel for riscv64, expected x86_64 or"):
        platform_tag([str(path)])


def test_cross_compiled_library_and_wheel(folder, tmp_path):
    if not shutil.which(COMPILER):
        pytest.skip(f"{COMPILER} is not installed (Debian: g++-aarch64-linux-gnu)")
    toolchains = {"host": COMPILER}
    library = anyop.build(folder, toolchains=toolchains)
    assert Elf(library).machine == "aarch64"
    wheel = Path(build_wheel(folder, tmp_path, name="acme", version="1", toolchains=toolchains))
    assert wheel.name == "acme-1-py3-none-manylinux_2_17_aarch64.whl"
    with zipfile.ZipFile(wheel) as archive:
        archive.extract("acme/libacme.so", tmp_path)
    inside = Elf(str(tmp_path / "acme" / "libacme.so"))
    assert inside.machine == "aarch64" and inside.exported == {"AnyopLibraryEntry"}
    if MACHINE != "aarch64":
        for path in (library, tmp_path / "acme" / "libacme.so"):
            with pytest.raises(ValueError, match=f"is for aarch64, this machine is {MACHINE}"):
                anyop.load(path)
    here = anyop.build(folder)
    assert here != library and Elf(here).machine == MACHINE  # the cache knows them apart


def test_a_toolchain_that_is_not_there_is_named(folder, tmp_path, monkeypatch):
    (tmp_path / "nothing").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(anyop.MissingToolError, match=r"aarch64-linux-gnu-g\+\+"):
        build_wheel(folder, tmp_path, name="acme", version="1", toolchains={"host": COMPILER})
    assert not list(tmp_path.glob("*.whl"))
