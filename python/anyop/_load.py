# SPDX-License-Identifier: Apache-2.0
"""Loads the extension module, and says clearly why where it cannot be."""

from __future__ import annotations

import importlib
import sys
from typing import Any


def _load() -> Any:
    if hasattr(sys, "_is_gil_enabled"):
        import sysconfig

        if sysconfig.get_config_var("Py_GIL_DISABLED"):
            raise ImportError(
                "anyop has no build for free-threaded Python yet; use a Python with the GIL "
                f"(this is {sys.version.split()[0]} free-threaded)"
            )
    # Not `from anyop import _anyop`, which waits for a thread that imports anyop, and that waits for this module.
    return importlib.import_module("anyop._anyop")


def register_tvm_ffi() -> str | None:
    """Make operators global functions of tvm-ffi now, without importing tvm_ffi; once. None, or why they are not."""
    path = _library_of_tvm_ffi()
    return core.register_tvm_ffi(path) if path else "the package apache-tvm-ffi is not installed"


def _library_of_tvm_ffi() -> str | None:
    from anyop._paths import package_file

    return package_file("tvm_ffi", "lib", "libtvm_ffi.so")


def _await_tvm_ffi() -> None:
    """Register when somebody uses tvm-ffi: its library alone takes 2 MB of every process."""
    from anyop._when_imported import when_imported

    core.note_tvm_ffi(_library_of_tvm_ffi() or "")
    if "tvm_ffi" not in sys.modules:
        when_imported("tvm_ffi", lambda _: register_tvm_ffi())
    # The second: another thread may have begun to import it.
    if core.register_tvm_ffi("") is not None and "tvm_ffi" in sys.modules:
        register_tvm_ffi()


core = _load()
_await_tvm_ffi()
