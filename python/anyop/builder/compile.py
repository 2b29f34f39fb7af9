# SPDX-License-Identifier: Apache-2.0
"""From a folder of operators to its library: writes what the plan needs, runs ninja, checks what came of it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator

import anyop.codegen
from anyop.builder.choices import Choices
from anyop.builder.depfile import read_depfile
from anyop.builder.elf import Elf, seal
from anyop.builder.errors import BuildError
from anyop.builder.ninja import run_ninja, write_ninja
from anyop.builder.plan import Plan
from anyop.builder.toolchains import Toolchain
from anyop.builder.tools import describe, need_ninja
from anyop.cache.dependencies import changed_since, record
from anyop.cache.manifest import Manifest, Tool
from anyop.cache.store import timeout_seconds
from anyop.codegen.operators.objects import undefined
from anyop.codegen.python.stubs import write_all_stubs

ENTRY = "AnyopLibraryEntry"


def make_library(name: str, source: str, private: str, choices: Choices) -> Manifest:
    """Build the operators below source in the folder private; the result lies in private/entry.

    Raises SchemaErrors, MissingToolError, BuildError, TimeoutError, OSError.
    """
    start = time.time()
    build = _Build(name, source, private, choices)
    build.write_inputs()
    identities = _Identities(build.plan.tools)
    ninja = [need_ninja(), "-f", "build.ninja", "-j", str(len(os.sched_getaffinity(0)))]
    try:
        run_ninja(private, ninja, name, choices.verbose, timeout_seconds(), build.plain)
    except BuildError as error:
        build.name_missing_kernel(name, error)
        build.name_missing_arch(name, error)
        raise
    build.check_library()
    build.write_headers()
    dependencies = build.dependencies()
    tools = identities.get()
    programs = [path for tool in tools.values() for path, *_ in tool.files]
    if changed := changed_since([*dependencies, *programs], start):
        raise BuildError(f"{changed[0]} was changed while {name} was built; build it again")
    return Manifest(
        name=name,
        library=build.plan.library,
        dependencies=record([*dependencies, *_generator()]),
        tools=tools,
    )


class _Build:
    """The private folder, before and after ninja."""

    def __init__(self, name: str, source: str, private: str, choices: Choices) -> None:
        self.private, self.choices = private, choices
        self.shown = "" if source.startswith(private) else f"{source}/"
        self.plan = Plan(name, source, choices)

    def write_inputs(self) -> None:
        """Links, generated files and build.ninja."""
        for name, folder in self.plan.links.items():
            os.symlink(folder, os.path.join(self.private, name))
        for name, text in self.plan.made.files.items():
            path = os.path.join(self.private, "gen", name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as stream:
                stream.write(text)
        os.mkdir(os.path.join(self.private, "o"))
        with open(os.path.join(self.private, "exports.map"), "w", encoding="utf-8") as stream:
            stream.write(f"{{ global: {ENTRY}; local: *; }};\n")
        with open(os.path.join(self.private, "build.ninja"), "w", encoding="utf-8") as stream:
            stream.write(write_ninja(self.plan.steps))

    def plain(self, text: str) -> str:
        """Compilers' messages with the paths that the user knows."""
        for name, folder in self.plan.links.items():
            shown = self.shown if name == "in0" else f"{folder}/"
            text = re.sub(rf"(?<![\w/.]){name}/", shown.replace("\\", r"\\"), text)
        return re.sub(r"(?<![\w/.])gen/", "(generated) ", text)

    def name_missing_kernel(self, name: str, error: BuildError) -> None:
        """BuildError in place of a linker's that misses a kernel's function: which file is to define what."""
        for op in self.plan.made.operators:
            for kernel in op.kernels:
                missing = rf"undefined (reference to|symbol:?) ?[`'\"]?{kernel.function}\b"
                if kernel.is_compiled and re.search(missing, error.output):
                    raise BuildError(
                        f"{name} could not be built: {undefined(op, kernel)}\n{error}",
                        error.output,
                    ) from None

    def name_missing_arch(self, name: str, error: BuildError) -> None:
        """BuildError in place of nvcc's that does not know an architecture: who asks for it, and which there are."""
        found = re.search(r"Unsupported gpu architecture '(?:compute|sm)_(\w+)'", error.output)
        if not found:
            return
        arch, command = found[1], self.plan.commands["cuda"]
        asked = "which arch=, --arch or ANYOP_CUDA_ARCH asks for, or this machine's GPU"
        for op in self.plan.made.operators:
            for kernel in op.kernels:
                if kernel.arch and kernel.arch.rstrip("+*") == arch:
                    lines = op.path.read_text(encoding="utf-8").splitlines()
                    at = [n for n, line in enumerate(lines, 1) if f'"{kernel.arch}"' in line]
                    asked = f"which {op.path}:{at[0] if at else 1} asks for"
        listed = subprocess.run([*command, "--list-gpu-code"], capture_output=True, text=True)
        known = ", ".join(re.findall(r"\bsm_(\w+)", listed.stdout))
        raise BuildError(
            f"{name} could not be built: {command[-1]} has no architecture {arch}, {asked}; it has "
            f"{known or 'others'}: write one of these, or install a newer CUDA\n{error}",
            error.output,
        ) from None

    def check_library(self) -> None:
        """Exports the one function and nothing else, for the machine that was asked for; then it gets its checksum."""
        path = os.path.join(self.private, "entry", self.plan.library)
        if not os.path.isfile(path):
            raise BuildError(
                f"{self.plan.library} was not made, though no command failed; which flag asks for something else? "
                "verbose shows the commands"
            )
        library = Elf(path)
        if library.exported != {ENTRY}:
            raise BuildError(
                f"{self.plan.library} exports {', '.join(sorted(library.exported)) or 'nothing'}, expected {ENTRY} only"
            )
        if library.machine != self.plan.machine:
            raise BuildError(
                f"{self.plan.library} is for {library.machine}, expected {self.plan.machine}: "
                "the compiler is for another machine"
            )
        seal(library.path)

    def write_headers(self) -> None:
        """What C++ callers include, stubs for Python's, and what the library opens at run time."""
        for name, text in self.plan.made.files.items():
            if name.endswith(".h"):
                path = os.path.join(self.private, "entry", "include", name)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w", encoding="utf-8") as stream:
                    stream.write(text)
        for namespace, text in write_all_stubs(self.plan.made.operators).items():
            with open(
                os.path.join(self.private, "entry", f"{namespace}.pyi"), "w", encoding="utf-8"
            ) as stream:
                stream.write(text)
        for name, path in self.plan.made.bundled.items():
            place = os.path.join(self.private, "entry", name)
            os.makedirs(os.path.dirname(place), exist_ok=True)
            shutil.copyfile(path, place)

    def dependencies(self) -> list[str]:
        """Files outside the private folder that compilers and the linker read."""
        kernels = [kernel for op in self.plan.made.operators for kernel in op.kernels]
        files = [str(path) for kernel in kernels for path in kernel.files]
        found = {self._outside(path) for path in (*files, *map(str, self.plan.made.embedded))}
        found |= set(linked_files(self.choices.flags))
        for step in self.plan.steps:
            depfile = os.path.join(self.private, f"{step.output}.d")
            if os.path.exists(depfile):
                with open(depfile, encoding="utf-8", errors="surrogateescape") as stream:
                    found |= set(map(self._outside, read_depfile(stream.read())))
        return sorted(found - {""})

    def _outside(self, name: str) -> str:
        """The path of a file that a compiler names; "" inside the private folder. Links of the user's stay: they may
        be turned.
        """
        inside = (f"{self.private}/", f"{os.path.realpath(self.private)}/")
        for private in inside:
            name = name.removeprefix(private)
        first, _, rest = name.partition("/")
        if first in self.plan.links:
            name = f"{self.plan.links[first]}/{rest}"
        return name if os.path.isabs(name) and not name.startswith(inside) else ""


