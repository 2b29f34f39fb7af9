# SPDX-License-Identifier: Apache-2.0
"""What is asked of a ready object, library or CUDA image: its machine or architecture, and which names are in it."""

from __future__ import annotations

import re
from pathlib import Path

_MACHINES = {62: "x86_64", 183: "aarch64", 190: "CUDA", 21: "ppc64le", 22: "s390x", 243: "riscv64"}
_ARCHIVE, _ENTRY = b"!<arch>\n", 60


def machine(path: Path) -> str | None:
    """The machine ("x86_64") of an ELF file, or of the first one in an archive; None for anything else."""
    data = path.read_bytes()
    if not data.startswith(_ARCHIVE):
        return _machine(data)
    at = len(_ARCHIVE)
    while at + _ENTRY <= len(data):
        try:
            size = int(data[at + 48 : at + 58])
        except ValueError:
            return None
        if found := _machine(data[at + _ENTRY : at + _ENTRY + 20]):
            return found
        at += _ENTRY + size + size % 2
    return None


def _machine(head: bytes) -> str | None:
    if head[:4] != b"\x7fELF" or len(head) < 20:
        return None
    number = int.from_bytes(head[18:20], "little" if head[5] == 1 else "big")
    return _MACHINES.get(number, f"machine {number}")


def cuda_arch(path: Path) -> int:
    """90 of a cubin for sm_90 or sm_90a, or of PTX; 0 of what holds several or does not tell."""
    data = path.read_bytes()
    if path.suffix == ".ptx":
        target = re.search(rb"^\.target\s+sm_(\d+)", data, re.M)
        return int(target[1]) if target else 0
    if _machine(data) != "CUDA" or len(data) < 64:
        return 0
    flags = int.from_bytes(data[48:52], "little")
    return flags >> 8 & 0xFF if data[8] >= 8 else flags & 0xFF  # by the version of CUDA's ELF ABI


def names(path: Path, pattern: bytes) -> list[str]:
    """The NUL-terminated names in a file that the pattern matches whole; its first group, where it has one."""
    found = re.findall(rb"(?<=\0)" + pattern + rb"(?=\0)", path.read_bytes())
    return sorted({name.decode("ascii", "replace") for name in found})


def has_name(path: Path, name: str) -> bool:
    """Whether a file holds the symbol's name."""
    return b"\0" + name.encode() + b"\0" in path.read_bytes()
