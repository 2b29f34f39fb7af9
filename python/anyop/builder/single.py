# SPDX-License-Identifier: Apache-2.0
"""One shared library by one call of the C++ compiler, as an entry of the cache: the glue for a framework."""

from __future__ import annotations

import os

from anyop.builder.depfile import read_depfile
from anyop.builder.ninja import Step, run_ninja, write_ninja
from anyop.builder.toolchains import choose_toolchain
from anyop.builder.tools import describe, need_command, need_ninja
from anyop.cache import Manifest
from anyop.cache.dependencies import record
from anyop.cache.store import timeout_seconds


def compile_one(name: str, library: str, flags: list[str], private: str) -> Manifest:
    """Build private/entry/<library>; flags name the sources. Raises what anyop.build raises."""
    chain = choose_toolchain("host")
    command, output = need_command(chain), f"entry/{library}"
    step = Step(library, [*command, *flags, "-MD", "-MF", "o.d", "-o", output], output)
    with open(os.path.join(private, "build.ninja"), "w", encoding="utf-8") as stream:
        stream.write(write_ninja([step]))
    run_ninja(private, [need_ninja(), "-f", "build.ninja"], name, False, timeout_seconds(), str)
    with open(os.path.join(private, "o.d"), encoding="utf-8", errors="surrogateescape") as stream:
        read = {os.path.realpath(path) for path in read_depfile(stream.read())}
    tools = {"host": describe(chain, command)}
    return Manifest(name=name, library=library, dependencies=record(read), tools=tools)
