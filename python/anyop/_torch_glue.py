# SPDX-License-Identifier: Apache-2.0
"""The glue for the torch that is loaded: found prebuilt, found in the cache, or built once by the C++ compiler.

Without it everything works, more slowly: guards then ask torch's Python attributes. ``problem`` says why it is missing.
"""

import hashlib
import logging
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading

from anyop import _anyop
from anyop._paths import include_dir

problem: str | None = None
path: str | None = None  # of the library that is used
_FLAGS = ["-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-plt"]
_address: int | None = None
_tried = False
_lock = threading.Lock()


def load() -> int | None:
    """Address of the AnyopTorchGlue for the torch that is loaded, or None; problem then says why. Tried once.

    ANYOP_TORCH_GLUE=0 does without, any other value is the path of the library to take.
    """
    global _tried, _address, problem
    with _lock:  # a second thread waits for the build, or it would go on without
        if not _tried:
            _tried = True
            try:
                _address = _open(_find(sys.modules["torch"]))
            except (OSError, RuntimeError, ValueError, subprocess.SubprocessError) as error:
                problem = str(error)
                logging.getLogger("anyop").info("torch's guards run by attribute: %s", problem)
        return _address


def _open(library: str) -> int:
    global path
    address = _anyop.open_torch_glue(library, sys.modules["torch"].__version__)
    path = library
    return address


def _find(torch) -> str:
    wanted = os.environ.get("ANYOP_TORCH_GLUE", "")
    if wanted == "0":
        raise RuntimeError("ANYOP_TORCH_GLUE=0 says to do without")
    if wanted:
        return wanted
    here = os.path.dirname(os.path.abspath(_anyop.__file__))
    shipped = os.path.join(here, "lib", f"torch_glue-{torch.__version__}.so")
    return shipped if os.path.exists(shipped) else _cached(torch, os.path.join(here, "torch_glue"))


def _cached(torch, sources: str) -> str:
    """The library in the cache, built when it is not there or cannot be loaded."""
    command = [*_compiler(), *_FLAGS, *_torch_flags(torch, sources)]
    key = hashlib.sha256(repr(command).encode())
    headers = os.path.join(include_dir(), "anyop", "kernel.h")
    for file in (*(os.path.join(sources, f"torch_glue.{end}") for end in ("cc", "h")), headers):
        with open(file, "rb") as stream:
            key.update(stream.read())
    key.update(f"{torch.__version__} {torch.version.git_version}".encode())
    folder = cache_dir()
    library = os.path.join(folder, f"torch_glue-{torch.__version__}-{key.hexdigest()[:16]}.so")
    if not _usable(library, torch):
        _build(command, library)
    return library


def _usable(library: str, torch) -> bool:
    if not os.path.exists(library):
        return False
    if os.stat(library).st_uid not in (os.getuid(), 0):
        raise RuntimeError(f"{library} belongs to another user")
    try:
        _anyop.open_torch_glue(library, torch.__version__)
    except ValueError:
        return False
    return True


def _build(command: list[str], library: str) -> None:
    """Build beside the final place, then rename: another process sees all of it or nothing."""
    logging.getLogger("anyop").info("building %s (once, some seconds)", library)
    os.makedirs(os.path.dirname(library), mode=0o700, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=os.path.dirname(library)) as folder:
        made = os.path.join(folder, "torch_glue.so")
        done = subprocess.run([*command, "-o", made], capture_output=True, text=True, timeout=300)
        if done.returncode:
            first = next(
                (line for line in done.stderr.splitlines() if "error" in line), done.stderr
            )
            raise RuntimeError(f"{command[0]} could not build the glue for torch: {first}")
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


def _torch_flags(torch, sources: str) -> list[str]:
    root = os.path.dirname(os.path.abspath(torch.__file__))
    flags = [
        f'-DANYOP_TORCH_VERSION="{torch.__version__}"',
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        f"-I{os.path.join(root, 'include')}",
        f"-I{include_dir()}",
        os.path.join(sources, "torch_glue.cc"),
        f"-L{os.path.join(root, 'lib')}",
        "-lc10",
        "-ltorch_cpu",
    ]
    return ["-DUSE_ROCM", *flags] if torch.version.hip else flags
