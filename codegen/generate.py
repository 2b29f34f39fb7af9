# SPDX-License-Identifier: Apache-2.0
"""All files of a library of operators: headers and tables, and what is to be compiled."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from .c.cpp import cpp_path, write_cpp
from .c.device_adapter import write_device_adapter
from .c.header import header_path, write_header
from .c.image_adapter import write_image_adapter
from .c.library import write_library
from .c.library_adapter import write_library_adapter
from .c.module_adapter import module_path, write_module_adapter
from .c.table import write_table
from .c.triton_adapter import write_triton_adapter
from .forms.kernels import Kernel
from .operators.folders import read_folders
from .operators.operator_file import Operator
from .python.docs import docstring
from .python.metadata import metadata_json
from .schema.source import Mistake, SchemaError, SchemaErrors


@dataclass
class Generated:
    """Texts by their path below the output folder, and those of them that the C compiler takes.

    linked: objects and archives of the link; embedded: images that the sources hold; bundled: path
    below the folder of the library -> file that must lie there.
    """

    operators: list[Operator]
    files: dict[str, str] = field(default_factory=dict)
    sources: list[str] = field(default_factory=list)
    linked: list[Path] = field(default_factory=list)
    embedded: list[Path] = field(default_factory=list)
    bundled: dict[str, Path] = field(default_factory=dict)


def generate(folders: Iterable[Path], library: str) -> Generated:
    """Reads the folders; raises SchemaErrors with every mistake found."""
    operators, errors = read_folders(folders)
    if errors:
        raise SchemaErrors(errors)
    try:
        return generate_library(operators, library)
    except SchemaError as error:
        raise SchemaErrors([error]) from None


def generate_library(operators: list[Operator], library: str) -> Generated:
    """What the operators need to become the library of that name."""
    made = Generated(operators)
    for op in operators:
        made.files[header_path(op)] = write_header(op)
        made.sources.append(f"{op.namespace}/ops/{op.name}_table.c")
        made.files[made.sources[-1]] = write_table(op, docstring(op), metadata_json(op))
        for kernel in op.kernels:
            _add_kernel(made, op, kernel, library)
    for namespace in sorted({op.namespace for op in operators}):
        of_namespace = [op for op in operators if op.namespace == namespace]
        made.files[cpp_path(namespace)] = write_cpp(namespace, of_namespace)
    made.sources.append(f"{library}_library.c")
    made.files[made.sources[-1]] = write_library(library, operators)
    return made


def _add_kernel(made: Generated, op: Operator, kernel: Kernel, library: str) -> None:
    """What a kernel brings that is not compiled from its own source."""
    made.linked += [file for file in kernel.linked if file not in made.linked]
    path = f"{op.namespace}/ops/{op.name}_{kernel.backend}.c"
    if kernel.form == "image":
        made.files[path] = (
            write_image_adapter(op, kernel)
            if kernel.device == "cuda"
            else write_device_adapter(op, kernel)
        )
        made.embedded += [file for file in kernel.files if file not in made.embedded]
    elif kernel.form == "triton":
        made.files[path] = write_triton_adapter(op, kernel)
    elif kernel.form == "module":
        made.files[path] = write_module_adapter(op, kernel, library)
        _bundle(made, op, kernel, library)
    elif kernel.form == "library":
        made.files[path] = write_library_adapter(op, kernel)
    else:
        return
    made.sources.append(path)


def _bundle(made: Generated, op: Operator, kernel: Kernel, library: str) -> None:
    file = kernel.files[0]
    other = made.bundled.setdefault(module_path(library, kernel), file)
    if other != file:
        with op.source_file.at("kernels", kernel.backend):
            raise Mistake(
                f"two libraries called {file.name}, the other in {other.parent}",
                "names that differ",
                "rename one",
            )
