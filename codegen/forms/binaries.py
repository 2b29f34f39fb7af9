# SPDX-License-Identifier: Apache-2.0
"""What is asked of a ready object, library or CUDA image: its machine or architecture, and which names are in it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ..schema.source import Mistake, SchemaError, SchemaErrors

if TYPE_CHECKING:
    from ..operators.operator_file import Operator
    from .kernels import Kernel

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


def check_machine(operators: Iterable[Operator], target: str) -> None:
    """Refuses objects, archives and modules that are for another machine. Raises SchemaErrors."""
    errors = []
    for op in operators:
        for kernel in op.kernels:
            for file in (*kernel.linked, *(kernel.files if kernel.form == "module" else ())):
                found = machine(file)
                if found != target:
                    line = op.source_file.line("kernels", kernel.backend)
                    what = f"{file.name} is for {found}" if found else f"{file.name} is no ELF file"
                    mistake = Mistake(what, target, "compile it for this machine")
                    errors.append(SchemaError(op.path, line, mistake))
    if errors:
        raise SchemaErrors(errors)


def undefined(op: Operator, kernel: Kernel) -> str:
    """What to say of a kernel's files without its function, of which a linker knows the name alone."""
    files = " and ".join(path.name for path in kernel.files)
    return (
        f"{files} defines no {kernel.function}, expected "
        f'extern "C" int32_t {kernel.function}(const {op.struct}* args, AnyopCall* call)'
    )


def missing_functions(
    operators: Iterable[Operator], objects: Iterable[Path], devices: Iterable[str]
) -> list[str]:
    """One line for each compiled kernel for these devices whose function's name is in none of the objects."""
    held = [path.read_bytes() for path in objects if not path.name.endswith("_table.c.o")]
    return [
        f"{op.path}: {undefined(op, kernel)}"
        for op in operators
        for kernel in op.kernels
        if kernel.form == "source" and kernel.device in devices
        if not any(kernel.function.encode() in data for data in held)
        if not any(has_name(path, kernel.function) for path in kernel.linked)
    ]
