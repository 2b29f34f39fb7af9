# SPDX-License-Identifier: Apache-2.0
"""One shared library from some C++ files, as an entry of the cache: what binds anyop to a framework."""

from __future__ import annotations

import os

from anyop.builder.depfile import read_depfile
from anyop.builder.elf import seal
from anyop.builder.ninja import Step, run_ninja, write_ninja
from anyop.builder.toolchains import choose_toolchain
from anyop.builder.tools import describe, need_command, need_ninja
from anyop.cache.dependencies import record
from anyop.cache.manifest import Manifest
from anyop.cache.store import timeout_seconds
from anyop.codegen.text.c_text import c_include

_COMPILER_BYTES = 2 << 30  # a file with a framework's headers takes half of it
_UNITS = 2  # translation units of a library of several files


def compile_library(
    name: str, title: str, library: str, flags: list[str], private: str, jobs: int | None = None
) -> Manifest:
    """Build private/entry/<library>; flags name the sources, *.cc. Raises what anyop.build raises."""
    chain = choose_toolchain("host")
    command, output = need_command(chain), f"entry/{library}"
    steps, depfiles = _steps(private, command, flags, output)
    with open(os.path.join(private, "build.ninja"), "w", encoding="utf-8") as stream:
        stream.write(write_ninja(steps))
    ninja = [need_ninja(), "-f", "build.ninja", "-j", str(jobs or _jobs())]
    run_ninja(private, ninja, title, False, timeout_seconds(), str, "once; ")
    seal(os.path.join(private, output))
    read = set()
    for depfile in depfiles:
        path = os.path.join(private, depfile)
        with open(path, encoding="utf-8", errors="surrogateescape") as stream:
            listed = read_depfile(stream.read())
        read |= {os.path.realpath(path) for path in listed if os.path.isabs(path)}  # no unit
    tools = {"host": describe(chain, command)}
    return Manifest(name=name, library=library, dependencies=record(read), tools=tools)


def _steps(private: str, command: list[str], flags: list[str], output: str) -> tuple[list, list]:
    """The commands, and the files in which the compiler lists what it read."""
    sources = [flag for flag in flags if flag.endswith(".cc")]
    others = [flag for flag in flags if flag not in sources]
    shown = os.path.basename(output)
    if len(sources) == 1:  # at once: half a second less
        depfile = ["-MD", "-MF", "o.d"]
        return [Step(shown, [*command, *flags, *depfile, "-o", output], output)], ["o.d"]
    compiling = [flag for flag in others if flag != "-shared" and flag[:2] not in ("-l", "-L")]
    units = _write_units(private, sources)
    steps = []
    for unit in units:
        made = ["-c", f"{unit}.cc", "-MD", "-MF", f"{unit}.d", "-o", f"{unit}.o"]
        steps.append(Step(f"{unit}.cc", [*command, *compiling, *made], f"{unit}.o"))
    objects = [f"{unit}.o" for unit in units]
    steps.append(Step(shown, [*command, *objects, *others, "-o", output], output, objects))
    return steps, [f"{unit}.d" for unit in units]


def _write_units(private: str, sources: list[str]) -> list[str]:
    """The sources as a few files of like size: what a framework's headers cost is paid once in each."""
    by_size = sorted(sources, key=os.path.getsize, reverse=True)
    names = [f"unit{k}" for k in range(min(_UNITS, len(sources)))]
    for k, name in enumerate(names):
        with open(os.path.join(private, f"{name}.cc"), "w", encoding="utf-8") as stream:
            stream.writelines(map(c_include, by_size[k :: len(names)]))
    return names


def _jobs() -> int:
    """As many compilers at a time as there are processors, and memory for."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(len(os.sched_getaffinity(0)), memory // _COMPILER_BYTES))
