# SPDX-License-Identifier: Apache-2.0
"""Runs clang-tidy on the C++ sources of src/, ops/ and bindings/: 70 s of CPU time in all.

python3 tools/clang_tidy.py [--jobs 2] [--venv .venv]

It configures build/lint, which writes the headers that are generated; nothing is built.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from arrows import ROOT

BUILD = ROOT / "build" / "lint"
FOLDERS = ("bindings/", "ops/", "src/")


def configure(python: Path) -> list[str]:
    """The sources that build/lint compiles."""
    options = ["-G", "Ninja", f"-DPython_EXECUTABLE={python}", "-DANYOP_BUILD_TESTS=ON"]
    options += ["-DANYOP_WITH_CUDA=OFF", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"]
    subprocess.run(
        ["cmake", "-S", ROOT, "-B", BUILD, *options], check=True, stdout=subprocess.DEVNULL
    )
    commands = json.loads((BUILD / "compile_commands.json").read_text(encoding="utf-8"))
    paths = {os.path.relpath(entry["file"], ROOT) for entry in commands}
    return sorted(path for path in paths if path.startswith(FOLDERS) and path.endswith(".cc"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--all", action="store_true", default=bool(os.environ.get("ANYOP_TEST_FULL"))
    )
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    options = parser.parse_args()
    programs = options.venv.absolute() / "bin"
    os.environ["PATH"] = f"{programs}:{os.environ['PATH']}"
    files = configure(programs / "python")
    command = [programs / "clang-tidy", "-p", BUILD, "--quiet"]

    def check(file: str) -> str:
        done = subprocess.run([*command, file], cwd=ROOT, capture_output=True, text=True)
        return done.stdout + done.stderr if done.returncode else ""

    with ThreadPoolExecutor(options.jobs) as pool:
        wrong = list(filter(None, pool.map(check, files)))
    print(*wrong, f"{len(files)} files", sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
