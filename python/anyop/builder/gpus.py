# SPDX-License-Identifier: Apache-2.0
"""The architectures of this machine's NVIDIA GPUs, without starting CUDA in this process: a fork after that would
break it.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Iterable

from anyop.cache.place import cache_dir

_DRIVER = "/proc/driver/nvidia/gpus"
# Run by a Python of its own: prints the compute capability of every device.
_ASK = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
count, value = ctypes.c_int(), ctypes.c_int()
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
for device in range(count.value):
    words = []
    for attribute in (75, 76):
        assert cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device) == 0
        words.append(str(value.value))
    print("".join(words))
"""


def wanted_archs(
    backend: str, arch: str | Iterable[str] | None, default: tuple[str, ...]
) -> list[str]:
    """As the caller says, as ANYOP_CUDA_ARCH says, those of the GPUs present, else the default. Raises ValueError."""
    named = arch if arch is not None else os.environ.get(f"ANYOP_{backend.upper()}_ARCH") or None
    if named is None:
        return (list(gpu_archs()) if backend == "cuda" else []) or list(default)
    parts = re.split(r"[;, ]+", named.strip()) if isinstance(named, str) else list(named)
    for part in parts:
        if not isinstance(part, str) or not re.fullmatch(r"[1-9]\d{1,2}[af]?|gfx[0-9a-f]+", part):
            raise ValueError(
                f"architecture {part!r}, expected texts such as '80', '90a' or 'gfx90a'"
            )
    return sorted(set(parts))


@functools.cache
def gpu_archs() -> tuple[str, ...]:
    """Such as ("80", "90"); empty without a GPU."""
    models = _models()
    if not models:
        return ()
    memory = os.path.join(cache_dir(), "gpus.json")
    try:
        with open(memory, encoding="utf-8") as stream:
            known = json.load(stream)
        if known["models"] == models:
            return tuple(known["archs"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    archs = _ask_driver()
    _remember(memory, {"models": models, "archs": archs})
    return tuple(archs)


def _models() -> list[str]:
    """The names of the GPUs as the kernel driver gives them."""
    found = set()
    try:
        for device in os.listdir(_DRIVER):
            with open(os.path.join(_DRIVER, device, "information"), encoding="utf-8") as stream:
                found.update(
                    line for line in stream.read().splitlines() if line.startswith("Model")
                )
    except OSError:
        return []
    return sorted(found)


def _ask_driver() -> list[str]:
    import subprocess
    import sys

    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _ASK], capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return sorted(set(done.stdout.split())) if done.returncode == 0 else []


def _remember(path: str, value: dict) -> None:
    part = f"{path}.{os.getpid()}.part"
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with open(part, "w", encoding="utf-8") as stream:
            json.dump(value, stream)
        os.replace(part, path)
    except OSError:  # asked again next time
        pass
