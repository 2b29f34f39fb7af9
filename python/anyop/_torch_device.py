# SPDX-License-Identifier: Apache-2.0
"""The library of the PyTorch device for the torch that is loaded: found prebuilt or in the cache, or built once.

Its sources are those of bindings/torch_device. ANYOP_TORCH_DEVICE is the path of one to take, 0 says to do without.
"""

from __future__ import annotations

import contextlib
import glob
import os
import sys
from types import ModuleType

from anyop import _anyop, _frameworks
from anyop._build_once import BuildOnce
from anyop._torch_glue import compiler_flags
from anyop.cache.place import cache_dir, make_private

_INSTALLED = os.path.dirname(os.path.abspath(_anyop.__file__))
_LIB = os.path.join(_INSTALLED, "lib")
LIBANYOP = os.path.join(_LIB, "libanyop.so")


def sources(folder: str = os.path.join(_INSTALLED, "torch_device")) -> list[str]:
    """Its C++ files and headers, without the tests beside them."""
    found = glob.glob(os.path.join(glob.escape(folder), "*.*"))
    return sorted(f for f in found if f.endswith((".cc", ".h")) and not f.endswith("_test.cc"))


def _flags(torch: ModuleType, folder: str) -> list[str]:
    files = [path for path in sources(folder) if path.endswith(".cc")]
    name = f"-Wl,-soname,torch_device-{torch.__version__}.so"  # by which a wrong one is refused
    minor = f"-DANYOP_TORCH_MINOR={torch.__version__.split('.')[1]}"
    return [*compiler_flags(torch, *files), minor, name, "-ltorch", f"-L{_LIB}", "-lanyop"]


_library = BuildOnce(
    "torch_device", _frameworks.real_torch, None, _flags, "the PyTorch device for torch"
)


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
    from anyop import _torch_device_entry  # which needs torch

    _torch_device_entry.check_torch()
    library = _library.find(torch, jobs)
    if library.startswith(cache_dir()):
        with contextlib.suppress(OSError):  # a cache that cannot be written
            _tell_entry_point(library)
    return library


def _tell_entry_point(library: str) -> None:
    from anyop import _torch_device_entry

    package = os.path.dirname(os.path.abspath(__file__))
    note = _torch_device_entry.note_path(cache_dir(), package)
    if _torch_device_entry.read_note(note) != (library, LIBANYOP):
        make_private(os.path.dirname(note))
        _torch_device_entry.write_note(note, [library, LIBANYOP, *sources()])
