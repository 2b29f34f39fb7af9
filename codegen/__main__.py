# SPDX-License-Identifier: Apache-2.0
"""python -m codegen --out DIR [--library NAME] [--what tables|stubs|docs|list|functions] OPS_DIR..."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .c.header import header_path
from .forms.kernels import Kernel
from .generate import Generated, generate_library
from .gpu_record import untested
from .operators.folders import read_folders
from .operators.objects import missing_functions
from .operators.operator_file import Operator
from .python.docs import reference_page
from .python.stubs import write_all_stubs
from .schema.operator_sections import BACKENDS
from .schema.source import SchemaError
from .text.cmake_text import cmake_string

MANIFEST = "manifest.txt"
_WHAT = ("tables", "stubs", "docs", "list", "functions")


def main(arguments: list[str] | None = None) -> int:
    """Runs the generator; 1 and one line for each mistake when a file is wrong."""
    options = _options(arguments)
    operators, errors = read_folders(options.folders)
    files: dict[str, str] = {}
    if not errors:
        try:
            files = _files(
                options.what, options.library, operators, Path(options.out), options.record
            )
        except SchemaError as error:
            errors = [error]
    for mistake in errors:
        print(mistake, file=sys.stderr)
    if errors:
        return 1
    if options.what == "functions":  # told; whether another library has them, the linker knows
        objects = map(Path, options.objects.read_text(encoding="utf-8").split("\n")[:-1])
        for line in missing_functions(operators, objects, options.devices.split(",")):
            print(line, file=sys.stderr)
        return 0
    if options.what == "list":
        print(*(f"{op.full_name}\t{op.path}" for op in operators), sep="\n")
        return 0
    changed = write_files(Path(options.out), files)
    print(f"codegen: {len(operators)} operators, {changed} of {len(files)} files changed")
    return 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m codegen", description="Writes what follows from operator files."
    )
    parser.add_argument(
        "folders", nargs="+", type=Path, metavar="OPS_DIR", help="folders of <op>.toml files"
    )
    parser.add_argument(
        "--out", default="", help="folder to write to; a file is touched only when its text changes"
    )
    parser.add_argument("--library", default="anyop", help="name of the library (default: anyop)")
    parser.add_argument("--what", choices=_WHAT, default="tables")
    parser.add_argument(
        "--record",
        type=Path,
        help="of tests on GPUs, <root>/bench/results/cuda_tests.jsonl: for docs",
    )
    parser.add_argument(
        "--objects",
        type=Path,
        help="file with a path in each line: for functions, those of kernels that none of them has",
    )
    parser.add_argument("--devices", default="cpu", help="whose kernels those are (default: cpu)")
    options = parser.parse_args(arguments)
    if options.what == "functions" and not options.objects:
        parser.error("--objects is needed")
    if options.what not in ("list", "functions") and not options.out:
        parser.error("--out is needed")
    if not re.fullmatch(r"[A-Za-z0-9_-]+", options.library):
        parser.error(f"--library {options.library!r}: expected letters, digits, _ and -")
    return options


def _files(
    what: str, library: str, operators: list[Operator], out: Path, record: Path | None
) -> dict[str, str]:
    """Path below `out` -> text."""
    if what == "docs":
        new = untested(operators, record.parents[2], record) if record else []
        return {"operators_reference.md": reference_page(operators, new)}
    if what == "stubs":
        return {f"{name}.pyi": text for name, text in write_all_stubs(operators).items()}
    if what in ("list", "functions"):
        return {}
    made = generate_library(operators, library)
    files = dict(made.files)
    files["operators.cmake"] = cmake_lists(made, out)
    files[MANIFEST] = "".join(f"{name}\n" for name in sorted(files))
    return files


def _kernel_lists(kernels: list[Kernel]) -> dict[str, list[Any]]:
    """Files of compilers, and of those for CUDA what is compiled for some architectures alone."""
    own = [kernel for kernel in kernels if kernel.is_compiled]
    lists: dict[str, list[Any]] = {}
    for backend in BACKENDS:
        lists[f"ANYOP_KERNELS_{backend.upper()}"] = _sources(k for k in own if k.device == backend)
    cuda = [k for k in own if k.device == "cuda" and k.arch]
    archs = dict.fromkeys(k.arch for k in cuda if not k.arch.endswith(("+", "*")))
    lists["ANYOP_CUDA_ARCHS"] = list(archs)
    for arch in archs:  # files that are compiled for one architecture alone
        lists[f"ANYOP_CUDA_FILES_{arch}"] = _sources(k for k in cuda if k.arch == arch)
    once = dict.fromkeys(k.arch[:-1] for k in cuda if k.arch.endswith("*"))
    lists["ANYOP_CUDA_ONCE"] = list(once)
    for number in once:  # files that are read once for all architectures, as for this one
        lists[f"ANYOP_CUDA_ONCE_{number}"] = _sources(k for k in cuda if k.arch == f"{number}*")
    return lists


def _sources(kernels: Iterable[Kernel]) -> list[Path]:
    """Each file once."""
    return list(dict.fromkeys(file for kernel in kernels for file in kernel.sources))


def cmake_lists(made: Generated, out: Path) -> str:
    """Lists that CMake includes: what to compile and to link, and on which files this run depends."""
    root, operators = out.resolve(), made.operators
    lists: dict[str, list[Any]] = {
        "ANYOP_TABLES": [root / name for name in made.sources],
        "ANYOP_HEADERS": [root / header_path(op) for op in operators],
        "ANYOP_SCHEMAS": [op.path.resolve() for op in operators],
        "ANYOP_LINKED": made.linked,
        "ANYOP_EMBEDDED": made.embedded,
    }
    lists.update(_kernel_lists([kernel for op in operators for kernel in op.kernels]))
    lists["ANYOP_BUNDLED"] = list(made.bundled.values())
    texts = [kernel.files for op in operators for kernel in op.kernels if kernel.foreign]
    lists["ANYOP_EMBEDDED_TEXTS"] = list(dict.fromkeys(file for files in texts for file in files))
    lines = ["# Generated by codegen; do not edit."]
    for name, paths in lists.items():
        lines += [f"set({name}", *(f"  {cmake_string(str(path))}" for path in paths), ")"]
    return "\n".join(lines) + "\n"


def write_files(out: Path, files: dict[str, str]) -> int:
    """Writes what changed and removes what only an earlier run wrote; returns how many changed."""
    old = out / MANIFEST
    if MANIFEST in files and old.is_file():
        for name in set(old.read_text(encoding="utf-8").split("\n")) - set(files) - {""}:
            if not Path(name).is_absolute() and ".." not in Path(name).parts:
                (out / name).unlink(missing_ok=True)
    changed = 0
    for name, text in files.items():
        path, data = out / name, text.encode()
        if path.is_file() and path.read_bytes() == data:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}.part")  # a killed run leaves no half file
        part.write_bytes(data)
        os.replace(part, path)
        changed += 1
    return changed


if __name__ == "__main__":
    sys.exit(main())
