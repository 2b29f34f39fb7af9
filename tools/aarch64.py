# SPDX-License-Identifier: Apache-2.0
"""anyop for 64-bit ARM: cross-compiled, its C++ tests and the standard tests of all operators run under qemu-user.

python3 tools/aarch64.py --python .venv/bin/python [--jobs 2]

The Python is one where anyop is installed for this processor: it reads schemas and references, and calls the operators
of the other one through tests/emulated/answer_calls.cc. The operators are anyop's, and those of a folder from outside,
built by anyop.build. Needs Debian's cross compiler and qemu; where they cannot be had, it says so and does nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import debian

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "aarch64"
STEP = [sys.executable, str(ROOT / "tools" / "step.py")]
COMPILER = "aarch64-linux-gnu-g++"
# No processor with SME: there qemu 7.2 and OpenBLAS 0.3.34 give wrong products (docs/wheels.md).
EMULATOR = ["qemu-aarch64", "-cpu", "neoverse-n1", "-L", "/usr/aarch64-linux-gnu"]
FOLDER = ROOT / "tests" / "third_party" / "odd"
PROGRAM = """
import sys, anyop
folder, out, host = sys.argv[1:]
toolchains = {"host": host} if host else None
print(anyop.build(folder, out=out, name="odd", toolchains=toolchains))
"""


def step(what: str, *command: object, show: bool = False) -> None:
    """Run one step; its failure ends the program."""
    words = [*STEP, *(["--show"] if show else []), f"aarch64: {what}", *map(str, command)]
    if status := subprocess.call(words, cwd=ROOT):
        sys.exit(status)


def build_anyop(python: str, jobs: int) -> None:
    options = [
        "-DCMAKE_TOOLCHAIN_FILE=cmake/aarch64-linux-gnu.cmake", f"-DPython_EXECUTABLE={python}",
        "-DANYOP_BUILD_TESTS=ON", "-DANYOP_WITH_CUDA=OFF",
    ]  # fmt: skip
    step("configure", "cmake", "-G", "Ninja", "-S", ".", "-B", BUILD, *options)
    step("build", "cmake", "--build", BUILD, f"-j{jobs}")
    step("C++ tests", "ctest", "--test-dir", BUILD, "--output-on-failure", show=True)


def fetch_openblas(python: str) -> None:
    """Beside the package, as pip puts it: the same release as here, for the other processor."""
    wheels = BUILD / "wheels"
    if not list(wheels.glob("*.whl")):
        platforms = [f"--platform=manylinux_2_{minor}_aarch64" for minor in (17, 27, 28)]
        pip = [python, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
        step("OpenBLAS", *pip, *platforms, "-d", wheels, "scipy-openblas64")
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(BUILD / "openblas")
    link = BUILD / "python" / "scipy_openblas64"
    link.unlink(missing_ok=True)  # CMake's, to this processor's
    link.symlink_to(BUILD / "openblas" / "scipy_openblas64")


def build_third_party(python: str) -> tuple[str, str]:
    """The library of a folder from outside, for this processor and for the other."""
    found = []
    for out, host in (("here", ""), ("there", COMPILER)):
        words = [python, "-c", PROGRAM, FOLDER, BUILD / "odd" / out, host]
        done = subprocess.run([*map(str, words)], stdout=subprocess.PIPE, text=True)
        if done.returncode:
            sys.exit(done.returncode)
        found.append(done.stdout.strip())
    return found[0], found[1]


def test_operators(python: str, jobs: int) -> None:
    here, there = build_third_party(python)
    library, program = BUILD / "python" / "anyop" / "lib", BUILD / "answer_calls"
    command = [COMPILER, "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-Iinclude"]
    source = ROOT / "tests" / "emulated" / "answer_calls.cc"
    link = [f"-L{library}", "-lanyop", f"-Wl,-rpath,{library}"]
    step("the program that is called", *command, source, "-o", program, *link)
    environment = [
        f"ANYOP_TEST_PROGRAM={shlex.join([*EMULATOR, str(program), there])}",
        f"ANYOP_TEST_LIBRARIES={json.dumps({str(FOLDER): here})}",
    ]
    pytest = [python, "-m", "pytest", "-n", jobs, "tests/emulated/aarch64_operators.py"]
    step("standard tests of operators", "env", *environment, *pytest, show=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="where anyop is installed")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    if debian.see_to("aarch64"):
        python = os.path.abspath(options.python)
        build_anyop(python, options.jobs)
        fetch_openblas(python)
        test_operators(python, options.jobs)


if __name__ == "__main__":
    main()
