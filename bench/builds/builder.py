# SPDX-License-Identifier: Apache-2.0
"""Measures the builder: cold and warm, beside torch's load_inline, plain nvcc and tvm-ffi exports.

    python bench/builds/builder.py [--parts lines cold cuda warm all] [--rounds 5]

lines  of binding that moving one kernel takes (examples/from_pybind11)
cold   that operator built in C++, beside torch.utils.cpp_extension.load_inline of the same kernel
cuda   one .cu operator (bench/peers/builder_cuda), beside nvcc of the same kernel; needs nvcc, no GPU
warm   anyop.load of a folder whose library is in the cache: alone, among 1,000 entries, in 32 processes at once
all    anyop's own operators from clean with two jobs, beside the same operators as typed exports of tvm-ffi

Wall seconds of fresh processes on two CPUs; results are compared. One line of JSON for each goes to
bench/results/builder.jsonl.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import ROOT, environment, write
from peers import builder_programs as programs

EXAMPLE = ROOT / "examples" / "from_pybind11"
FOLDER = EXAMPLE / "ops"
PEERS = ROOT / "bench" / "peers"
NINJA = shutil.which("ninja") or str(Path(sys.executable).with_name("ninja"))
ARCHS = ["80", "90"]
PROCESSES, OTHERS = 32, 1000
# Figures that must hold: at most, or at least.
MOST_LINES, COLD_S, LOAD_INLINE_RATIO, NVCC_RATIO, WARM_S = 12, 3.0, 8, 1.3, 0.005


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = {"lines": lines, "cold": cold, "cuda": cuda, "warm": warm, "all": everything}
    parser.add_argument("--parts", nargs="+", choices=parts, default=list(parts))
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    import anyop

    rows, where = [], environment(anyop) | tools()
    with tempfile.TemporaryDirectory() as scratch:
        for part in options.parts:
            folder = Path(scratch, part)
            folder.mkdir()
            for row in parts[part](folder, options.rounds):
                print(", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
                rows.append(row)
    print("written to", write("builder", rows, where).relative_to(ROOT))


def lines(folder: Path, rounds: int) -> Iterator[dict]:
    """Counted by the example's own program."""
    for line in run_python([str(EXAMPLE / "lines.py")])[2].splitlines():
        side, count = line.split()[:2]
        more = verdict(int(count) <= MOST_LINES, most=MOST_LINES) if side == "anyop" else {}
        yield {"part": "lines", "side": side, "lines": int(count), **more}


