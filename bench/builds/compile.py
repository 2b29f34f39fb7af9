# SPDX-License-Identifier: Apache-2.0
"""Measures what an operator costs to build: seconds and bytes of each table and each CPU kernel, and of everything.

    python bench/builds/compile.py [--repeats 3] [--without-library]

Compiles one file at a time with the flags of the build (CPU seconds of the compiler, the least of the repeats), then
the library from clean with two jobs (wall seconds). One line of JSON for each goes to bench/results/compile.jsonl.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import ROOT, environment, write

CXX = os.environ.get("CXX", "g++")
CC = os.environ.get("CC", "gcc")
COMMON = ["-O2", "-fPIC", "-fvisibility=hidden"]
KERNEL = [*COMMON, "-std=c++17", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math"]
TABLE_LIMIT_S, KERNEL_LIMIT_S, LIBRARY_LIMIT_S = 0.05, 1.0, 90.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--without-library", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        generated = Path(scratch, "generated")
        command = [
            sys.executable,
            "-m",
            "codegen",
            "--out",
            str(generated),
            "--library",
            "anyop",
            str(ROOT / "ops"),
        ]
        subprocess.run(command, cwd=ROOT, check=True)
        rows = [
            measure("table", source, [CC, *COMMON], generated, options.repeats)
            for source in sorted(generated.rglob("*_table.c"))
        ]
        kernels = sorted(
            path for path in (ROOT / "ops").rglob("*.cc") if not path.stem.endswith("_test")
        )
        rows += [
            measure("kernel", source, [CXX, *KERNEL], generated, options.repeats)
            for source in kernels
        ]
        if not options.without_library:
            rows.append(library(Path(scratch, "build")))
    show(rows)
    import anyop

    compiler = subprocess.run(
        [CXX, "--version"], capture_output=True, text=True, check=True
    ).stdout.splitlines()[0]
    print(
        "written to",
        write("compile", rows, environment(anyop) | {"compiler": compiler}).relative_to(ROOT),
    )


def measure(kind: str, source: Path, command: list[str], generated: Path, repeats: int) -> dict:
    """CPU seconds to compile one file, and what it adds to the library (text and data, by size)."""
    target = generated / "measured.o"
    command = [
        *command,
        f"-I{ROOT / 'include'}",
        f"-I{generated}",
        "-c",
        str(source),
        "-o",
        str(target),
    ]
    seconds = []
    for _ in range(repeats):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    text, data = (
        subprocess.run(["size", str(target)], capture_output=True, text=True, check=True)
        .stdout.split("\n")[1]
        .split()[:2]
    )
    return {
        "kind": kind,
        "file": source.name,
        "cpu_s": round(min(seconds), 3),
        "bytes": int(text) + int(data),
    }


def library(build: Path) -> dict:
    """Wall seconds of a clean build of libanyop with two jobs."""
    cmake = shutil.which("cmake") or "cmake"
    configure = [cmake, "-S", str(ROOT), "-B", str(build), "-G", "Ninja", "-DANYOP_BUILD_TESTS=OFF"]
    configure += [f"-DPython_EXECUTABLE={sys.executable}", "-DCMAKE_BUILD_TYPE=Release"]
    begin = time.perf_counter()
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    configured = time.perf_counter()
    subprocess.run([cmake, "--build", str(build), "-j2"], check=True, stdout=subprocess.DEVNULL)
    built = time.perf_counter()
    path = next(build.rglob("libanyop.so"))
    return {
        "kind": "library", "file": path.name, "configure_s": round(configured - begin, 1),
        "wall_s": round(built - begin, 1), "bytes": path.stat().st_size,
    }  # fmt: skip


def show(rows: list[dict]) -> None:
    for row in rows:
        seconds = f"{row['cpu_s']:7.3f} CPU s" if "cpu_s" in row else f"{row['wall_s']:7.1f} wall s"
        print(f"{row['kind']:8} {row['file']:36} {seconds} {row['bytes']:9,} bytes")
    for kind, key, limit in (
        ("table", "cpu_s", TABLE_LIMIT_S),
        ("kernel", "cpu_s", KERNEL_LIMIT_S),
        ("library", "wall_s", LIBRARY_LIMIT_S),
    ):
        worst = max(
            (row for row in rows if row["kind"] == kind), key=lambda row: row[key], default=None
        )
        if worst:
            verdict = "met" if worst[key] <= limit else "MISSED"
            print(f"slowest {kind}: {worst['file']} {worst[key]} s, at most {limit} s: {verdict}")


if __name__ == "__main__":
    main()
