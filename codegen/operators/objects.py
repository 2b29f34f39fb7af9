# SPDX-License-Identifier: Apache-2.0
"""What operators ask of the objects and libraries that are to be linked: the machine, and their functions."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..forms.binaries import has_name, machine
from ..forms.kernels import Kernel
from ..schema.source import Mistake, SchemaError, SchemaErrors
from .operator_file import Operator


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
