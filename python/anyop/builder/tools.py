# SPDX-License-Identifier: Apache-2.0
"""Finds compilers and ninja on this machine, and says what they are."""

from __future__ import annotations

import os
import re

from anyop._paths import package_file
from anyop.builder.errors import MissingToolError
from anyop.builder.toolchains import Toolchain
from anyop.cache.dependencies import record
from anyop.cache.manifest import Tool

_LAUNCHERS = ("ccache", "sccache", "distcc", "icecc")
_GCC_PARTS = ("cc1plus", "cc1", "as", "ld", "collect2")


def find_command(chain: Toolchain) -> list[str] | None:
    """The program with its arguments (CXX="ccache g++"), None when there is none. Raises MissingToolError where a
    variable names what is none.
    """
    variable, named = _named(chain)
    if named:
        return [_need_executable(variable, named[0]), *named[1:]]
    for name in chain.names:
        anywhere = [] if os.sep in name else [name]  # "bin/clang++" is a vendor's, never PATH's
        for place in [*anywhere, *(f"{place}/{name}" for place in _places(chain))]:
            if found := executable(place):
                return [found]
    return None


def need_command(chain: Toolchain) -> list[str]:
    """The same, or MissingToolError that says where it was looked for."""
    found = find_command(chain)
    if found:
        return found
    places = ["PATH", *_places(chain)]
    sets = f"; {' or '.join(chain.variables)} names it" if chain.variables else ""
    what = {"host": "C++ compiler"}.get(chain.backend, f"compiler for {chain.backend} kernels")
    raise MissingToolError(
        f"there is no {what}: looked for {', '.join(chain.names)} in {', '.join(places)}{sets}; "
        f"{chain.install or 'install it'}"
    )


def named_flags(chain: Toolchain) -> list[str]:
    """What the variable that names the program adds to it (CXX="g++ -DTWO"), whether the program is there or not."""
    return _named(chain)[1][1:]


def find_ninja() -> str | None:
    """ANYOP_NINJA, the package ninja's own program (its script would start a Python), or the one on PATH. Raises
    MissingToolError where ANYOP_NINJA is no program.
    """
    named = os.environ.get("ANYOP_NINJA")
    if named:
        return _need_executable("ANYOP_NINJA", named)
    return executable(package_file("ninja", "data", "bin", "ninja")) or executable("ninja")


def need_ninja() -> str:
    """The same, or MissingToolError."""
    found = find_ninja()
    if found:
        return found
    raise MissingToolError(
        "there is no ninja: looked for the Python package ninja and in PATH; ANYOP_NINJA names it; "
        "python -m pip install ninja"
    )


def describe(chain: Toolchain, command: list[str]) -> Tool:
    """What the compiler is: what it says of its version, and the contents of all its programs."""
    # By the paths as they are called: a link may be turned to another program.
    files = {command[0], compiler_of(command)}
    for part in chain.programs:
        files.add(os.path.join(program_folder(command), part))
    version = ask(command, "--version")
    if "Free Software Foundation" in version:  # gcc is a driver: the compiler proper lies elsewhere
        for part in _GCC_PARTS:
            path = ask(command, f"-print-prog-name={part}").strip()
            files.add(executable(path) or path)
    lines = version.splitlines() or [""]
    said = next(
        (line for line in lines if "release" in line), lines[0]
    )  # nvcc begins with its maker
    return Tool(list(command), said, record(filter(os.path.isfile, files)))


def compiler_of(command: list[str]) -> str:
    """The compiler's own program where the command begins with another ("ccache g++")."""
    words = [word for word in command[1:] if not word.startswith("-")]
    if words and os.path.basename(command[0]) in _LAUNCHERS:
        return executable(words[0]) or words[0]
    return command[0]


def program_folder(command: list[str]) -> str:
    """Where the program lies; of a script around nvcc, where nvcc lies."""
    program = os.path.realpath(command[0])
    with open(program, "rb") as stream:
        if stream.read(2) == b"#!":
            found = re.search(
                r"^#\$ _HERE_=(.*)$", ask(command, "--dryrun", "-x", "cu", "-c", "/dev/null"), re.M
            )
            if found:
                return os.path.realpath(found[1])
    return os.path.dirname(program)


def ask(command: list[str], *arguments: str) -> str:
    """What a program prints; nothing when it cannot be run or takes over 10 s."""
    import subprocess

    from anyop.builder.process import start

    try:
        # Not in the current folder, whose programs a launcher may find by a PATH with "." in it.
        with start([*command, *arguments], cwd="/") as process:
            try:
                output = process.communicate(timeout=10)[0]
            except subprocess.TimeoutExpired:
                process.kill()
                return ""
    except OSError:
        return ""
    return output.decode("utf-8", "replace") if process.returncode == 0 else ""


def executable(name: str) -> str | None:
    """Absolute path of a program. Relative folders of PATH are passed over: none is taken from the current folder."""
    folders = (
        [""]
        if os.sep in name
        else filter(os.path.isabs, os.environ.get("PATH", os.defpath).split(os.pathsep))
    )
    for folder in folders:
        path = os.path.join(folder, name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return os.path.abspath(path)
    return None


def _need_executable(variable: str, name: str) -> str:
    """The program that a variable names. Raises MissingToolError."""
    found = executable(name)
    if found is None:
        raise MissingToolError(f"{variable} is {os.environ[variable]!r}, which is no program")
    return found


def _named(chain: Toolchain) -> tuple[str, list[str]]:
    """The first variable that names a command, and its words. Raises MissingToolError for an open quote."""
    for variable in chain.variables:
        if words := _words(variable):
            return variable, words
    return "", []


def _words(variable: str) -> list[str]:
    """A variable's command as a shell splits it. Raises MissingToolError."""
    text = os.environ.get(variable)
    if not text:
        return []
    if not any(char in text for char in "\"'\\"):
        return text.split()
    import shlex

    try:
        return shlex.split(text)
    except ValueError as error:
        raise MissingToolError(f"{variable} is {text!r}, which is no command: {error}") from None


def _places(chain: Toolchain) -> list[str]:
    """The table's folders, without those of variables that are not set."""
    expanded = [os.path.expandvars(place) for place in chain.places]
    return [place for place in expanded if "$" not in place and os.path.isabs(place)]
