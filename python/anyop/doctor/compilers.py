# SPDX-License-Identifier: Apache-2.0
"""Compilers and ninja: where they are, their versions, and whether the C++ compiler works."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator

from anyop._paths import include_dir
from anyop.builder.errors import MissingToolError
from anyop.builder.toolchains import TOOLCHAINS, Toolchain, choose_toolchain, read_toolchains
from anyop.builder.tools import executable, find_command, find_ninja
from anyop.doctor.finding import MISSING, NOTE, OK, PROBLEM, Finding, ask

_GROUP = "compilers"
_INSTALL = {  # by ID or ID_LIKE of /etc/os-release
    "debian": "sudo apt-get install g++",
    "ubuntu": "sudo apt-get install g++",
    "fedora": "sudo dnf install gcc-c++",
    "rhel": "sudo dnf install gcc-c++",
    "suse": "sudo zypper install gcc-c++",
    "arch": "sudo pacman -S gcc",
    "alpine": "sudo apk add g++",
}
_PROBE = """
#include <cmath>
#include <vector>
#include "anyop/kernel.h"
extern "C" double Probe(const AnyopTensor* x) { return std::sqrt(std::vector<double>(x->ndim + 1).size()); }
"""


def findings() -> Iterator[Finding]:
    """The C++ compiler, ninja, then the compilers of devices; those of other chips where they are there."""
    yield _host(choose_toolchain("host"))
    yield _ninja()
    defaults = {choose_toolchain(backend).name: backend for backend in ("cuda", "hip")}
    for name, chain in read_toolchains().items():
        if chain.backend == "host" or (name not in defaults and not _is_there(chain)):
            continue
        yield _device(chain, name in defaults)


def _is_there(chain: Toolchain) -> bool:
    try:
        return find_command(chain) is not None
    except MissingToolError:
        return True  # to be named


def _host(chain: Toolchain) -> Finding:
    try:
        command = find_command(chain)
    except MissingToolError as error:
        return Finding(_GROUP, "C++", PROBLEM, str(error), "unset CXX", needed=True)
    if command is None:
        text = f"not found: looked for {', '.join(chain.names)} in PATH; CXX names one"
        return Finding(_GROUP, "C++", MISSING, text, _install_host(), needed=True)
    try:
        version = _version(ask([*command, "--version"]))
        _compile(command)
    except RuntimeError as error:
        return Finding(_GROUP, "C++", PROBLEM, str(error), _install_host(), needed=True)
    except OSError as error:  # of the folder of temporary files
        mend = "export TMPDIR=/a/folder/with/room"
        return Finding(_GROUP, "C++", PROBLEM, str(error), mend, needed=True)
    text = f"{' '.join(command)}, {version}; it compiled and linked a library"
    return Finding(_GROUP, "C++", OK, text, needed=True)


def _compile(command: list[str]) -> None:
    """A library of one function, with anyop's header: what every build needs."""
    with tempfile.TemporaryDirectory() as folder:
        flags = ["-std=c++17", "-O1", "-fPIC", "-shared", f"-I{include_dir()}", "-x", "c++", "-"]
        ask([*command, *flags, "-o", os.path.join(folder, "probe.so")], seconds=8.0, text=_PROBE)


def _install_host() -> str:
    try:
        with open("/etc/os-release", encoding="utf-8") as file:
            words = re.findall(r'^ID(?:_LIKE)?="?([^"\n]*)', file.read(), re.MULTILINE)
    except OSError:
        words = []
    names = " ".join(words).split()
    return next((_INSTALL[name] for name in names if name in _INSTALL), "install g++ or clang++")


def _ninja() -> Finding:
    try:
        path = find_ninja()
    except MissingToolError as error:
        return Finding(_GROUP, "ninja", PROBLEM, str(error), "unset ANYOP_NINJA", needed=True)
    if path is None:
        mend = f"{sys.executable} -m pip install ninja"
        text = "not found: looked for the package ninja and in PATH; ANYOP_NINJA names one"
        return Finding(_GROUP, "ninja", MISSING, text, mend, needed=True)
    try:
        return Finding(_GROUP, "ninja", OK, f"{path}, {ask([path, '--version'])}", needed=True)
    except RuntimeError as error:
        mend = f"{sys.executable} -m pip install --force-reinstall ninja"
        return Finding(_GROUP, "ninja", PROBLEM, str(error), mend, needed=True)


def _device(chain: Toolchain, is_default: bool) -> Finding:
    """The compiler of one kind of device. Only folders with such kernels need it."""
    name = chain.backend if is_default else f"{chain.backend} ({chain.name})"
    try:
        command = find_command(chain)
    except MissingToolError as error:
        return Finding(_GROUP, name, PROBLEM, str(error), f"unset {str(error).split()[0]}")
    if command is None:
        sets = " or ".join(chain.variables)
        end = "cu" if chain.backend == "cuda" else chain.backend
        text = f"no {' or '.join(chain.names)} (only .{end} kernels need it)"
        return Finding(
            _GROUP, name, NOTE, f"{text}; {sets} names one" if sets else text, chain.install
        )
    try:
        version = _version(
            ask([executable("env") or "/usr/bin/env", *chain.environment, *command, "--version"])
        )
    except RuntimeError as error:
        return Finding(_GROUP, name, PROBLEM, str(error), chain.install)
    known = "" if chain.name in TOOLCHAINS else ", from your table"
    return Finding(_GROUP, name, OK, f"{' '.join(command)}, {version}{known}")


def _version(output: str) -> str:
    """The line that holds the number: nvcc prints its copyright first, hipcc what it looks for in vain."""
    lines = output.splitlines() or [""]
    return next((line for line in lines if re.search("release |HIP version", line)), lines[0])
