# SPDX-License-Identifier: Apache-2.0
"""The section [kernels]: which files serve a backend, and whether they are compiled, linked or opened."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import binaries, defaults
from .binding import Binding
from .params import Param
from .ready import Image, Module, read_image, read_module
from .sections import BACKENDS, check_keys, section
from .source import Mistake, Source, listed, nearest

# Suffix -> form of a file that no compiler takes.
_FORMS = {
    ".o": "object", ".a": "object", ".cubin": "image", ".fatbin": "image", ".ptx": "image", ".so": "module",
}  # fmt: skip
_KEYS = {
    "source": ("file", "arch", "priority"),
    "object": ("file", "priority"),
    "image": ("file", "priority", "entry", "grid", "block", "shared_bytes", "arguments"),
    "module": ("file", "priority", "function", "arguments"),
}


@dataclass(frozen=True)
class Kernel:
    """One implementation; the first file is the operator's, others may be a family's.

    form: "source": compiled (objects may stand beside sources); "object": ready objects and archives;
    "image": CUDA's cubin, fatbin or PTX; "module": a library of tvm-ffi.
    """

    backend: str
    files: tuple[Path, ...]
    function: str
    arch: str | None = None
    priority: int = 0
    form: str = "source"
    ready: Image | Module | None = None

    @property
    def sources(self) -> tuple[Path, ...]:
        """The files that a compiler takes."""
        return tuple(file for file in self.files if file.suffix not in _FORMS)

    @property
    def linked(self) -> tuple[Path, ...]:
        """The objects and archives."""
        return tuple(file for file in self.files if _FORMS.get(file.suffix) == "object")


def read_kernels(
    source: Source, symbol: str, name: str, params: list[Param], binding: Binding
) -> list[Kernel]:
    """[kernels]; where it is missing, the files of the operator's name that lie beside it."""
    table = section(source, "kernels")
    if "kernels" not in source.data:
        table = defaults.kernels(source.path, name)
        with source.at("kernels"):
            _check_found(table, name)
    kernels = []
    for backend, value in table.items():
        with source.at("kernels", backend):
            check_keys({backend: 0}, BACKENDS, "backend")
            kernels.append(_read_kernel(source, symbol, backend, value, params, binding))
    return kernels


def _check_found(table: dict[str, str], name: str) -> None:
    if not table:
        files = listed(f"{name}{suffix}" for suffix in defaults.SUFFIXES.values())
        raise Mistake(
            f"no section [kernels], and no {files} beside the file",
            "a kernel",
            f"write {name}.cc, name other files in [kernels], or write [kernels] alone for none",
        )


def _read_kernel(
    source: Source, symbol: str, backend: str, value: object, params: list[Param], binding: Binding
) -> Kernel:
    entry = value if isinstance(value, dict) else {"file": value}
    check_keys(entry, {key for keys in _KEYS.values() for key in keys}, "key of a kernel")
    files = _kernel_files(source, backend, entry.get("file"))
    form = _form(files)
    check_keys(entry, _KEYS[form], f"key of a kernel in the form of {form}")
    arch, priority = entry.get("arch"), entry.get("priority", 0)
    if arch is not None and not (isinstance(arch, str) and re.fullmatch(r"\d+\w*\+?", arch)):
        raise Mistake(f"arch {arch!r}", 'text such as "80+" or "90a"', "quote it")
    if type(priority) is not int or not -1000 <= priority <= 1000:
        raise Mistake(f"priority {priority!r}", "an integer from -1000 to 1000", "correct it")
    function = f"{symbol}_{backend}"
    ready = _read_ready(form, backend, files, function, entry, params, binding)
    if form == "image":  # the driver takes the first that fits
        files = sorted(files, key=lambda file: (file.suffix == ".ptx", -binaries.cuda_arch(file)))
    return Kernel(backend, tuple(files), function, arch, priority, form, ready)


def _read_ready(
    form: str,
    backend: str,
    files: list[Path],
    function: str,
    entry: dict[str, Any],
    params: list[Param],
    binding: Binding,
) -> Image | Module | None:
    """How files that no compiler takes are called, checked against what is in them."""
    if form == "object":
        for file in files:
            if not binaries.machine(file):
                raise Mistake(f"{file.name} is no object file (ELF)", "one", "compile it anew")
        if not any(binaries.has_name(file, function) for file in files):
            raise Mistake(
                f"{listed((file.name for file in files), 'and')} without the function {function}",
                "the kernel",
                f'define extern "C" int32_t {function}(const ...Args*, AnyopCall*)',
            )
    if form == "image":
        return read_image(backend, files, entry, params, binding)
    return read_module(files, entry, params, binding) if form == "module" else None


def _form(files: list[Path]) -> str:
    forms = [_FORMS.get(file.suffix, "source") for file in files]
    if set(forms) == {"source", "object"}:
        return "source"
    if len(set(forms)) > 1 or (forms[0] == "module" and len(files) > 1):
        raise Mistake(
            f"kernel files {listed((file.name for file in files), 'and')}",
            "sources and objects, CUDA images, or one library of tvm-ffi",
            "name the others in a kernel of their own",
        )
    return forms[0]


def _kernel_files(source: Source, backend: str, names: object) -> list[Path]:
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise Mistake(
            f"kernel file {names!r}",
            "a file name or a list of them",
            f'write {backend} = "<op>.cc"',
        )
    return [_kernel_file(source, name) for name in names]


def _kernel_file(source: Source, name: str) -> Path:
    folder = source.path.resolve().parent
    if not (folder / name).is_file():
        suffix = Path(name).suffix
        beside = sorted(path.name for path in folder.iterdir() if path.suffix == suffix)
        raise Mistake(
            f"kernel file '{name}' is missing",
            f"it in {folder}",
            nearest(name, beside, "write it, or correct the name"),
        )
    return (folder / name).resolve()
