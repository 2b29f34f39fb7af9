# SPDX-License-Identifier: Apache-2.0
"""The platform tag of a wheel (manylinux_2_28_x86_64), by what its libraries ask of the system (PEP 600)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from anyop.builder.elf import Elf
from anyop.builder.errors import BuildError

_OLDEST = {"x86_64": 17, "aarch64": 17}  # minor number of glibc; 2.17 is RHEL 7's
# Parts of glibc and of gcc's runtime, which every Linux with glibc has. libtvm_ffi comes with anyop.
_SYSTEM = {
    "libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libgcc_s.so.1", "libstdc++.so.6",
    "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1",
}  # fmt: skip
_WITH_ANYOP = {"libtvm_ffi.so"}
# The newest version of libstdc++ and gcc's runtime beside a glibc, from auditwheel's policies.
_LIBSTDCXX = ((17, 19), (24, 22), (27, 24), (31, 28), (34, 29), (35, 30), (39, 33))  # GLIBCXX_3.4.x
_CXXABI = ((17, 7), (24, 10), (27, 11), (31, 12), (34, 13), (39, 15))  # CXXABI_1.3.x
_LIMITS = {
    "GLIBC_2": tuple((minor, minor) for minor in range(17, 100)),
    "GLIBCXX_3.4": _LIBSTDCXX,
    "CXXABI_1.3": _CXXABI,
    "GCC_3": ((17, 99),),
    "GCC_4": ((17, 8),),
    "GCC_7": ((27, 0),),
    "GCC_12": ((35, 0),),
}


def platform_tag(libraries: Iterable[str], own: Iterable[str] = ()) -> str:
    """The oldest manylinux that all libraries run on; own are names of libraries that the wheel brings.

    Raises BuildError when a library needs what no manylinux has, or when they are for several machines.
    """
    allowed = _SYSTEM | _WITH_ANYOP | set(own)
    machines, minor = set(), 0
    for path in libraries:
        library = Elf(path)
        machines.add(library.machine)
        foreign = sorted(set(library.needed) - allowed)
        if foreign:
            raise BuildError(
                f"{_name(path)} needs {', '.join(foreign)}, which a wheel can neither bring nor expect: "
                "link it statically, or open it at run time (dlopen)"
            )
        minor = max(minor, _least(library, path))
    if len(machines) != 1:
        raise BuildError(
            f"the wheel has libraries for {' and '.join(sorted(machines)) or 'no machine'}"
        )
    (machine,) = machines
    if machine not in _OLDEST:
        raise BuildError(f"no manylinux wheel for {machine}, expected {' or '.join(_OLDEST)}")
    return f"manylinux_2_{max(minor, _OLDEST[machine])}_{machine}"


def _least(library: Elf, path: str) -> int:
    """Minor number of the oldest glibc for the versions of symbols that the library asks for."""
    asked = {s.version: s.name for s in library.symbols() if not s.defined and s.version}
    return max((glibc_for(version, name, path) for version, name in asked.items()), default=0)


def glibc_for(version: str, symbol: str, path: str) -> int:
    """Minor number of the oldest glibc beside which a symbol's version is. Raises BuildError."""
    match = re.fullmatch(
        r"((?:GLIBCXX|CXXABI)_\d+\.\d+|(?:GLIBC|GCC)_\d+)(?:\.(\d+))?(?:\.\d+)*", version
    )
    limits = _LIMITS.get(match[1]) if match else None
    number = int(match[2] or 0) if match else 0
    for minor, most in limits or ():
        if number <= most:
            return minor
    raise BuildError(f"{_name(path)} needs {symbol} of {version}, which no manylinux has")


def _name(path: str) -> str:
    return path.rsplit("/", 1)[-1]
