# SPDX-License-Identifier: Apache-2.0
"""The library of the PyTorch device for the torch that is loaded: found prebuilt or in the cache, or built once.

ANYOP_TORCH_DEVICE is the path of one to take, 0 says to do without.
"""

from __future__ import annotations

import contextlib
import os
import sys

from anyop import _frameworks
from anyop.cache.place import cache_dir, make_private
from anyop.native import recipe
from anyop.native.library import INSTALLED, LIB, NativeLibrary

LIBANYOP = os.path.join(LIB, "libanyop.so")

_library = NativeLibrary(
    "torch_device",
    _frameworks.real_torch,
    None,
    recipe.torch_device,
    "the PyTorch device for torch",
)


def load() -> str:
    """Find the library and load it, which claims no device; its path. Raises as find does."""
    library = find()
    from anyop.native import device_file

    device_file.check_version(library)
    device_file.open_library(library, LIBANYOP)
    return library


def find(jobs: int | None = None) -> str:
    """Path of the library, built where it is not there; the entry point of torch.backends is told of it.

    Raises RuntimeError (BuildError among them), ValueError, OSError, ImportError.
    """
    try:
        torch = _frameworks.import_real_torch()
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        text = f"the PyTorch device needs torch, which is not installed: {sys.executable} -m pip install torch"
        raise ImportError(text, name="torch") from None
    from anyop.native import device_file  # which needs torch

    device_file.check_torch()
    library = _library.find(torch, jobs)
    if library.startswith(cache_dir()):
        with contextlib.suppress(OSError):  # a cache that cannot be written
            _tell_entry_point(library)
    return library


def _tell_entry_point(library: str) -> None:
    from anyop.native import device_file

    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    note = device_file.note_path(cache_dir(), package)
    if device_file.read_note(note) != (library, LIBANYOP):
        make_private(os.path.dirname(note))
        device_file.write_note(note, [library, LIBANYOP, *recipe.device_files(INSTALLED)])
