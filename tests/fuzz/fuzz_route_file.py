# SPDX-License-Identifier: Apache-2.0
"""Builds the fuzzer of route files, runs it, and adds what it did to bench/results/fuzz_route_file.jsonl.

python3 tests/fuzz/fuzz_route_file.py [--fast] [--runs 2000000]

Under AddressSanitizer and UndefinedBehaviorSanitizer, or with --fast without them, some eight times as
fast. Needs clang++ (Debian: apt-get install clang libclang-rt-14-dev) and cmake. What it learned and its log
lie in build/fuzz; the input of a crash lies there too, and is run again by build/fuzz/route_file_* INPUT.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from bench import harness  # noqa: E402

FOLDER = ROOT / "build" / "fuzz"
HERE = ROOT / "tests" / "fuzz"
READ = ROOT / "src" / "core" / "router" / "read"
# The reader, without what opens files: route_file_fuzz.cc has its own.
SOURCES = [
    HERE / "route_file_fuzz.cc",
    ROOT / "src" / "core" / "tensors" / "dtype.cc",
    FOLDER / "presets.cc",
]
READERS = ("condition_text", "route_file", "route_names", "route_text")
SOURCES += [READ / f"{name}.cc" for name in READERS]
INCLUDES = [f"-I{ROOT / folder}" for folder in ("include", "src/core")]
CHECKED = ["-O1", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all"]
# Comparisons are traced at a third of the speed; the dictionary does as well.
FAST = ["-O2", "-fsanitize=fuzzer", "-fno-sanitize-coverage=trace-cmp"]


def build(kind: str) -> Path:
    """The program: of kind "fast" or "checked"."""
    for tool in ("clang++", "cmake"):
        if not shutil.which(tool):
            sys.exit(f"{tool} is not found, and the fuzzer is built with it (Debian: clang, cmake)")
    FOLDER.mkdir(parents=True, exist_ok=True)
    script = ROOT / "cmake" / "AnyopPresets.cmake"
    defines = [f"-DFOLDER={READ / 'presets'}", f"-DOUT={FOLDER / 'presets.cc'}"]
    subprocess.run(["cmake", *defines, "-P", script], check=True, cwd=ROOT)
    program = FOLDER / f"route_file_{kind}"
    flags = FAST if kind == "fast" else CHECKED
    command = ["clang++", "-std=c++17", "-g", *flags, *INCLUDES, *SOURCES, "-o", program]
    subprocess.run(command, check=True)
    return program


def run(program: Path, kind: str, runs: int) -> Path:
    """Lets it run, and returns its log."""
    corpus = FOLDER / "corpus"
    corpus.mkdir(exist_ok=True)
    log = FOLDER / f"{kind}.log"
    options = [f"-runs={runs}", "-max_len=256", "-reload=0", "-print_final_stats=1"]
    options += [f"-dict={HERE / 'route_file.dict'}", f"-artifact_prefix={FOLDER}/"]
    if kind == "fast":
        options.append("-entropic=0")
    print(f"{runs} runs; see {log}", flush=True)
    with log.open("w") as file:
        command = [program, *options, corpus, HERE / "route_files"]
        subprocess.run(command, stdout=file, stderr=file, check=False)
    return log


def row(kind: str, log: Path) -> dict:
    """What a log says was done, also when somebody ended the run by an interrupt."""
    text = log.read_text(errors="replace")
    stats = dict(re.findall(r"^stat::(\w+): *(\d+)", text, re.MULTILINE))
    executions = int(stats.get("number_of_executed_units", 0))
    each_second = int(stats.get("average_exec_per_sec", 0))
    *_, (coverage, corpus) = re.findall(r"cov: (\d+) ft: \d+ corp: (\d+)/", text)
    return {
        "sanitizers": [] if kind == "fast" else ["address", "undefined"],
        "executions": executions,
        "seconds": round(executions / each_second) if each_second else None,
        "crashes": text.count("Test unit written to"),
        "corpus": int(corpus),
        "edges": int(coverage),
        "compiler": subprocess.run(
            ["clang++", "--version"], capture_output=True, text=True, check=True
        ).stdout.splitlines()[0],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fast", action="store_true", help="without sanitizers")
    parser.add_argument("--runs", type=int, default=2_000_000, help="inputs that are tried")
    given = parser.parse_args()
    kind = "fast" if given.fast else "checked"
    found = row(kind, run(build(kind), kind, given.runs))
    harness.write("fuzz_route_file", [found], harness.environment())
    print(*(f"{key}: {value}" for key, value in found.items()), sep="\n")
    return found["crashes"] > 0 or not found["executions"]


if __name__ == "__main__":
    sys.exit(main())