def linked_files(flags: Iterable[str]) -> Iterator[str]:
    """Libraries that flags of the link name by -L and -l."""
    flags = list(flags)
    folders = [flag[2:] for flag in flags if flag.startswith("-L")]
    for name in (flag[2:] for flag in flags if flag.startswith("-l")):
        places = [f"{folder}/lib{name}{end}" for folder in folders for end in (".so", ".a")]
        yield from filter(os.path.isfile, places)


def _generator() -> list[str]:
    """The files that write the tables: another generator, another library."""
    folder = os.path.dirname(os.path.abspath(anyop.codegen.__file__))
    found = [
        os.path.join(place, name)
        for place, _, names in os.walk(folder, followlinks=True)
        for name in names
        if name.endswith(".py") and not name.endswith("_test.py")
    ]
    return sorted(filter(os.path.isfile, found))


class _Identities:
    """What the compilers are, read while they run."""

    def __init__(self, tools: list[tuple[str, Toolchain, list[str]]]) -> None:
        self.found: dict[str, Tool] = {}
        self.problem: BaseException | None = None
        self.thread = threading.Thread(target=self._read, args=(tools,), daemon=True)
        self.thread.start()

    def _read(self, tools: list[tuple[str, Toolchain, list[str]]]) -> None:
        try:
            for role, chain, command in tools:
                self.found[role] = describe(chain, command)
        except BaseException as error:
            self.problem = error

    def get(self) -> dict[str, Tool]:
        self.thread.join()
        if self.problem is not None:
            raise self.problem
        return self.found
