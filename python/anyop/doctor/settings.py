# SPDX-License-Identifier: Apache-2.0
"""What a bug report needs besides: the processor, the system, the operators of the build, variables, routes."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator

import anyop
from anyop import _anyop
from anyop.doctor.finding import NOTE, OK, Finding

_GROUP = "settings"
_OTHERS = re.compile(r"(CUDA|HIP|ROCR)_VISIBLE_DEVICES|LD_(PRELOAD|LIBRARY_PATH)|(OMP|MKL|OPENBLAS)_NUM_THREADS|"
                     r"XLA_FLAGS|JAX_PLATFORMS|TORCH_\w+|PYTORCH_\w+|CXX|NVCC|CUDA_HOME")  # fmt: skip
_FEATURES = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "asimd", "sve", "bf16")


def findings() -> Iterator[Finding]:
    """The machine, the build, variables, routes."""
    yield Finding(_GROUP, "processor", OK, _processor())
    yield Finding(_GROUP, "system", OK, _system())
    yield Finding(_GROUP, "operators", OK, _operators())
    for name in sorted(os.environ):
        if name.startswith("ANYOP_") or _OTHERS.fullmatch(name):
            yield Finding(_GROUP, name, NOTE, os.environ[name])
    yield Finding(_GROUP, "routes", OK, _routes())


def _processor() -> str:
    fields = dict(re.findall(r"^([\w ]+?)\s*: (.*)$", _read("/proc/cpuinfo"), re.MULTILINE))
    flags = set(fields.get("flags", fields.get("Features", "")).split())
    known = [feature for feature in _FEATURES if feature in flags]
    name = fields.get("model name", "of an unknown name")
    return (
        f"{name}, {len(os.sched_getaffinity(0))} CPUs: {', '.join(known) or 'no vector unit known'}"
    )


def _system() -> str:
    name = re.search(r'^PRETTY_NAME="?(.*?)"?$', _read("/etc/os-release"), re.MULTILINE)
    return f"{name[1] if name else 'an unknown distribution'}, Linux {os.uname().release}"


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""


def _operators() -> str:
    """How many there are, and those backends that this build has kernels for."""
    names = anyop.list_ops()
    counts: dict[str, int] = {}
    for name in names:
        for backend in anyop.backends(name):
            counts[backend] = counts.get(backend, 0) + 1
    parts = (f"{backend} {count}" for backend, count in sorted(counts.items()))
    return f"{len(names)}: {', '.join(parts)}"


def _routes() -> str:
    """Those that are in force from the start."""
    state = json.loads(_anyop.routes())
    count = len(state["rules"]) + len(state["aten_rules"])
    return f"{count} rules of {', '.join(state['files']) or 'no file'}"
