# SPDX-License-Identifier: Apache-2.0
"""The glue for the torch that is loaded. Without it guards ask torch's Python attributes, more slowly."""

import os

from anyop import _anyop, _frameworks
from anyop._build_once import BuildOnce
from anyop._paths import include_dir

_FLAGS = ["-std=c++20", "-O2", "-DNDEBUG", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-plt"]
_FLAGS += ["-Wl,--exclude-libs,ALL"]  # a libstdc++ that the compiler links statically stays inside


def compiler_flags(torch, *sources: str) -> list[str]:
    """For a library of these files against the loaded torch."""
    root = os.path.dirname(os.path.abspath(torch.__file__))
    flags = [
        *_FLAGS,
        f'-DANYOP_TORCH_VERSION="{torch.__version__}"',
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        f"-I{os.path.join(root, 'include')}",
        f"-I{include_dir()}",
        *sources,
        f"-L{os.path.join(root, 'lib')}",
        "-lc10",
        "-ltorch_cpu",
    ]
    return ["-DUSE_ROCM", *flags] if torch.version.hip else flags


def _flags(torch, sources: str) -> list[str]:
    return compiler_flags(torch, os.path.join(sources, "torch_glue.cc"))


_glue = BuildOnce("torch_glue", _frameworks.real_torch, _anyop.open_torch_glue, _flags)
load = _glue.load


def __getattr__(name: str):
    if name in ("problem", "path"):
        return getattr(_glue, name)
    raise AttributeError(f"module {__name__} has no attribute {name}")
