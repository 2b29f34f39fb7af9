# SPDX-License-Identifier: Apache-2.0
"""Images for GPUs in the library: of every CUDA file one for each architecture that CMake was asked for, and PTX."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import anyop
import pytest
from anyop.builder.elf import Elf
from anyop.codegen.operators.operator_file import read_operator

ROOT = Path(__file__).parents[2]
MODULE = Path(anyop._anyop.__file__)
LIBRARY = MODULE.parent / "lib" / "libanyop.so"
MAGIC, KINDS = 0xBA55ED50, {1: "PTX", 2: "code"}  # of nvcc's containers, and of what is in them
Images = list[tuple[str, int]]  # [("PTX", 90), ("code", 80)], sorted


def images(section: bytes) -> list[Images]:
    """What each container holds: there is one for each file that nvcc compiled."""
    found, at = [], 0
    while at + 16 <= len(section):
        magic, _, head, size = struct.unpack_from("<IHHQ", section, at)
        if magic != MAGIC:
            assert not any(section[at : at + 8]), "neither a container nor what lies between them"
            at += 8
            continue
        end, at, held = at + head + size, at + head, []
        while at < end:
            kind, _, head, size, _, _, _, _, arch = struct.unpack_from("<HHIQIIHHI", section, at)
            held.append((KINDS.get(kind, f"kind {kind}"), arch))
            at += head + size
        found.append(sorted(held))
    return found


def named(architectures: str) -> Images:
    """The images that CMAKE_CUDA_ARCHITECTURES asks for: "80-real 90"."""
    found = []
    for arch, only in re.findall(r"(\d+)[af]?(-real|-virtual)?", architectures):
        if only != "-virtual":
            found.append(("code", int(arch)))
        if only != "-real":
            found.append(("PTX", int(arch)))
    return sorted(found)


def asked() -> Images:
    """What CMake was asked for where this library was built, or what it takes unasked."""
    folder = MODULE.parents[2]
    if not (folder / "CMakeCache.txt").is_file():
        folder = ROOT / "build" / "package"
    try:
        cache = (folder / "CMakeCache.txt").read_text()
    except OSError:
        pytest.skip("CMake's folder of this library is not here: nothing says what was asked for")
    given = re.search(r"^CMAKE_CUDA_ARCHITECTURES:\w+=(.+)$", cache, re.M)
    options = (ROOT / "cmake" / "AnyopOptions.cmake").read_text()
    usual = re.search(r"set\(CMAKE_CUDA_ARCHITECTURES ([^)]+)\)", options)
    return named((given or usual)[1])


def files() -> dict[Path, str]:
    """The CUDA files of the operators, with the architectures that their kernels state."""
    kernels = [k for toml in (ROOT / "ops").rglob("*.toml") for k in read_operator(toml).kernels]
    return {f: k.arch for k in kernels for f in k.sources if f.suffix == ".cu"}


def test_every_file_has_every_image():
    held = Elf(str(LIBRARY)).contents(".nv_fatbin")
    if not held:
        pytest.skip("this library was built without CUDA")
    found = images(held[0])
    each = asked()
    expected = [expected_of(a, each) for a in files().values()]
    assert sorted(found) == sorted(expected)


def expected_of(arch: str | None, each: Images) -> Images:
    if arch is None or arch.endswith("+"):
        return each
    if arch.endswith("*"):  # read once: the PTX is of the architecture that it is read for
        least = int(arch[:-1])
        if any(number < least for _, number in each):
            return each
        return sorted({(kind, least if kind == "PTX" else number) for kind, number in each})
    return named(f"{arch}-real")


def test_what_is_built_unasked_serves_every_gpu():
    """Code for 8.0 runs on 8.x, the PTX on all that come after it."""
    options = (ROOT / "cmake" / "AnyopOptions.cmake").read_text()
    usual = named(re.search(r"set\(CMAKE_CUDA_ARCHITECTURES ([^)]+)\)", options)[1])
    assert usual == [("PTX", 90), ("code", 80), ("code", 90)]
    stated = {arch for arch in files().values() if arch}
    assert len(files()) > 50 and {"80+", "80*"} <= stated


def test_a_missing_image_is_seen():
    def container(*held: tuple[int, int]) -> bytes:
        body = b"".join(
            struct.pack("<HHIQIIHHI", kind, 257, 40, 8, 0, 0, 0, 0, arch).ljust(48, b"\1")
            for kind, arch in held
        )
        return struct.pack("<IHHQ", MAGIC, 1, 16, len(body)) + body

    section = container((2, 80), (1, 90), (2, 90)) + b"\0" * 8 + container((2, 90))
    assert images(section) == [named("80-real 90"), named("90a-real")]
    assert named("80-real 90") != named("80 90") != named("80;90-real")
    with pytest.raises(AssertionError):
        images(b"\1" * 64)
