# SPDX-License-Identifier: Apache-2.0
"""What the built libraries show: exported symbols, the libraries they need, where they look."""

import re
import subprocess
from pathlib import Path

import anyop
import pytest
from anyop.builder.elf import Elf
from anyop.builder.wheel_platform import glibc_for

LISTED = Path(__file__).resolve().parents[2] / "src" / "core" / "api" / "exports.txt"
MODULE = Path(anyop._anyop.__file__)
LIBRARY = MODULE.parent / "lib" / "libanyop.so"
SYSTEM = {
    "libstdc++.so.6",
    "libgcc_s.so.1",
    "libm.so.6",
    "libc.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "librt.so.1",
}
SYSTEM |= {"ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}  # thread-local storage


def run(*command: object) -> str:
    return subprocess.run([*map(str, command)], capture_output=True, text=True, check=True).stdout


def exported(path: Path) -> set[str]:
    lines = run("nm", "-DC", "--defined-only", path).splitlines()
    return {line.split(maxsplit=2)[2] for line in lines}


def listed() -> set[str]:
    lines = LISTED.read_text().splitlines()
    return {line for line in lines if line and not line.startswith("#")}


def test_exported_symbols_are_the_listed_ones():
    assert exported(LIBRARY) == listed()
    assert exported(MODULE) == {"PyInit__anyop"}


def test_little_is_kept_for_each_thread():
    """The loader gives every thread that calls an operator zeroed memory for all of it."""
    lines = run("readelf", "-lW", LIBRARY).splitlines()
    sizes = [int(line.split()[5], 16) for line in lines if line.split()[:1] == ["TLS"]]
    assert len(sizes) == 1
    assert sizes[0] <= 16 << 10


def test_every_function_of_the_c_header_is_exported():
    header = Path(anyop.include_dir(), "anyop", "anyop.h").read_text()
    declared = set(re.findall(r"^ANYOP_API .*?(Anyop\w+)\(", header, re.M))
    assert len(declared) > 10
    assert declared <= exported(LIBRARY)


@pytest.mark.parametrize("path", [LIBRARY, MODULE], ids=lambda path: path.name)
def test_every_symbol_is_as_old_as_the_wheel_promises(path):
    """manylinux_2_28, the oldest that `make wheel` takes; each newer symbol is named."""
    library = Elf(str(path))
    if any(re.match(r"lib(asan|ubsan|tsan)\.so", name) for name in library.needed):
        pytest.skip("a build with sanitizers stays on its machine")
    asked = [s for s in library.symbols() if not s.defined and s.version]
    assert len(asked) > 50
    newer = [f"{s.name}@{s.version}" for s in asked if glibc_for(s.version, s.name, str(path)) > 28]
    assert newer == [], (
        "cmake/older_libstdcxx.S and python/anyop/builder/older_glibc.S lead to older ones"
    )


@pytest.mark.parametrize("path", [LIBRARY, MODULE], ids=lambda path: path.name)
def test_only_the_runtime_of_cxx_is_needed(path):
    dynamic = run("readelf", "-d", path)
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
    own = {"libanyop.so"} if path == MODULE else set()
    sanitizers = {name for name in needed if re.match(r"lib(asan|ubsan|tsan)\.so", name)}
    assert own <= needed <= SYSTEM | own | sanitizers
    assert "NOW" in dynamic
    paths = re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", dynamic)
    assert [entry.strip(":") for entry in paths] == (["$ORIGIN/lib"] if path == MODULE else [])


def test_libanyop_stays_for_ever():
    """Its threads run until the process ends: it must not be unloaded under them."""
    assert "NODELETE" in run("readelf", "-d", LIBRARY)


def test_module_keeps_to_the_limited_api():
    """Py_LIMITED_API hides the rest from the compiler; nothing private comes in by another way."""
    undefined = run("nm", "-D", "--undefined-only", MODULE)
    used = set(re.findall(r"\b(_?Py\w+)", undefined))
    assert len(used) > 20
    private = {name for name in used if name.startswith("_Py") and not name.endswith("_SizeT")}
    assert private <= {"_Py_Dealloc", "_Py_NoneStruct", "_Py_TrueStruct", "_Py_FalseStruct"}
    assert MODULE.name.endswith(".abi3.so")
