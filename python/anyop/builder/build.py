# SPDX-License-Identifier: Apache-2.0
"""anyop.build: a folder of operators becomes one library, from the cache where it was built before."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping

from anyop.builder.choices import Choices
from anyop.builder.errors import BuildError
from anyop.builder.folder import (
    check_folder,
    find_files,
    hash_texts,
    library_name,
    make_key,
)
from anyop.cache.lookup import Request
from anyop.cache.manifest import Manifest
from anyop.cache.obtain import obtain


def build(
    folder: str | os.PathLike,
    *,
    out: str | os.PathLike | None = None,
    name: str | None = None,
    arch: str | Iterable[str] | None = None,
    flags: Iterable[str] = (),
    toolchains: Mapping[str, str] | None = None,
    backends: Iterable[str] | None = None,
    static: bool = False,
    verbose: bool = False,
) -> str:
    """Build the operators of a folder (``<op>.toml`` with kernels beside it) and return the library's path.

    out:         folder that gets the library, ``include/``, the headers for C++, and ``<namespace>.pyi``, stubs; before
                 a kernel compiles, it has what editors want: the headers and ``compile_commands.json``. Default: the
                 library stays in the cache.
    name:        of the library, ``lib<name>.so``; default: the folder's.
    arch:        GPU architectures, such as ``["80", "90a"]``; default: ``ANYOP_CUDA_ARCH``, else those of this
                 machine's GPUs, else the compiler's in the table of toolchains.
    flags:       further flags of every compiler and of the link.
    toolchains:  backend -> name in the table of toolchains (``{"cuda": "cucc"}``); "host" is the C++ compiler.
    backends:    those to build; default: all that the schemas name. "cpu" is always among them.
    static:      put libstdc++ into the library, for machines with an older one.
    verbose:     show the commands and all that the compilers say.

    The same contents, flags and compilers give the library that is there; nothing is written or locked then, and no
    compiler is needed. Raises ValueError (mistakes in schemas, each with file and line; a bad argument),
    MissingToolError, BuildError (with the compiler's first error), TimeoutError (another process builds it for too
    long), OSError.
    """
    source = check_folder(folder)
    name = library_name(source, name)
    files = _files(source, name)
    choices = Choices.check(
        arch=arch, flags=flags, toolchains=toolchains, backends=backends, static=static, verbose=verbose,
        suffixes={os.path.splitext(path)[1] for path in files},
    )  # fmt: skip
    facts = choices.facts(name)
    if out is not None:
        from anyop.builder.editor import write_for_editors

        out = os.path.abspath(os.fsdecode(out))
        write_for_editors(name, source, choices, out)
        files = _files(source, name)  # out may lie in the folder
    key = make_key(facts, source, files)

    def make(private: str) -> Manifest:
        from anyop.builder.compile import make_library

        manifest = make_library(name, source, private, choices)
        if make_key(facts, source, _files(source, name)) != key:
            raise BuildError(f"{source} was changed while {name} was built; build it again")
        return manifest

    library = obtain(Request(name, key, choices.find_tool), make)
    return library if out is None else _copy(library, out)


def build_inputs(
    name: str, texts: Iterable[str], choices: Choices, write: Callable[[str], None]
) -> str:
    """Build operators that lie in no folder: write(folder) puts them there where they must be built; texts make the
    key.
    """

    def make(private: str) -> Manifest:
        from anyop.builder.compile import make_library

        source = os.path.join(private, "src")
        os.mkdir(source)
        write(source)
        return make_library(name, source, private, choices)

    key = hash_texts([*choices.facts(name), *texts])
    return obtain(Request(name, key, choices.find_tool), make)


def _files(source: str, name: str) -> list[str]:
    """The folder's files, without the library that an earlier build may have put there."""
    return [path for path in find_files(source) if os.path.basename(path) != f"lib{name}.so"]


def _copy(library: str, out: str) -> str:
    """Put an entry's files into a folder of the user's, each by a rename."""
    import shutil

    from anyop.cache.manifest import read_manifest

    entry = os.path.dirname(library)
    target = os.path.join(out, os.path.basename(library))
    manifest = read_manifest(entry)
    if manifest and any(record[0] == os.path.realpath(target) for record in manifest.dependencies):
        raise ValueError(
            f"{target} is a kernel that the library is built from; choose another out or name"
        )
    for root, _, names in os.walk(entry):
        into = os.path.join(out, os.path.relpath(root, entry))
        os.makedirs(into, exist_ok=True)
        for name in names:
            if name != "manifest.json":
                part = os.path.join(into, f".{name}.{os.getpid()}.part")
                shutil.copyfile(os.path.join(root, name), part)
                os.chmod(part, 0o755 if name.endswith(".so") else 0o644)
                os.replace(part, os.path.join(into, name))
    return target
