# SPDX-License-Identifier: Apache-2.0
"""The steps that make a library of a folder of operators: which compiler takes which file, with which flags.

Compilers see names that are plain whatever the user's are: the folder is linked into the private one as in0,
anyop's headers as include, and every path of a command is relative. A device compiler sees CUDA's or HIP's headers
and anyop/kernel.h; the C++ compiler makes the tables and links.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from anyop._paths import include_dir
from anyop.builder.ahead import ahead_steps
from anyop.builder.choices import Choices
from anyop.builder.errors import BuildError
from anyop.builder.folder import DEVICE_SUFFIXES
from anyop.builder.gpus import write_built_for
from anyop.builder.ninja import Step
from anyop.builder.toolchains import CPU_FLAGS, Toolchain, choose_toolchain
from anyop.builder.tools import compiler_of, need_command, program_folder
from anyop.codegen.c.table import DEVICE_GUARDS
from anyop.codegen.forms.kernels import Kernel
from anyop.codegen.generate import generate
from anyop.codegen.operators.objects import check_machine

_LINK = ("-shared", "-Wl,--no-undefined", "-Wl,-z,now", "-Wl,-z,nodelete", "-Wl,-Bsymbolic")
_OLDER_GLIBC = os.path.join(os.path.dirname(os.path.abspath(__file__)), "older_glibc.S")
_STATIC = (
    "-static-libstdc++",
    "-Wl,--gc-sections",  # and what older_glibc.S asks for
    "-Wl,--push-state,--no-as-needed,-l:libpthread.so.0,-l:libdl.so.2,-l:librt.so.1,--pop-state",
)
_DEVICE_SOURCES = tuple(DEVICE_SUFFIXES.values())


class Plan:
    """The steps, what they need in the private folder, and the compilers that they call."""

    def __init__(self, name: str, source: str, choices: Choices) -> None:
        self.choices = choices
        self.made = generate([Path(source)], name)
        self.library = f"lib{name}.so"
        self.links = {
            "in0": os.path.realpath(source),
            "include": include_dir(),
        }  # plain name -> folder
        self.chains: dict[str, Toolchain] = {}
        self.commands: dict[str, list[str]] = {}
        self.steps: list[Step] = []
        self.built_for: set[str] = set()  # GPU architectures
        self._plan()
        check_machine(self.made.operators, self.machine)

    @property
    def machine(self) -> str:
        """What the library is for."""
        return self.chains["host"].machine or os.uname().machine

    @property
    def tools(self) -> list[tuple[str, Toolchain, list[str]]]:
        """Role, toolchain and command of each compiler that takes part."""
        return [(role, chain, self.commands[role]) for role, chain in self.chains.items()]

    def _plan(self) -> None:
        self._chain("host")
        devices = self._devices()
        link = self._link(self._objects(devices), devices)
        made = [step.output for step in self.steps]
        if self.choices.images:
            steps, files = ahead_steps(
                self.made.operators, self.choices.images, self.choices.static
            )
            self.made.files.update(files)
            self.steps += steps
        self.steps.append(Step(f"link {self.library}", link, f"entry/{self.library}", made))

    def _objects(self, devices: Sequence[str]) -> list[str]:
        """Of kernels, of tables, and what is linked as it is; plans their compiling."""
        host, objects = [*self._command("host"), *CPU_FLAGS], []
        defines = [f"-D{DEVICE_GUARDS[backend]}=1" for backend in devices]
        for (role, path), kernel in self._kernel_files().items():
            plain = ["-std=c++17", *CPU_FLAGS, *defines]
            flags = plain if role == "host" else self._device_flags(role, kernel)
            command, name = [*self._command(role), *flags], os.path.basename(path)
            objects.append(self._compile(command, self._linked(path), name, role != "host"))
        for name in self.made.sources:
            table = [*self._command("host"), "-x", "c", "-std=c11", *CPU_FLAGS, *defines, "-Igen"]
            objects.append(self._compile(table, f"gen/{name}", os.path.basename(name)))
        if self.built_for:
            self.made.files["built_for.c"] = write_built_for(self.built_for)
            objects.append(self._compile([*host, "-x", "c"], "gen/built_for.c", "built_for.c"))
        if self.choices.static:
            path = self._linked(_OLDER_GLIBC)
            objects.append(self._compile(self._command("host"), path, os.path.basename(path)))
        ready = dict.fromkeys(str(path) for kernel in self._kernels() for path in kernel.linked)
        return [*objects, *map(self._linked, ready)]

    def _link(self, objects: Sequence[str], devices: Sequence[str]) -> list[str]:
        """The linker's command."""
        link = [
            *self._command("host"),
            *_LINK,
            f"-Wl,-soname,{self.library}",
            "-Wl,--version-script=exports.map",
        ]
        link += [*(_STATIC if self.choices.static else ()), *objects, "-o", f"entry/{self.library}"]
        for role in devices:
            chain = self._chain(role)
            above = os.path.dirname(program_folder(self.commands[role]))
            link += [flag.replace("{folder}", above) for flag in chain.link]
        return [*link, *self.choices.flags, "-ldl"]

    def _compile(self, command: list[str], source: str, what: str, heavy: bool = False) -> str:
        """Plan one object file; returns its name."""
        output = f"o/{len(self.steps)}.o"
        command = [
            *command,
            *self.choices.flags,
            "-Iin0",
            "-Iinclude",
            "-Igen",
            "-MD",
            "-MF",
            f"{output}.d",
            "-c",
            source,
            "-o",
            output,
        ]
        self.steps.append(Step(what, command, output, heavy=heavy))
        return output

    def _kernels(self) -> list[Kernel]:
        """Those that are to be built."""
        wanted = self.choices.backends
        kernels = [kernel for op in self.made.operators for kernel in op.kernels]
        return [kernel for kernel in kernels if wanted is None or kernel.device in wanted]

    def _devices(self) -> list[str]:
        """Backends whose runtime library the kernels are linked with."""
        linked = [
            kernel.device for kernel in self._kernels() if kernel.form in ("source", "object")
        ]
        return [backend for backend in dict.fromkeys(linked) if backend in DEVICE_GUARDS]

    def _kernel_files(self) -> dict[tuple[str, str], Kernel]:
        """(backend whose compiler takes it, path) -> the first kernel that names the file."""
        found: dict[tuple[str, str], Kernel] = {}
        for kernel in self._kernels():
            for path in map(str, kernel.sources):
                found.setdefault(
                    (kernel.device if path.endswith(_DEVICE_SOURCES) else "host", path), kernel
                )
        return found

    def _device_flags(self, backend: str, kernel: Kernel) -> list[str]:
        chain = self._chain(backend)
        archs = fitting_archs(
            kernel.arch, self.choices.archs.get(backend) or list(chain.default_arch)
        )
        once = kernel.arch[:-1] if kernel.arch and kernel.arch.endswith("*") else None
        read = {arch: once if once and arch.isdigit() else arch for arch in archs}
        flags = [
            chain.arch.format(arch=arch, number=arch.rstrip("af"), read=read[arch])
            for arch in archs
            if chain.arch
        ]
        if chain.newer and archs and archs[-1].isdigit():
            flags.append(chain.newer.format(arch=archs[-1], read=read[archs[-1]]))
            self.built_for.add(f"compute_{read[archs[-1]]}")
        if once:
            flags.append("-DANYOP_READ_ONCE=1")
        if backend == "cuda" and chain.arch:
            self.built_for.update(f"sm_{arch}" for arch in archs)
        host = ["-ccbin", compiler_of(self.commands["host"])] if chain.name == "nvcc" else []
        return [*chain.compile, *flags, *host]

    def _chain(self, role: str) -> Toolchain:
        if role not in self.chains:
            self.chains[role] = choose_toolchain(role, self.choices.toolchains.get(role))
            self.commands[role] = need_command(self.chains[role])
        return self.chains[role]

    def _command(self, role: str) -> list[str]:
        environment = self._chain(role).environment
        return [*(("env", *environment) if environment else ()), *self.commands[role]]

    def _linked(self, path: str) -> str:
        """The file by a plain folder name; a file outside all links gets a link to its folder."""
        if any(char in path for char in "\n\r"):
            raise BuildError(f"{path!r} has a line break, which no build can do with")
        for name, folder in self.links.items():
            if path.startswith(folder + os.sep):
                return f"{name}/{os.path.relpath(path, folder)}"
        name = f"in{len(self.links)}"
        self.links[name] = os.path.dirname(path)
        return f"{name}/{os.path.basename(path)}"


def fitting_archs(stated: str | None, wanted: list[str]) -> list[str]:
    """Of the wanted architectures the kernel's: "80+" and "80*" are at least 80, "90a" is that one and no other."""
    if stated is None:
        return sorted(wanted, key=_number)
    if stated.endswith(("+", "*")):
        least = _number(stated[:-1])
        return sorted((arch for arch in wanted if _number(arch) >= least), key=_number) or [
            stated[:-1]
        ]
    return [stated]


def _number(arch: str) -> int:
    digits = re.sub(r"\D", "", arch)
    return int(digits) if digits else 0