def cold(folder: Path, rounds: int) -> Iterator[dict]:
    """The whole command and the call alone, each time with an empty cache; load_inline likewise."""
    command = ["-m", "anyop", "build", str(FOLDER), "--name", "moved"]
    whole, call = [], []
    for i in range(rounds):
        whole.append(run_python(command, ANYOP_CACHE_DIR=f"{folder}/whole{i}")[0])
        build = ["-c", programs.BUILD, str(FOLDER)]
        call.append(float(run_python(build, ANYOP_CACHE_DIR=f"{folder}/call{i}")[2]))
    met = verdict(statistics.median(whole) <= COLD_S, most_s=COLD_S)
    yield timed("cold", "anyop build, whole process", whole, **met)
    yield timed("cold", "anyop.build", call)
    if has("tvm_ffi"):
        source = EXAMPLE / "before" / "bias_gelu_tvm_ffi.cc"
        compiler = ["g++", "-O2", "-std=c++17", "-fPIC", "-shared", f"-I{tvm_ffi() / 'include'}"]
        command = [*compiler, str(source), "-o", str(folder / "exported.so")]
        yield timed("cold", "g++ of a tvm-ffi export", [run(command)[0] for _ in range(rounds)])
    if has("torch"):
        build = ["-c", programs.INLINE, str(EXAMPLE)]
        extensions = (f"{folder}/torch{i}" for i in range(max(rounds // 2, 1)))
        times = [float(run_python(build, TORCH_EXTENSIONS_DIR=path)[2]) for path in extensions]
        ratio = round(statistics.median(times) / statistics.median(whole), 1)
        met = verdict(ratio >= LOAD_INLINE_RATIO, least=LOAD_INLINE_RATIO)
        yield timed("cold", "load_inline without -O", times, of_anyop=ratio, **met)


def cuda(folder: Path, rounds: int) -> Iterator[dict]:
    """The same architectures and flags on both sides; nvcc compiles to an object, then links."""
    from anyop.builder.toolchains import TOOLCHAINS
    from anyop.builder.tools import find_command

    chain = TOOLCHAINS["nvcc"]
    nvcc = find_command(chain)
    if not nvcc:
        print("cuda: there is no nvcc")
        return
    flags = [*chain.compile, *(chain.arch.format(arch=arch) for arch in ARCHS)]
    flags.append(chain.newer.format(arch=ARCHS[-1]))
    source, target = str(PEERS / "builder_plain.cu"), f"{folder}/plain.o"
    compile = [*nvcc, *flags, "-c", source, "-o", target]
    link = [*nvcc, "-shared", target, "-o", f"{folder}/libplain.so"]
    build = ["-m", "anyop", "build", str(PEERS / "builder_cuda"), "--arch", ",".join(ARCHS)]
    plain, ours = [], []
    for i in range(max(rounds, 3)):
        plain.append(run(compile)[0] + run(link)[0])
        seconds, _, library = run_python(build, ANYOP_CACHE_DIR=f"{folder}/cache{i}")
        ours.append(seconds)
    if has("torch"):
        run_python(["-c", programs.CUDA, library.strip()])
    ratio = round(statistics.median(ours) / statistics.median(plain), 2)
    yield timed("cuda", "nvcc", plain)
    met = verdict(ratio <= NVCC_RATIO, most=NVCC_RATIO)
    yield timed("cuda", "anyop build, whole process", ours, of_nvcc=ratio, **met)


def warm(folder: Path, rounds: int) -> Iterator[dict]:
    """Fresh processes that load from the cache, behind `import anyop`."""
    load = ["-c", programs.WARM, str(FOLDER)]
    # With bytecode, as an installed package has it: here the first process writes it.
    where = {"ANYOP_CACHE_DIR": str(folder), "PYTHONDONTWRITEBYTECODE": ""}
    run_python(load, **where)
    for others in (0, OTHERS):
        if others:
            fill(folder / "entries", others)
        said = [run_python(load, **where)[2].split() for _ in range(4 * rounds)]
        first, again = zip(*(map(float, words) for words in said))
        met = verdict(statistics.median(first) <= WARM_S, most_s=WARM_S)
        yield timed("warm", "anyop.load in a fresh process", first, other_entries=others, **met)
        yield timed("warm", "anyop.load again", again, other_entries=others)
    begin = time.perf_counter()
    processes = [
        subprocess.Popen(
            [sys.executable, *load], env=os.environ | where, stdout=subprocess.PIPE, text=True
        )
        for _ in range(PROCESSES)
    ]
    first = [float(process.communicate()[0].split()[0]) for process in processes]
    wall = round(time.perf_counter() - begin, 3)
    yield timed("warm", f"anyop.load in {PROCESSES} processes at once", first, all_wall_s=wall)


def fill(entries: Path, count: int) -> None:
    """Copies of the one entry under other names."""
    (entry,) = entries.iterdir()
    for i in range(count):
        shutil.copytree(entry, entries / f"other{i}-{i:040x}")


def everything(folder: Path, rounds: int) -> Iterator[dict]:
    """The whole of anyop.build; of the exports the compilers' work alone, in three steps of ninja."""
    build = ["-m", "anyop", "build", str(ROOT / "ops"), "--backends", "cpu"]
    wall, cpu, _ = run_python(build, ANYOP_CACHE_DIR=f"{folder}/cache")
    yield timed("all", "anyop build, whole process", [wall], cpu_s=round(cpu, 2))
    if not has("tvm_ffi"):
        return
    from anyop.builder.toolchains import CPU_FLAGS
    from peers.builder_exports import write_project

    library = str(tvm_ffi() / "lib" / "libtvm_ffi.so")
    operators = write_project(folder, CPU_FLAGS, [str(tvm_ffi() / "include")], [library])
    steps = [
        run([NINJA, "-C", str(folder), "-j2", step]) for step in ("exports", "kernels", "libexports.so")
    ]  # fmt: skip
    run_python(["-c", programs.EXPORTS, f"{folder}/libexports.so"])
    for side, step in (("tvm-ffi exports alone", 0), ("kernels alone", 1)):
        more = {"cpu_s": round(steps[step][1], 2), "operators": operators}
        yield timed("all", side, [steps[step][0]], **more)
    walls, cpus = [step[0] for step in steps], [step[1] for step in steps]
    more = {"cpu_s": round(sum(cpus), 2), "of_anyop": round(sum(walls) / wall, 2)}
    yield timed("all", "tvm-ffi exports, kernels, link", [sum(walls)], **more)


def run_python(arguments: list[str], **where: str) -> tuple[float, float, str]:
    return run([sys.executable, *arguments], **where)


def run(command: list[str], **where: str) -> tuple[float, float, str]:
    """Wall seconds, CPU seconds and output of a process."""
    begin, before = time.perf_counter(), cpu_seconds()
    done = subprocess.run(command, env=os.environ | where, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{command[:3]} failed: {done.stdout}")
    return time.perf_counter() - begin, cpu_seconds() - before, done.stdout


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def timed(part: str, side: str, seconds, **more) -> dict:
    spread = {"min_s": round(min(seconds), 5), "median_s": round(statistics.median(seconds), 5)}
    return {"part": part, "side": side, **spread, "runs": len(seconds), **more}


def verdict(met: bool, **limit) -> dict:
    return {**limit, "verdict": "met" if met else "MISSED"}


def has(module: str) -> bool:
    found = importlib.util.find_spec(module) is not None
    if not found:
        print(f"without the side of {module}: it is not installed")
    return found


def tvm_ffi() -> Path:
    """Its folder, without importing it."""
    return Path(importlib.util.find_spec("tvm_ffi").submodule_search_locations[0])


def tools() -> dict:
    """What the compilers say of themselves, and versions of the other sides."""
    from importlib import metadata

    said = {}
    for name in ("g++", "nvcc"):
        if shutil.which(name):
            told = run([name, "--version"])[2].splitlines()
            said[name] = next((line for line in told if "release" in line), told[0])
    for name in ("torch", "apache-tvm-ffi", "ninja"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            said[name] = metadata.version(name)
    return {"tools": said}


if __name__ == "__main__":
    main()
