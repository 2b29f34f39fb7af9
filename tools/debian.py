# SPDX-License-Identifier: Apache-2.0
"""Sees to what tests need and PyPI has not: installs Debian's packages in CI, else says how.

python3 tools/debian.py icu hip strace opencl oclgrind

What cannot be had is said; the tests that need it are skipped and say why too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import NamedTuple

_SECONDS = 900  # of one command of apt-get


class Need(NamedTuple):
    """What is not done without it, what tells whether it is there, and Debian's packages."""

    without: str
    packages: tuple[str, ...]
    programs: tuple[str, ...] = ()
    header: str = ""
    files: tuple[str, ...] = ()


NEEDS = {
    "icu": Need(
        "examples/cpp/embed is not tested", ("libicu-dev",), header="unicode/normalizer2.h"
    ),
    "hip": Need(
        "no operator is built for HIP",
        ("hipcc", "libamdhip64-dev"),
        (os.environ.get("ANYOP_HIPCC", "hipcc"),),
    ),
    "hip-clang": Need(
        "no code object of HIP is made for gfx942",
        ("clang-19", "lld-19"),
        ("clang++-19", "ld.lld-19"),
    ),
    "strace": Need("loads from the cache are watched by Python alone", ("strace",), ("strace",)),
    "chromium": Need(
        "the site is not looked at in a browser",
        ("chromium", "chromium-driver"),
        ("chromium", "chromedriver"),
    ),
    "opencl": Need(
        "nothing runs on the device opencl",
        ("pocl-opencl-icd", "ocl-icd-libopencl1"),
        files=("/etc/OpenCL/vendors/pocl.icd",),
    ),
    "oclgrind": Need(
        "kernels in OpenCL C are not searched for races",
        ("oclgrind", "ocl-icd-libopencl1"),
        files=("/usr/lib/oclgrind/liboclgrind-rt-icd.so",),
    ),
    "aarch64": Need(
        "nothing is built for aarch64",
        ("g++-aarch64-linux-gnu", "qemu-user"),
        ("aarch64-linux-gnu-g++", "qemu-aarch64"),
    ),
}


def is_here(need: Need) -> bool:
    """Whether all of its programs and files are found, and the C++ compiler finds its header."""
    if not all(map(shutil.which, need.programs)) or not all(map(os.path.exists, need.files)):
        return False
    if not need.header:
        return True
    command = [os.environ.get("CXX", "g++"), "-E", "-x", "c++", "-include", need.header, os.devnull]
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        return False


def see_to(*names: str) -> bool:
    """Install in CI what of these is missing; whether all are here then. Says what is not, and how to get it."""
    missing = [NEEDS[name] for name in names if not is_here(NEEDS[name])]
    if missing and os.environ.get("CI") and shutil.which("apt-get") and os.geteuid() == 0:
        install([package for need in missing for package in need.packages])
        missing = [need for need in missing if not is_here(need)]
    for need in missing:
        print(f"{need.without}: sudo apt-get install {' '.join(need.packages)} (Debian)")
    return not missing


def install(packages: list[str]) -> None:
    """Try to; what came of it is seen by is_here."""
    for words in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
        try:
            subprocess.run(["apt-get", "-qq", *words], check=False, timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            print(f"apt-get {words[0]} took more than {_SECONDS} s")
            return


if __name__ == "__main__":
    see_to(*sys.argv[1:])
