# SPDX-License-Identifier: Apache-2.0
"""Operators written once, called from every framework: ``anyop.rms_norm(x, weight)``.

Every operator of anyop is a function of this package; those of other namespaces are under ``anyop.ops``.
Tensors in, tensors of the same framework out: NumPy arrays, torch tensors and anything that speaks DLPack.
"""

import importlib as _importlib
import os as _os

from anyop._load import core as _core
from anyop._operators import add_functions as _add_functions
from anyop._operators import hold, list_ops, load, metadata, ops, schema
from anyop._operators import no_attribute as _no_attribute
from anyop._paths import cmake_dir, include_dir

InternalError = _core.InternalError
DeviceError = _core.DeviceError
DeclinedError = _core.DeclinedError
__version__ = _core.version
get_num_threads = _core.get_num_threads
set_num_threads = _core.set_num_threads

# Imported when they are first asked for: who only calls operators does not pay for the builder or for routes.
_LATER = {
    "BuildError": "anyop.builder.errors",
    "MissingToolError": "anyop.builder.errors",
    "aten": "anyop.aten",
    "backends": "anyop._routes",
    "build": "anyop.builder.build",
    "explain": "anyop._routes",
    "is_deterministic": "anyop._routes",
    "jit": "anyop.jit",
    "load_routes": "anyop._routes",
    "log_dispatch": "anyop._routes",
    "record": "anyop._routes",
    "register": "anyop.backend.register",
    "register_tvm_ffi": "anyop.backend.tvm_ffi",
    "unregister": "anyop.backend.register",
    "use": "anyop._scope",
    "use_deterministic": "anyop._routes",
}
# Packages of anyop that their users import.
_PARTS = ("cache", "doctor", "jax", "paddle", "testing", "torch", "tune")


def __getattr__(name: str):
    if name not in _LATER:
        if name in _PARTS:
            raise AttributeError(f"module 'anyop' has no attribute {name!r}: import anyop.{name}")
        raise _no_attribute("anyop", name, [*__dir__(), *_PARTS])
    module = _importlib.import_module(_LATER[name])
    globals()[name] = module if _LATER[name] == f"anyop.{name}" else getattr(module, name)
    return globals()[name]


def __dir__():
    return sorted({*globals(), *_LATER})


_add_functions(globals())
if _os.environ.get("ANYOP_LOG_DISPATCH", "0") in ("1", "2"):  # to Python's logging too
    __getattr__("log_dispatch")(
        int(_os.environ["ANYOP_LOG_DISPATCH"]), _os.environ.get("ANYOP_LOG_FILE")
    )
if _os.environ.get("TRITON_INTERPRET", "0") != "0":  # Triton's kernels take the CPU's tensors
    _importlib.import_module("anyop.backend.triton").register_on_cpu()

__all__ = [
    "BuildError",
    "DeclinedError",
    "DeviceError",
    "InternalError",
    "MissingToolError",
    "backends",
    "build",
    "cmake_dir",
    "explain",
    "get_num_threads",
    "hold",
    "include_dir",
    "is_deterministic",
    "jit",
    "list_ops",
    "load",
    "load_routes",
    "log_dispatch",
    "metadata",
    "ops",
    "record",
    "register",
    "register_tvm_ffi",
    "schema",
    "set_num_threads",
    "unregister",
    "use",
    "use_deterministic",
]
__all__ += list_ops("anyop")
