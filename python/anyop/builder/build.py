# SPDX-License-Identifier: Apache-2.0
"""anyop.build: a folder of operators becomes one library, from the cache where it was built before."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping

from anyop import _anyop
from anyop._paths import check_utf8, include_dir
from anyop.builder.errors import BuildError
from anyop.builder.folder import (
    SUFFIXES,
    check_folder,
    cpu_identity,
    find_files,
    hash_texts,
    library_name,
    make_key,
)
from anyop.builder.toolchains import CPU_FLAGS, choose_toolchain
from anyop.builder.tools import find_command, named_flags
from anyop.cache.lookup import Request, obtain
from anyop.cache.manifest import Manifest

_NO_BUILD = {
    "-c", "-E", "-S", "-M", "-MM", "-o", "-###", "-fsyntax-only", "--help", "--version", "-dumpversion",
    "-dumpmachine", "--dryrun", "-dryrun", "-ptx", "-cubin", "-fatbin", "-r", "-dc", "-dlink",
}  # fmt: skip


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
        manifest = choices.make(name, source, private)
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
        source = os.path.join(private, "src")
        os.mkdir(source)
        write(source)
        return choices.make(name, source, private)

    key = hash_texts([*choices.facts(name), *texts])
    return obtain(Request(name, key, choices.find_tool), make)


class Choices:
    """What a caller chose, checked; all but `verbose` is part of the key."""

    def __init__(
        self,
        archs: dict[str, list[str]],  # by backend, for those whose sources are there
        flags: tuple[str, ...],
        toolchains: dict[str, str],
        backends: tuple[str, ...] | None,
        static: bool,
        verbose: bool,
        images: tuple[str, ...] = (),  # architectures of Triton's
    ) -> None:
        self.images = images
        self.archs, self.flags, self.toolchains = archs, flags, toolchains
        self.backends, self.static, self.verbose = backends, static, verbose

    @classmethod
    def check(
        cls,
        *,
        arch: str | Iterable[str] | None,
        flags: Iterable[str],
        toolchains: Mapping[str, str] | None,
        suffixes: set[str],
        backends: Iterable[str] | None = None,
        static: bool = False,
        verbose: bool = False,
    ) -> Choices:
        """Raises ValueError."""
        named = dict(toolchains or {})
        for role in named:
            choose_toolchain(role, named[role])
        chosen, archs = _backends(backends), {}
        for backend in ("cuda", "hip"):
            if SUFFIXES[backend] in suffixes and (chosen is None or backend in chosen):
                from anyop.builder.gpus import wanted_archs

                default = choose_toolchain(backend, named.get(backend)).default_arch
                archs[backend] = wanted_archs(backend, arch, default)
        flags = _texts(flags, "flags")
        _check_flags(flags, "flags has")
        images: tuple[str, ...] = ()
        if ".py" in suffixes and (chosen is None or "cuda" in chosen):
            from anyop.builder.gpus import wanted_archs

            default = choose_toolchain("cuda", named.get("cuda")).default_arch
            images = tuple(wanted_archs("cuda", arch, default))
        return cls(archs, flags, named, chosen, static, verbose, images)

    def facts(self, name: str) -> list[str]:
        """What the library depends on besides files."""
        chains = [
            choose_toolchain(role, self.toolchains.get(role)) for role in ("host", *self.archs)
        ]
        machine = chains[0].machine or os.uname().machine
        for chain in chains:
            _check_flags(named_flags(chain), f"{' or '.join(chain.variables)} has")
        added = [word for chain in chains for word in (*chain.compile, *named_flags(chain))]
        chosen = [self.flags, self.archs, chains, CPU_FLAGS, self.backends, self.static]
        if self.images:
            chosen += [self.images, _triton()]
        return [
            f"anyop {_anyop.version}",
            machine,
            name,
            *map(repr, chosen),
            include_dir(),  # two installed anyops of one version
            cpu_identity([*self.flags, *added]),
            *added,
        ]

    def find_tool(self, role: str) -> list[str] | None:
        """The compiler on this machine, None where it is not there."""
        return find_command(choose_toolchain(role, self.toolchains.get(role)))

    def make(self, name: str, source: str, private: str) -> Manifest:
        """Build."""
        from anyop.builder.compile import make_library

        return make_library(name, source, private, self)


def _triton() -> tuple:
    """What tells the installed Triton from another; () where there is none. Its version takes 20 ms to read."""
    from importlib.util import find_spec

    spec = find_spec("triton")
    if spec is None or spec.origin is None:
        return ()
    found = os.stat(spec.origin)
    return spec.origin, found.st_mtime_ns, found.st_size


def _files(source: str, name: str) -> list[str]:
    """The folder's files, without the library that an earlier build may have put there."""
    return [path for path in find_files(source) if os.path.basename(path) != f"lib{name}.so"]


def _backends(backends: Iterable[str] | None) -> tuple[str, ...] | None:
    if backends is None:
        return None
    chosen = _texts(backends, "backends")
    for backend in chosen:
        if backend not in SUFFIXES:
            raise ValueError(
                f"no backend {backend!r} to build, expected some of {', '.join(SUFFIXES)}"
            )
    return tuple(name for name in SUFFIXES if name in chosen or name == "cpu")


def _check_flags(flags: Iterable[str], where: str) -> None:
    """Raises ValueError for those with which a compiler makes something else, or nothing."""
    before = ""
    for flag in flags:
        check_utf8(flag, where)
        if not flag:
            raise ValueError(f"{where} an empty text; leave it out")
        if flag in _NO_BUILD:
            raise ValueError(
                f"{where} {flag!r}, with which a compiler makes no library; leave it out "
                "(verbose=True shows the commands)"
            )
        if (
            not flag.startswith(("-", "@"))
            and not before.startswith("-")
            and not os.path.exists(flag)
        ):
            raise ValueError(
                f"{where} {flag!r}, which is no option (-…) and no file that is there; leave it out"
            )
        before = flag


def _texts(values: Iterable[str], what: str) -> tuple[str, ...]:
    if isinstance(values, str):
        raise ValueError(f"{what} is {values!r}, expected a list of texts")
    values = tuple(values)
    for value in values:
        if not isinstance(value, str) or any(char in value for char in "\n\r\0"):
            raise ValueError(f"{what} has {value!r}, expected texts of one line")
    return values


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
