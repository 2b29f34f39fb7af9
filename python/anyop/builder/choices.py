# SPDX-License-Identifier: Apache-2.0
"""What a caller of the builder chose, checked: architectures, flags, toolchains, backends."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from anyop import _anyop
from anyop._paths import check_utf8, include_dir
from anyop.builder.folder import DEVICE_SUFFIXES, SUFFIXES, cpu_identity
from anyop.builder.toolchains import CPU_FLAGS, choose_toolchain
from anyop.builder.tools import find_command, named_flags

_NO_BUILD = {
    "-c", "-E", "-S", "-M", "-MM", "-o", "-###", "-fsyntax-only", "--help", "--version", "-dumpversion",
    "-dumpmachine", "--dryrun", "-dryrun", "-ptx", "-cubin", "-fatbin", "-r", "-dc", "-dlink",
}  # fmt: skip


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
        for backend, suffix in DEVICE_SUFFIXES.items():
            if suffix in suffixes and (chosen is None or backend in chosen):
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


def _triton() -> tuple:
    """What tells the installed Triton from another; () where there is none. Its version takes 20 ms to read."""
    from importlib.util import find_spec

    spec = find_spec("triton")
    if spec is None or spec.origin is None:
        return ()
    found = os.stat(spec.origin)
    return spec.origin, found.st_mtime_ns, found.st_size


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
