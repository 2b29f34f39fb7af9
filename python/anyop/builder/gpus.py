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

from anyop.cache.dependencies import open_regular
from anyop.cache.place import cache_dir, check_private

_DRIVER = "/proc/driver/nvidia/gpus"
_NOTE = ".anyop.built_for"  # a section of a library
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
        if not isinstance(part, str) or not re.fullmatch(
            r"[1-9]\d{1,2}[af]?|gfx[0-9a-f]+|mtp_\d{3}", part
        ):
            raise ValueError(
                f"architecture {part!r}, expected texts such as '80', '90a', 'gfx90a' or 'mtp_592'"
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
        check_private(cache_dir())
        with open(memory, encoding="utf-8", opener=open_regular) as stream:
            known = json.load(stream)
        archs = tuple(known["archs"])
        if known["models"] == models and all(re.fullmatch(r"\d{2,3}", arch) for arch in archs):
            return archs
    except (OSError, ValueError, KeyError, TypeError):
        pass
    found = _ask_driver()
    if found:  # a driver that does not answer may do so later
        _remember(memory, {"models": models, "archs": found})
    return tuple(found)


def write_built_for(archs: Iterable[str]) -> str:
    """C text that notes in a library what its CUDA kernels are for: sm_90a, compute_90 (any later one)."""
    from anyop.codegen.text.c_text import c_string

    note = f"__attribute__((used, section({c_string(_NOTE)})))"
    return f"{note} static const char kBuiltFor[] = {c_string(' '.join(sorted(archs)))};\n"


def refuse_other_gpu(library: str) -> None:
    """ValueError where no CUDA kernel of a library can run on this machine's GPUs. Without a GPU nothing is asked."""
    here = gpu_archs()
    if not here:
        return
    with open(library, "rb") as stream:
        if _NOTE.encode() not in stream.read():
            return  # without CUDA kernels, as most are
    from anyop.builder.elf import Elf

    notes = Elf(library).contents(_NOTE)
    built = notes[0].rstrip(b"\0").decode().split() if notes else []
    if built and not any(_runs_on(arch, gpu) for arch in built for gpu in here):
        raise ValueError(
            f"{library} has CUDA kernels for {', '.join(built)}, this machine's GPUs are sm_{', sm_'.join(here)}; "
            "build it for them, or take the library of another architecture"
        )


def _runs_on(built: str, gpu: str) -> bool:
    """By CUDA's rules: machine code on GPUs of its generation, not older; compute_ code on any that is not older."""
    kind, arch = built.split("_")
    if not arch.isdigit():  # 90a: that one only; 100f: its family
        return arch.rstrip("af") == gpu or (arch.endswith("f") and arch[:-2] == gpu[:-1])
    return int(arch) <= int(gpu) and (kind == "compute" or arch[:-1] == gpu[:-1])


def _models() -> list[str]:
    """What kinds of GPUs the kernel driver has: their PCI numbers. Its own description of them takes 10 ms to read."""
    found = set()
    try:
        for device in os.listdir(_DRIVER):
            found.add(
                _read(f"/sys/bus/pci/devices/{device}/device")
                or _read(f"{_DRIVER}/{device}/information")
            )
    except OSError:
        return []
    return sorted(found)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read().strip()
    except OSError:
        return ""


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
