# SPDX-License-Identifier: Apache-2.0
"""All tests again on further builds: sanitizers (of threads: their tests), each level of x86-64; aarch64 emulated.

python3 tools/test_full.py --python .venv/bin/python [--jobs 2] [--only address]
"""

import argparse
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
STEP = [sys.executable, str(ROOT / "tools" / "step.py")]
EMULATED = "aarch64"  # tools/aarch64.py
# Kernels, core and bindings; what does not run them is tested by `make test`.
PYTHON_TESTS = ["ops", "tests", "--ignore=tests/package/build_test.py"]
PYTHON_TESTS += [
    f"--ignore-glob=tests/*/{stem}_*test.py"
    for stem in (
        "builder",
        "building",
        "cache",
        "command",
        "hip",
        "mlu",
        "readme",
        "tutorial",
        "wheel",
    )
]

# What ThreadSanitizer sees: anyop's own code under several threads, and processes that end meanwhile.
THREADS = ["border/threads", "torch/torch_threads", "routes/unregister", "border/exit_threads"]
THREADS += ["border/load_threads", "border/first_use"]
THREADS = [f"tests/{stem}_test.py" for stem in THREADS]

# Python itself leaks at exit, by design; what operators leak is a test of its own. A size that
# cannot be had is an answer that callers rely on.
ASAN_OPTIONS = "detect_leaks=0:allocator_may_return_null=1"
# Paddle 3.3 deletes at exit what it made by new[] (pir::IrContext), without anyop too; junk_watch.py asks for the
# check again where Paddle is not.
BESIDE_PADDLE = ":alloc_dealloc_mismatch=0"
# Python, NumPy and torch are not instrumented: what they do among themselves is not judged.
TSAN_OPTIONS = "ignore_noninstrumented_modules=1:detect_deadlocks=0:allocator_may_return_null=1"


class Variant(NamedTuple):
    """One more build: its CMake option, and how Python runs with it."""

    name: str
    option: str
    environment: Mapping[str, str] = MappingProxyType({})
    tests: Sequence[str] = PYTHON_TESTS


def runtime(name: str) -> str:
    """The sanitizer's library, to be loaded before Python, and libstdc++, which it wraps."""
    compiler = os.environ.get("CXX", "g++")
    paths = []
    for library in (name, "libstdc++.so"):
        found = subprocess.run(
            [compiler, f"-print-file-name={library}"], capture_output=True, text=True, check=True
        )
        paths.append(str(Path(found.stdout.strip()).resolve()))
    return ":".join(paths)


def levels() -> list[str]:
    """The levels of x86-64 that this processor has."""
    if platform.machine() != "x86_64":
        print(f"levels of x86-64: skipped on {platform.machine()}")
        return []
    flags = next(
        line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")
    ).split()
    found = ["1"]
    for level, needed in (
        ("3", {"avx2", "fma", "bmi2"}),
        ("4", {"avx512f", "avx512bw", "avx512vl", "avx512dq"}),
    ):
        if needed.issubset(flags):
            found.append(level)
        else:
            lacking = ", ".join(sorted(needed - set(flags)))
            print(f"x86-64-v{level}: skipped, this processor lacks {lacking}")
    return found


def variants() -> list[Variant]:
    address = {
        "LD_PRELOAD": runtime("libasan.so"),
        "ASAN_OPTIONS": ASAN_OPTIONS + BESIDE_PADDLE,
    }
    undefined = {"LD_PRELOAD": runtime("libubsan.so"), "UBSAN_OPTIONS": "print_stacktrace=1"}
    thread = {"LD_PRELOAD": runtime("libtsan.so"), "TSAN_OPTIONS": TSAN_OPTIONS}
    return [
        Variant("address", "ANYOP_SANITIZE=address", address),
        Variant("undefined", "ANYOP_SANITIZE=undefined", undefined),
        Variant("thread", "ANYOP_SANITIZE=thread", thread, THREADS),
        *(Variant(f"x86-64-v{level}", f"ANYOP_CPU_ISA={level}") for level in levels()),
    ]


def step(
    what: str, command: list[str], environment: Mapping[str, str] | None = None, show: bool = False
) -> None:
    """Runs one step; its failure ends the program."""
    words = [*STEP, *(["--show"] if show else []), what]
    if environment:  # for the command alone, not for step.py
        command = ["env", *(f"{key}={value}" for key, value in environment.items()), *command]
    if status := subprocess.call([*words, *command], cwd=ROOT):
        sys.exit(status)


def run(variant: Variant, python: str, jobs: int) -> None:
    build = ROOT / "build" / variant.name
    step(
        f"{variant.name}: configure",
        [
            "cmake",
            "-G",
            "Ninja",
            "-S",
            ".",
            "-B",
            str(build),
            f"-DPython_EXECUTABLE={python}",
            f"-D{variant.option}",
            "-DANYOP_BUILD_TESTS=ON",
        ],
    )
    step(f"{variant.name}: build", ["cmake", "--build", str(build), f"-j{jobs}"])
    own = {"ASAN_OPTIONS": ASAN_OPTIONS, "TSAN_OPTIONS": "allocator_may_return_null=1"}
    options = {name: text for name, text in own.items() if name in variant.environment}
    step(
        f"{variant.name}: C++ tests",
        ["ctest", "--test-dir", str(build), "--output-on-failure"],
        options,
        show=True,
    )
    package = {
        "PYTHONPATH": str(build / "python"),
        "ANYOP_TEST_PACKAGE": str(build / "python" / "anyop"),
    }
    step(
        f"{variant.name}: Python tests",
        [python, "-m", "pytest", *variant.tests],
        {**variant.environment, **package},
        show=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--python", default=sys.executable, help="of the environment with the tests' packages"
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", help="one variant")
    options = parser.parse_args()
    python = os.path.abspath(options.python)
    chosen = [variant for variant in variants() if options.only in (None, variant.name)]
    emulated = options.only in (None, EMULATED)
    if not chosen and not emulated:
        names = ", ".join([*(variant.name for variant in variants()), EMULATED])
        parser.error(f"--only {options.only}: expected one of {names}")
    for variant in chosen:
        run(variant, python, options.jobs)
    if emulated:
        program = [sys.executable, "tools/aarch64.py", "--python", python, "--jobs"]
        if status := subprocess.call([*program, str(options.jobs)], cwd=ROOT):
            sys.exit(status)


if __name__ == "__main__":
    main()
