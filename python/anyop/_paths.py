# SPDX-License-Identifier: Apache-2.0
"""Where the installed package keeps what C and C++ programs need."""

import importlib.machinery
import importlib.util
import os

from anyop._anyop import __file__ as _library

_installed = os.path.dirname(os.path.abspath(_library))


def include_dir() -> str:
    """Folder of the C and C++ headers: ``#include "anyop/anyop.h"``."""
    return os.path.join(_installed, "include")


def cmake_dir() -> str:
    """Folder of anyopConfig.cmake: ``cmake -Danyop_DIR=$(python -c 'import anyop; print(anyop.cmake_dir())')``."""
    return os.path.join(_installed, "lib", "cmake", "anyop")


def package_file(package: str, *path: str) -> str:
    """A file in the folder of an installed package, which is not imported; "" where it is not there."""
    files = [os.path.join(place, *path) for place in package_folders(package)]
    return next(filter(os.path.isfile, files), "")


def package_folders(package: str) -> list[str]:
    """Folders of an installed package. One of its name without a module in it is none: it may be one in the current
    folder, whose programs and libraries nobody meant to run.
    """
    spec = importlib.util.find_spec(package)
    return list(spec.submodule_search_locations or ()) if spec and spec.origin else []


def is_installed(module: str) -> bool:
    """Whether there is such a module, likewise: those around it are not imported."""
    top, *inner = module.split(".")
    spec, name = importlib.util.find_spec(top), top
    for part in inner:
        if spec is None or spec.submodule_search_locations is None:
            return False
        name = f"{name}.{part}"
        spec = importlib.machinery.PathFinder.find_spec(name, [*spec.submodule_search_locations])
    return spec is not None and spec.origin is not None


def check_utf8(text: str, where: str) -> None:
    """Raises ValueError for a name that no text file can hold: build.ninja, tables, manifests."""
    try:
        text.encode()
    except UnicodeEncodeError:
        shown = text if len(text) < 300 else f"{text[:300]}…"
        raise ValueError(f"{where} {shown!r}, which is not UTF-8; write it in UTF-8") from None
