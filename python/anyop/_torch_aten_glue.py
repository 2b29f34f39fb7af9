# SPDX-License-Identifier: Apache-2.0
"""The glue that calls ATen's operators of the torch that is loaded. Without it the C shim is used, for what it can."""

from __future__ import annotations

import ctypes
import os

from anyop import _frameworks
from anyop._build_once import BuildOnce
from anyop._paths import include_dir

_FLAGS = ["-std=c++20", "-O2", "-DNDEBUG", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-plt"]


def _flags(torch, sources: str) -> list[str]:
    root = os.path.dirname(os.path.abspath(torch.__file__))
    flags = [
        *_FLAGS,
        f'-DANYOP_TORCH_VERSION="{torch.__version__}"',
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        f"-I{os.path.join(root, 'include')}",
        f"-I{include_dir()}",
        os.path.join(os.path.dirname(sources), "torch_glue", "torch_aten_glue.cc"),
        f"-L{os.path.join(root, 'lib')}",
        "-lc10",
        "-ltorch_cpu",
    ]
    return ["-DUSE_ROCM", *flags] if torch.version.hip else flags


def _open(path: str, _version: str) -> int:
    """Whether it can be loaded at all; AnyopAtenOpen checks for which torch it is."""
    return ctypes.CDLL(path)._handle


_glue = BuildOnce("torch_aten_glue", _frameworks.real_torch, _open, _flags)


def path() -> str | None:
    """Of the library for the torch that is loaded, built when it is not there; None: problem says why."""
    return _glue.path if _glue.load() is not None else None


def __getattr__(name: str):
    if name == "problem":
        return _glue.problem
    raise AttributeError(f"module {__name__} has no attribute {name}")
