# SPDX-License-Identifier: Apache-2.0
"""Operators written once, called from every framework: ``anyop.rms_norm(x, weight)``.

Every operator of anyop is a function of this package; those of other namespaces are under ``anyop.ops``.
Tensors in, tensors of the same framework out: NumPy arrays, torch tensors and anything that speaks DLPack.
"""

import importlib as _importlib

from anyop._load import core as _core
from anyop._operators import add_functions as _add_functions
from anyop._operators import list_ops, load, metadata, ops, schema
from anyop._paths import cmake_dir, include_dir

InternalError = _core.InternalError
DeviceError = _core.DeviceError
__version__ = _core.version
backends = _core.backends
get_num_threads = _core.get_num_threads
set_num_threads = _core.set_num_threads

# Imported when they are first asked for: who only calls operators does not pay for the builder.
_LATER = {
    "BuildError": "anyop.builder",
    "MissingToolError": "anyop.builder",
    "build": "anyop.builder",
    "jit": "anyop.jit",
}


def __getattr__(name: str):
    if name not in _LATER:
        raise AttributeError(f"module 'anyop' has no attribute {name!r}")
    module = _importlib.import_module(_LATER[name])
    globals()[name] = module if _LATER[name] == f"anyop.{name}" else getattr(module, name)
    return globals()[name]


def __dir__():
    return sorted({*globals(), *_LATER})


_add_functions(globals())

__all__ = [
    "BuildError",
    "DeviceError",
    "InternalError",
    "MissingToolError",
    "backends",
    "build",
    "cmake_dir",
    "get_num_threads",
    "include_dir",
    "jit",
    "list_ops",
    "load",
    "metadata",
    "ops",
    "schema",
    "set_num_threads",
]
__all__ += list_ops("anyop")
