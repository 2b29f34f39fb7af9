# SPDX-License-Identifier: Apache-2.0
"""A library that was cut off, or is no file, is refused by everything that opens one; no process ends by a signal."""

import os
import subprocess
import sys
from pathlib import Path

import anyop
import pytest
import small_builds as sb

cache_folder = sb.cache_folder
pytestmark = sb.needs_compiler
LENGTHS = 46
PACKAGE = Path(anyop._anyop.__file__).parent
# Ways to open a library at `path`; each raises where it is refused.
WAYS = {
    "load": "anyop.load(path)",
    "device": """
import ctypes
core = ctypes.CDLL(os.path.join(os.path.dirname(anyop._anyop.__file__), "lib", "libanyop.so"))
core.AnyopLastError.restype = ctypes.c_char_p
if core.AnyopLoadDevice(path.encode()):
    raise ValueError(core.AnyopLastError().decode())
""",
    "torch_glue": "anyop._anyop.open_torch_glue(path, '0')",
    "paddle_glue": "anyop._anyop.open_paddle_glue(path, '0')",
    "tvm_ffi": """
if problem := anyop._anyop.register_tvm_ffi(path):
    raise ValueError(problem)
""",
    "import_module": """
from anyop.builder.import_module import import_module
import_module(path, out=path + ".drafts")
""",
}
# Opens the library at each length; says "whole" where the way took it or refused only what it holds.
PROGRAM = """
import os, sys
os.environ["PATH"] = os.path.dirname(sys.executable)
import importlib.util as u, importlib.machinery as m
if sys.argv[1] == "tvm_ffi":  # a copy that is loaded goes first
    find = u.find_spec
    u.find_spec = lambda name, *rest: None if name == "tvm_ffi" else find(name, *rest)
import anyop
whole, code, lengths = sys.argv[2], sys.argv[3], map(int, sys.argv[4:])
data = open(whole, "rb").read()
for length in lengths:
    path = f"{whole}.{length}.so"
    with open(path, "wb") as stream:
        stream.write(data[:length])
    try:
        exec(code)
        print(length, "taken", flush=True)
    except Exception as error:
        print(length, type(error).__name__, error, flush=True)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    """A built library, and its ELF part's size."""
    folder = tmp_path_factory.mktemp("whole")
    before = dict(os.environ)
    os.environ["ANYOP_CACHE_DIR"] = str(folder / "cache")
    try:
        return Path(anyop.build(sb.write_operator(folder / "ops"), out=folder / "out"))
    finally:
        os.environ.clear()
        os.environ.update(before)


def outcomes(way: str, library: Path, lengths: list[int], folder: Path) -> list[str]:
    """What became of each length."""
    copy = folder / "libacme.so"
    copy.write_bytes(library.read_bytes())
    words = [sys.executable, "-c", PROGRAM, way, copy, WAYS[way], *lengths]
    done = subprocess.run(
        list(map(str, words)), env=sb.environment(folder / "cache"), capture_output=True, text=True, timeout=120
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert done.returncode == 0, (
        f"ended with {done.returncode} at {lengths[len(lines)]} bytes: {done.stderr}"
    )
    return lines


@pytest.mark.parametrize("way", WAYS)
def test_no_length_ends_the_process(way, library, tmp_path):
    size = library.stat().st_size - 16  # without the checksum
    lengths = [size * k // LENGTHS for k in range(1, LENGTHS)] + [size - 1]
    lines = outcomes(way, library, lengths, tmp_path)
    assert len(lines) == LENGTHS
    refused = [
        line
        for line in lines
        if "Error" in line and ("cut off" in line or "too short" in line or "header" in line)
    ]
    assert refused == lines


def test_the_whole_library_is_taken(library, tmp_path):
    size = library.stat().st_size
    assert outcomes("load", library, [size], tmp_path) == [f"{size} taken"]


def test_a_checksum_of_other_bytes_is_refused(library, tmp_path):
    """Of a build's own library outside the cache, too, each flipped bit is seen."""
    data = bytearray(library.read_bytes())
    data[len(data) // 2] ^= 4
    damaged = tmp_path / "libacme.so"
    damaged.write_bytes(data)
    assert "not what was built" in sb.call(damaged, sb.environment(tmp_path / "cache"))
    stripped = tmp_path / "stripped.so"  # which drops the checksum
    subprocess.run(["strip", "-o", stripped, library], check=True)
    assert sb.call(stripped, sb.environment(tmp_path / "cache")) == "6.0"


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_what_is_no_file_is_refused(kind, library, tmp_path):
    path = tmp_path / "libacme.so"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    said = sb.call(path, sb.environment(tmp_path / "cache"))
    assert said.startswith(("ValueError: ", "OSError: ")) and str(path) in said


def test_the_device_of_torch(library, tmp_path):
    """The part of anyop that `import torch` runs has a check of its own."""
    pytest.importorskip("torch")
    from anyop.native import device_file as entry

    data = library.read_bytes()
    for length in (100, 5000, len(data) // 2, len(data) - 17):
        cut = tmp_path / "cut.so"
        cut.write_bytes(data[:length])
        with pytest.raises(ValueError, match="is cut off"):
            entry.open_library(str(cut), str(PACKAGE / "lib" / "libanyop.so"))
    entry.check_whole(str(library))
