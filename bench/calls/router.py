# SPDX-License-Identifier: Apache-2.0
"""What routing costs a call: nanoseconds in one run, and instructions before there were routes and now.

    python bench/calls/router.py [--before FOLDER]

The program bench/calls/router.cc calls an operator whose kernel does nothing. Instructions are counted by valgrind's
callgrind; FOLDER is the build of an older commit (python/anyop in it) for the counts before. One line of JSON for
each result goes to bench/results/router.jsonl.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import anyop
from harness import ROOT, environment, write

CALLS = 20_000


def build(package: Path, folder: Path, *flags: str) -> Path:
    """The program against this build of anyop."""
    program = folder / f"router{len(flags)}"
    include, library = package / "include", package / "lib"
    command = [
        "c++",
        "-std=c++17",
        "-O2",
        str(ROOT / "bench/calls/router.cc"),
        f"-I{include}",
        *flags,
    ]
    command += [f"-L{library}", "-lanyop", f"-Wl,-rpath,{library}", "-o", str(program)]
    subprocess.run(command, check=True)
    return program


def instructions(program: Path) -> float:
    """Of one call."""

    def count(calls: int) -> int:
        with tempfile.TemporaryDirectory() as folder:
            command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out"]
            command += [str(program), "calls", str(calls)]
            said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
        return int(re.search(r"Collected : (\d+)", said)[1])

    return (count(CALLS) - count(0)) / CALLS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, help="python/anyop of an older build")
    options = parser.parse_args()
    lines = []
    core = [f"-I{ROOT / folder}" for folder in ("src/core", "src/device")]
    with tempfile.TemporaryDirectory() as folder:
        now = build(Path(anyop.__file__).parent, Path(folder), "-DWITH_ROUTES", *core)
        for row in subprocess.run(
            [now], check=True, capture_output=True, text=True
        ).stdout.splitlines():
            name, least, median = row.split("\t")
            lines.append({"name": name, "min_ns": float(least), "median_ns": float(median)})
        by_name = {line["name"]: line for line in lines}
        direct, routed = by_name["kernel called directly"], by_name["kernel called by its route"]
        share = {key: round(routed[key] - direct[key], 3) for key in ("min_ns", "median_ns")}
        lines.append({"name": "router's share", **share})
        counts = {"now": instructions(now)}
        if options.before:
            counts["before"] = instructions(build(options.before, Path(folder)))
        lines.append({"name": "instructions of a call", **counts})
    for line in lines:
        print(line)
    write("router", lines, environment(anyop))


if __name__ == "__main__":
    main()
