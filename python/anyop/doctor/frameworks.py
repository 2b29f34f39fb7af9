# SPDX-License-Identifier: Apache-2.0
"""Python packages: which frameworks are installed, their versions, and anyop's part in them; none is imported."""

from __future__ import annotations

import glob
import importlib.metadata
import os
import re
import sys
from collections.abc import Iterator

from anyop import _anyop
from anyop._load import register_tvm_ffi
from anyop.cache.place import cache_dir
from anyop.doctor.finding import NOTE, OK, PROBLEM, Finding

_GROUP = "frameworks"
_DRIVER = "/proc/driver/nvidia/version"
_PACKAGES = {  # name -> distributions, one of which it is
    "numpy": ("numpy",),
    "ml_dtypes": ("ml_dtypes",),
    "torch": ("torch",),
    "jax": ("jax",),
    "jaxlib": ("jaxlib",),
    "paddle": ("paddlepaddle", "paddlepaddle-gpu"),
    "cupy": ("cupy", "cupy-cuda13x", "cupy-cuda12x", "cupy-cuda11x"),
    "tvm-ffi": ("apache-tvm-ffi",),
    "pytest": ("pytest",),
}
_WHY = {
    "numpy": "anyop test and anyop bench need it",
    "ml_dtypes": "bfloat16 and float8 in NumPy",
    "pytest": "the tests that a folder has of its own",
}
_OLDEST = {"torch": (2, 9), "tvm-ffi": (0, 1, 6)}
_DEVICE = "PyTorch device"
_GLUES = {  # what it is for: package, stem
    "glue for torch": ("torch", "torch_glue"),
    "glue for ATen": ("torch", "torch_aten_glue"),
    _DEVICE: ("torch", "torch_device"),
    "glue for paddle": ("paddle", "paddle_glue"),
}
_WITHOUT = {
    "glue for ATen": "calls go without it, more slowly, and ATen's with numbers are refused",
    _DEVICE: "there is none",
}


def findings() -> Iterator[Finding]:
    """Every package, then what binds anyop to torch, Paddle and tvm-ffi."""
    versions = {name: _version(names) for name, names in _PACKAGES.items()}
    for name, version in versions.items():
        yield _package(name, version)
    if problem := register_tvm_ffi():
        yield Finding(_GROUP, "tvm-ffi's registry", PROBLEM, problem, _pip("apache-tvm-ffi"))
    for name, (package, stem) in _GLUES.items():
        if versions[package]:
            yield _glue(name, stem, versions[package])


def _package(name: str, version: str | None) -> Finding:
    if version is None:
        why = f" ({_WHY[name]})" if name in _WHY else ""
        mend = _cupy() if name == "cupy" else _pip(_PACKAGES[name][0])
        return Finding(_GROUP, name, NOTE, f"not installed{why}", mend)
    oldest = _OLDEST.get(name)
    if oldest and _numbers(version) < oldest:
        wanted = ".".join(map(str, oldest))
        mend = _pip(f"'{_PACKAGES[name][0]}>={wanted}'")
        return Finding(_GROUP, name, PROBLEM, f"{version}, anyop needs {wanted} or newer", mend)
    return Finding(_GROUP, name, OK, version)


def _version(names: tuple[str, ...]) -> str | None:
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+")[0])[:3])


def _cupy() -> str:
    """The wheel for NVIDIA's driver, nothing without one: the package cupy is a source, which compiles for long."""
    try:
        with open(_DRIVER, encoding="utf-8") as stream:
            found = re.search(r" (\d{3})\.\d", stream.read())
    except OSError:
        return ""
    return _pip("cupy-cuda13x" if found and int(found[1]) >= 580 else "cupy-cuda12x")


def _pip(what: str) -> str:
    return f"{sys.executable} -m pip install {what}"


def _glue(name: str, stem: str, version: str) -> Finding:
    """The library that is built once for each version of a framework."""
    variable = f"ANYOP_{stem.upper()}"
    named = os.environ.get(variable)
    if named == "0":
        without = _WITHOUT.get(name, "calls go without it, more slowly")
        return Finding(_GROUP, name, NOTE, f"{variable}=0: {without}", f"unset {variable}")
    if named:
        if os.path.isfile(named):
            return Finding(_GROUP, name, OK, f"{named}, as {variable} says")
        return Finding(
            _GROUP, name, PROBLEM, f"{variable} is {named!r}, which is no file", f"unset {variable}"
        )
    short = glob.escape(version.split("+")[0])
    shipped = os.path.join(os.path.dirname(os.path.abspath(_anyop.__file__)), "lib")
    for pattern in (
        os.path.join(glob.escape(shipped), f"{stem}-{short}*.so"),
        os.path.join(glob.escape(cache_dir()), "entries", f"{stem}_{short}*", "*", "*.so"),
    ):
        found = sorted(glob.glob(pattern), key=os.path.getmtime)
        if found:
            return Finding(_GROUP, name, OK, found[-1])
    when = "`anyop build-device`" if name == _DEVICE else "the first call"
    return Finding(_GROUP, name, OK, f"not built yet: {when} does it, once, with the C++ compiler")
