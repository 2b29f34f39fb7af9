# SPDX-License-Identifier: Apache-2.0
"""Loads the extension module, and says clearly why where it cannot be."""

import importlib
import sys


def _load():
    if hasattr(sys, "_is_gil_enabled"):
        import sysconfig

        if sysconfig.get_config_var("Py_GIL_DISABLED"):
            raise ImportError(
                "anyop has no build for free-threaded Python yet; use a Python with the GIL "
                f"(this is {sys.version.split()[0]} free-threaded)"
            )
    # Not `from anyop import _anyop`, which waits for a thread that imports anyop, and that waits for this module.
    return importlib.import_module("anyop._anyop")


def _register_tvm_ffi(core):
    """Make operators global functions of tvm-ffi, found without importing tvm_ffi, which would import torch."""
    from anyop._paths import package_file

    path = package_file("tvm_ffi", "lib", "libtvm_ffi.so")
    return core.register_tvm_ffi(path) if path else "the package apache-tvm-ffi is not installed"


core = _load()
tvm_ffi_problem = _register_tvm_ffi(core)  # None when operators are tvm-ffi's global functions
