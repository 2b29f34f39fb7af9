# SPDX-License-Identifier: Apache-2.0
"""The compiler's flags of each library, its files among them. cmake/AnyopGlue.cmake runs this file by its path, too.

folder has the sources as bindings/ has them; include holds the headers of anyop, lib its libraries.
"""

from __future__ import annotations

import glob
import os
from types import ModuleType

# exclude-libs: a libstdc++ that the compiler links statically stays inside.
_TORCH = ["-std=c++20", "-O2", "-DNDEBUG", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-plt"]
_TORCH += ["-Wl,--exclude-libs,ALL"]
# -w: Paddle's headers warn by the hundred.
_PADDLE = ["-std=c++17", "-w", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-plt"]


def with_torch(torch: ModuleType, include: str, *sources: str) -> list[str]:
    """Of a library of these files against this torch."""
    root = os.path.dirname(os.path.abspath(torch.__file__))
    flags = [
        *_TORCH,
        f'-DANYOP_TORCH_VERSION="{torch.__version__}"',
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        f"-I{os.path.join(root, 'include')}",
        f"-I{include}",
        *sources,
        f"-L{os.path.join(root, 'lib')}",
        "-lc10",
        "-ltorch_cpu",
    ]
    return ["-DUSE_ROCM", *flags] if torch.version.hip else flags


def torch_glue(torch: ModuleType, folder: str, include: str, lib: str) -> list[str]:
    """Reads, makes and marks torch's tensors."""
    return with_torch(torch, include, os.path.join(folder, "torch_glue", "torch_glue.cc"))


def torch_aten_glue(torch: ModuleType, folder: str, include: str, lib: str) -> list[str]:
    """Calls ATen's operators."""
    return with_torch(torch, include, os.path.join(folder, "torch_glue", "torch_aten_glue.cc"))


def torch_device(torch: ModuleType, folder: str, include: str, lib: str) -> list[str]:
    """The PyTorch device and overlays."""
    files = [path for path in device_files(folder) if path.endswith(".cc")]
    name = f"-Wl,-soname,torch_device-{torch.__version__}.so"  # by which a wrong one is refused
    minor = f"-DANYOP_TORCH_MINOR={torch.__version__.split('.')[1]}"
    parts = [f"-I{os.path.join(folder, part)}" for part in ("torch_device", "torch_glue")]
    built = with_torch(torch, include, *parts, *files)
    return [*built, minor, name, "-ltorch", f"-L{lib}", "-lanyop"]


def device_files(folder: str) -> list[str]:
    """The device's C++ files and headers, the reader of torch's tensors among them, without the tests beside them."""
    device = os.path.join(glob.escape(folder), "torch_device")
    found = [os.path.join(folder, "torch_glue", "torch_view.h")]
    found += glob.glob(os.path.join(device, "*", "*.*"))
    return sorted(f for f in found if f.endswith((".cc", ".h")) and not f.endswith("_test.cc"))


def paddle_glue(paddle: ModuleType, folder: str, include: str, lib: str) -> list[str]:
    """Reads, makes and marks Paddle's tensors."""
    root = os.path.dirname(os.path.abspath(paddle.__file__))
    headers = os.path.join(root, "include")
    return [
        *_PADDLE,
        f'-DANYOP_PADDLE_VERSION="{paddle.__version__}"',
        f"-I{headers}",
        f"-I{os.path.join(headers, 'third_party')}",
        f"-I{include}",
        os.path.join(folder, "paddle_glue", "paddle_glue.cc"),
        f"-L{os.path.join(root, 'base')}",
        f"-L{os.path.join(root, 'libs')}",
        "-l:libpaddle.so",  # all are loaded already, and found by their names
        "-l:libphi_core.so",
        "-l:libcommon.so",
    ]
