# SPDX-License-Identifier: Apache-2.0
"""A library bound to one framework's C++ ABI: found prebuilt, found in the cache, or built once by the C++ compiler.

Without it everything works, more slowly. ``problem`` says why it is missing.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shlex
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable
from types import ModuleType

from anyop import _anyop
from anyop._paths import include_dir


class BuildOnce:
    """One such library: <stem>.cc and <stem>.h lie in the package's folder <stem>.

    framework gives the module that is loaded; open_library(path, version) returns the address of its table, or raises
    ValueError where the library is for another version; flags(module, sources) are those of the compiler.
    """

    def __init__(
        self,
        stem: str,
        framework: Callable[[], ModuleType],
        open_library: Callable[[str, str], int],
        flags: Callable[[ModuleType, str], list[str]],
    ) -> None:
        self.stem, self.variable = stem, f"ANYOP_{stem.upper()}"
        self.framework, self.open_library, self.flags = framework, open_library, flags
        self.problem: str | None = None
        self.path: str | None = None  # of the library that is used
        self._address: int | None = None
        self._tried = False
        self._lock = threading.Lock()

    def load(self) -> int | None:
        """Address of the table for the framework that is loaded, or None; problem then says why. Tried once.

        The environment variable ANYOP_<STEM>=0 does without, any other value is the path of the library to take.
        """
        with self._lock:  # a second thread waits for the build, or it would go on without
            if not self._tried:
                self._tried = True
                try:
                    module = self.framework()
                    path = self._find(module)
                    self._address = self.open_library(path, module.__version__)
                    self.path = path
                except (OSError, RuntimeError, ValueError, subprocess.SubprocessError) as error:
                    self.problem = str(error)
                    logging.getLogger("anyop").info("no %s: %s", self.stem, self.problem)
            return self._address

    def _find(self, module: ModuleType) -> str:
        wanted = os.environ.get(self.variable, "")
        if wanted == "0":
            raise RuntimeError(f"{self.variable}=0 says to do without")
        if wanted:
            return wanted
        here = os.path.dirname(os.path.abspath(_anyop.__file__))
        shipped = os.path.join(here, "lib", f"{self.stem}-{module.__version__}.so")
        if os.path.exists(shipped):
            return shipped
        return self._cached(module, os.path.join(here, self.stem))

    def _cached(self, module: ModuleType, sources: str) -> str:
        """The library in the cache, built when it is not there or cannot be loaded."""
        command = [*_compiler(), *self.flags(module, sources)]
        key = hashlib.sha256(repr(command).encode())
        headers = os.path.join(include_dir(), "anyop", "kernel.h")
        for file in (
            *(os.path.join(sources, f"{self.stem}.{end}") for end in ("cc", "h")),
            headers,
        ):
            with open(file, "rb") as stream:
                key.update(stream.read())
        key.update(f"{module.__version__} {_commit(module)}".encode())
        name = f"{self.stem}-{module.__version__}-{key.hexdigest()[:16]}.so"
        library = os.path.join(cache_dir(), name)
        if not self._usable(library, module):
            self._build(command, library)
        return library

    def _usable(self, library: str, module: ModuleType) -> bool:
        if not os.path.exists(library):
            return False
        if os.stat(library).st_uid not in (os.getuid(), 0):
            raise RuntimeError(f"{library} belongs to another user")
        try:
            self.open_library(library, module.__version__)
        except ValueError:
            return False
        return True

    def _build(self, command: list[str], library: str) -> None:
        """Build beside the final place, then rename: another process sees all of it or nothing."""
        logging.getLogger("anyop").info("building %s (once, some seconds)", library)
        os.makedirs(os.path.dirname(library), mode=0o700, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=os.path.dirname(library)) as folder:
            made = os.path.join(folder, f"{self.stem}.so")
            done = subprocess.run(
                [*command, "-o", made], capture_output=True, text=True, timeout=300
            )
            if done.returncode:
                first = next(
                    (line for line in done.stderr.splitlines() if "error" in line), done.stderr
                )
                glue = f"the glue for {self.stem.removesuffix('_glue')}"
                raise RuntimeError(f"{command[0]} could not build {glue}: {first}")
            os.replace(made, library)


def cache_dir() -> str:
    """ANYOP_CACHE_DIR, else anyop in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.environ.get("ANYOP_CACHE_DIR") or os.path.join(base, "anyop")


def _compiler() -> list[str]:
    named = shlex.split(os.environ.get("CXX", ""))
    if named:
        return named
    for name in ("g++", "c++", "clang++"):
        found = shutil.which(name)
        if found:
            return [found]
    raise RuntimeError("there is no C++ compiler (g++, or one named by CXX)")


def _commit(module: ModuleType) -> str:
    """What tells two builds of one version apart."""
    version = module.version
    return str(getattr(version, "git_version", None) or getattr(version, "commit", ""))
