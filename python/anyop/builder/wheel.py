# SPDX-License-Identifier: Apache-2.0
"""A pip wheel with the prebuilt library of a folder of operators, which runs where no compiler is.

It holds one package: the library, the headers of its typed C++ functions, and an __init__.py that loads the library
and has the operators as functions. The same inputs give the same bytes.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import tempfile
import time
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from anyop import _anyop
from anyop.builder.build import build
from anyop.builder.errors import BuildError
from anyop.builder.folder import check_folder, find_files
from anyop.builder.toolchains import choose_toolchain
from anyop.builder.wheel_platform import platform_tag
from anyop.builder.wheel_project import Project, read_project
from anyop.codegen.generate import generate
from anyop.codegen.python.stubs import write_stubs
from anyop.codegen.text.python_text import python_docstring

_PACKAGE = '''"""{doc}

Operators of anyop (anyop.ops.{namespaces}); C++ finds their headers in include_dir().
"""

import os as _os

import anyop as _anyop

_folder = _os.path.dirname(_os.path.abspath(__file__))
__version__ = {version!r}


def include_dir():
    """Folder of the headers of the typed C++ functions."""
    return _os.path.join(_folder, "include")


_anyop.load(_os.path.join(_folder, {library!r}))

{functions}

__all__ = [{names}]
'''

_STUB = """
__version__: str
__all__: list[str]

def include_dir() -> str:
    \"\"\"Folder of the headers of the typed C++ functions.\"\"\"
    ...
"""


def build_wheel(
    folder: str | os.PathLike,
    out: str | os.PathLike,
    *,
    name: str | None = None,
    version: str | None = None,
    arch: str | Iterable[str] | None = None,
    toolchains: Mapping[str, str] | None = None,
    flags: Iterable[str] = (),
    backends: Iterable[str] | None = None,
    verbose: bool = False,
) -> str:
    """Build the operators of a folder into a wheel in the folder `out`; returns its path.

    name, version: of the distribution; default: [project] of the folder's pyproject.toml, from which description,
                   license, requires-python and dependencies are taken too.
    arch:          GPU architectures; default: ``ANYOP_CUDA_ARCH``, else those of the compiler's entry in the table of
                   toolchains, never those of this machine's GPU. One library holds the code of all.

    The other arguments are those of anyop.build. The platform tag is the oldest manylinux that has what the library
    asks for. Raises what anyop.build does; ValueError on a bad name or version, BuildError on a library that no
    manylinux can load.
    """
    source = check_folder(folder)
    project = read_project(source, name, version)
    made = generate([Path(source)], project.package).operators
    operators = [(op.namespace, op.name) for op in made]
    with tempfile.TemporaryDirectory() as private:
        library = build(
            source, out=private, name=project.package, arch=_archs(arch, source, toolchains), flags=flags,
            toolchains=toolchains, backends=backends, static=True, verbose=verbose,
        )  # fmt: skip
        files = _read_files(private)
        libraries = [os.path.join(private, path) for path in files if path.endswith(".so")]
        tag = f"py3-none-{platform_tag(libraries, map(os.path.basename, libraries))}"
        files["__init__.py"] = _init(project, operators, os.path.basename(library)).encode()
    for path in ("compile_commands.json", *{f"{space}.pyi" for space, _ in operators}):
        files.pop(path, None)
    files["__init__.pyi"] = (write_stubs(made) + _STUB).encode()
    files["py.typed"] = b""
    os.makedirs(out, exist_ok=True)
    path = os.path.join(
        os.path.abspath(out), f"{project.package}-{_escaped(project.version)}-{tag}.whl"
    )
    _write(path, _archive(project, tag, files))
    return path


def _archs(
    arch: str | Iterable[str] | None, source: str, toolchains: Mapping[str, str] | None
) -> str | Iterable[str] | None:
    """Those of the caller, else the table's: a wheel is for other machines than this one."""
    has_cuda = any(path.endswith((".cu", ".py")) for path in find_files(source))
    if arch is not None or not has_cuda or os.environ.get("ANYOP_CUDA_ARCH"):
        return arch
    return choose_toolchain("cuda", (toolchains or {}).get("cuda")).default_arch or None


def _read_files(folder: str) -> dict[str, bytes]:
    """All files below the folder, by relative path."""
    found = {}
    for root, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(root, name)
            with open(path, "rb") as stream:
                found[os.path.relpath(path, folder)] = stream.read()
    return found


def _init(project: Project, operators: list[tuple[str, str]], library: str) -> str:
    """The package's one module. Raises BuildError where two operators would have one name."""
    names = ["include_dir", *(name for _, name in operators)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise BuildError(
            f"the package would have two functions {twice[0]}: give each namespace a wheel of its own"
        )
    functions = "\n".join(f"{name} = _anyop.ops.{space}.{name}" for space, name in operators)
    doc = project.description or f"The operators of {project.name}."
    return _PACKAGE.format(
        doc=python_docstring(doc),
        namespaces=", anyop.ops.".join(sorted({space for space, _ in operators})),
        version=project.version,
        library=library,
        functions=functions,
        names=", ".join(map(repr, [names[0], *sorted(names[1:])])),
    )


def _archive(project: Project, tag: str, files: dict[str, bytes]) -> bytes:
    """The wheel: the package, then what describes it, RECORD last."""
    info = f"{project.package}-{_escaped(project.version)}.dist-info"
    entries = {f"{project.package}/{path}": files[path] for path in sorted(files)}
    entries[f"{info}/METADATA"] = project.metadata(_anyop.version).encode()
    entries[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: anyop {_anyop.version}\nRoot-Is-Purelib: false\nTag: {tag}\n"
    ).encode()
    entries[f"{info}/RECORD"] = _record(entries, f"{info}/RECORD")
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in entries.items():
            entry = zipfile.ZipInfo(path, _date())
            entry.create_system = 3  # Unix: the mode counts
            entry.external_attr = (0o100755 if path.endswith(".so") else 0o100644) << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
    return stream.getvalue()


def _record(entries: dict[str, bytes], own: str) -> bytes:
    """RECORD: path, hash and size of each file; nothing of itself."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for path, data in entries.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        writer.writerow([path, f"sha256={digest}", len(data)])
    writer.writerow([own, "", ""])
    return text.getvalue().encode()


def _date() -> tuple[int, int, int, int, int, int]:
    """Of all files: SOURCE_DATE_EPOCH, else the first day that a zip file knows."""
    seconds = os.environ.get("SOURCE_DATE_EPOCH", "")
    if seconds and not seconds.isdecimal():
        raise ValueError(f"SOURCE_DATE_EPOCH is {seconds!r}, expected seconds since 1970")
    first = (1980, 1, 1, 0, 0, 0)
    return max(first, time.gmtime(int(seconds))[:6]) if seconds else first


def _escaped(version: str) -> str:
    return version.replace("-", "_")


def _write(path: str, data: bytes) -> None:
    """By a rename, so that nobody sees half a wheel."""
    part = f"{path}.{os.getpid()}.part"
    try:
        with open(part, "wb") as stream:
            stream.write(data)
        os.replace(part, path)
    except BaseException:
        if os.path.exists(part):
            os.unlink(part)
        raise
