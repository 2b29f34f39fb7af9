# SPDX-License-Identifier: Apache-2.0
"""A library bound to one framework's C++ ABI: found prebuilt, found in the cache, or built once by the C++ compiler.

Without it everything works, more slowly. ``problem`` says why it is missing.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from anyop import _anyop
from anyop._paths import include_dir
from anyop.builder.folder import hash_texts
from anyop.builder.toolchains import choose_toolchain
from anyop.builder.tools import find_command, named_flags
from anyop.cache.lookup import Request
from anyop.cache.manifest import Manifest
from anyop.cache.obtain import obtain

INSTALLED = os.path.dirname(os.path.abspath(_anyop.__file__))
LIB = os.path.join(INSTALLED, "lib")


class NotBuilt(Exception):
    """It is not there, and was not to be built."""


class NativeLibrary:
    """One such library.

    framework gives the module that is loaded; open_library(path, version) returns the address of its table, or raises
    ValueError where the library is for another version (None: who asks for the path opens it); flags(module, sources,
    headers, libraries) are its recipe: see recipe.py; title is what it is called while it is built.
    """

    def __init__(
        self,
        stem: str,
        framework: Callable[[], Any],
        open_library: Callable[[str, str], int] | None,
        flags: Callable[[ModuleType, str, str, str], list[str]],
        title: str | None = None,
    ) -> None:
        self.stem, self.variable = stem, f"ANYOP_{stem.upper()}"
        self.title = title or stem
        self.framework, self.open_library, self.flags = framework, open_library, flags
        self.problem: str | None = None
        self.path: str | None = None  # of the library that is used
        self._address: int | None = None
        self._tried = False
        self._lock = threading.Lock()

    def load(self, build: bool = True) -> int | None:
        """Address of the table for the framework that is loaded, or None; problem then says why. Tried once.

        Raises NotBuilt where it would have to be built and is not to be.
        The environment variable ANYOP_<STEM>=0 does without, any other value is the path of the library to take.
        """
        with self._lock:  # a second thread waits for the build, or it would go on without
            if not self._tried:
                self._tried = True
                try:
                    module = self.framework()
                    path = self.find(module, build=build)
                    self._address = self.open_library(path, module.__version__)
                    self.path = path
                except NotBuilt:
                    self._tried = False
                    raise
                except (OSError, RuntimeError, ValueError) as error:
                    self.problem = str(error)
                    logging.getLogger("anyop").info("no %s: %s", self.stem, self.problem)
            return self._address

    def find_loaded(self, build: bool = True) -> str | None:
        """Path of what load() loads; None, or NotBuilt, as there."""
        return self.path if self.load(build) is not None else None

    def find(self, module: ModuleType, jobs: int | None = None, build: bool = True) -> str:
        """Path of the library for this framework, built by so many compilers at a time where it is not there.

        Raises OSError, RuntimeError, ValueError.
        """
        wanted = os.environ.get(self.variable, "")
        if wanted == "0":
            raise RuntimeError(f"{self.variable}=0 says to do without")
        if wanted:
            return wanted
        shipped = os.path.join(LIB, f"{self.stem}-{module.__version__}.so")
        if os.path.exists(shipped):
            return shipped
        flags = self.flags(module, INSTALLED, include_dir(), LIB)
        name = f"{self.stem}_{module.__version__}"
        facts = [_anyop.version, os.uname().machine, name, _commit(module), *flags]
        key = hash_texts(facts + named_flags(choose_toolchain("host")))
        title = f"{self.title} {module.__version__}"

        def make(private: str) -> Manifest:
            if not build:
                raise NotBuilt
            from anyop.builder.single import compile_library

            logging.getLogger("anyop").info("building %s (once, some seconds)", title)
            return compile_library(name, title, f"{self.stem}.so", flags, private, jobs)

        return obtain(Request(name, key, _find_compiler), make)


def _find_compiler(_role: str) -> list[str] | None:
    return find_command(choose_toolchain("host"))


def _commit(module: ModuleType) -> str:
    """What tells two builds of one version apart."""
    version = module.version
    return str(getattr(version, "git_version", None) or getattr(version, "commit", ""))
