# SPDX-License-Identifier: Apache-2.0
"""Operators written once, called from every framework: ``anyop.rms_norm(x, weight)``.

Every operator of anyop is a function of this package; those of other namespaces are under ``anyop.ops``.
Tensors in, tensors of the same framework out: NumPy arrays, torch tensors and anything that speaks DLPack.
"""

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

_add_functions(globals())

__all__ = [
    "DeviceError",
    "InternalError",
    "backends",
    "cmake_dir",
    "get_num_threads",
    "include_dir",
    "list_ops",
    "load",
    "metadata",
    "ops",
    "schema",
    "set_num_threads",
]
__all__ += list_ops("anyop")
