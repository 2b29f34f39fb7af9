# SPDX-License-Identifier: Apache-2.0
"""Measures what reaching torch costs to build: a torch extension of one operator, and anyop's binding for all.

    python bench/builds/torch_build.py [--repeats 2]

CPU seconds of the compiler, the least of the repeats, with the flags of the build: examples/porting/before as torch's
own tools compile it, bindings/torch, torch's part of bindings/python, the glue, and the ported operator. What was
built is run first and must give equal results and gradients. One line of JSON for each goes to
bench/results/torch_build.jsonl.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import resource
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import ROOT, environment, write

BEFORE = ROOT / "examples" / "porting" / "before"
CMAKE = shutil.which("cmake") or str(Path(sys.executable).with_name("cmake"))
BINDING, EXTENSION, OPERATOR = "anyop's torch binding", "torch extension", "operator"
LIMIT_S = 10.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=2)
    repeats = parser.parse_args().repeats
    import anyop
    import torch

    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        rows = [extension(torch, scratch, name, repeats) for name in ("pybind", "library")]
        rows += binding(torch, scratch / "anyop", repeats)
        rows += operator(anyop, scratch / "port", repeats)
        check(anyop, torch, scratch)
        show(rows)
    compiler = subprocess.run(["c++", "--version"], capture_output=True, text=True, check=True)
    where = environment(anyop, torch) | {"compiler": compiler.stdout.splitlines()[0]}
    print("written to", write("torch_build", rows, where).relative_to(ROOT))


def extension(torch, scratch: Path, name: str, repeats: int) -> dict:
    """One file with torch's headers, compiled and linked as torch.utils.cpp_extension does."""
    from torch.utils import cpp_extension

    source, target = BEFORE / f"rotary_{name}.cc", scratch / f"rotary_{name}.so"
    include = [*cpp_extension.include_paths(), sysconfig.get_paths()["include"]]
    command = ["c++", "-O2", "-fPIC", "-std=c++20", f"-DTORCH_EXTENSION_NAME={target.stem}"]
    command += [f"-isystem{path}" for path in include] + ["-c", str(source)]
    seconds = cpu_seconds([*command, "-o", str(target.with_suffix(".o"))], repeats)
    libraries = [f"-L{path}" for path in cpp_extension.library_paths()]
    libraries += ["-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"]
    link = ["c++", "-shared", str(target.with_suffix(".o")), *libraries, "-o", str(target)]
    subprocess.run(link, check=True)
    return {"kind": EXTENSION, "file": source.name, "cpu_s": seconds}


def binding(torch, folder: Path, repeats: int) -> list[dict]:
    """Everything of anyop that is there for torch, once for all operators."""
    commands = configured(ROOT, folder, "-DANYOP_BUILD_TESTS=OFF")
    ours = [
        path
        for path in commands
        if path.parent == ROOT / "bindings" / "torch"
        or (ROOT / "bindings" / "python" in path.parents and path.stem.startswith("torch"))
    ]
    rows = [row(BINDING, path, cpu_seconds(commands[path], repeats, folder)) for path in ours]
    from anyop import include_dir
    from anyop.builder.toolchains import choose_toolchain
    from anyop.builder.tools import need_command
    from anyop.native import recipe

    source = ROOT / "bindings" / "torch_glue"
    command = need_command(choose_toolchain("host"))
    command += recipe.torch_glue(torch, str(source.parent), include_dir(), "")
    glue = cpu_seconds([*command, "-o", str(folder / "glue.so")], repeats)
    return [*rows, row(BINDING, source / "torch_glue.cc", glue)]


def operator(anyop, folder: Path, repeats: int) -> list[dict]:
    """The ported operator and its gradient: two tables and one kernel; then the library is built."""
    source = ROOT / "examples" / "porting"
    commands = configured(source, folder, f"-Danyop_DIR={anyop.cmake_dir()}")
    rows = [
        row(OPERATOR, path, cpu_seconds(command, repeats, folder))
        for path, command in commands.items()
    ]
    subprocess.run([CMAKE, "--build", str(folder)], check=True, stdout=subprocess.DEVNULL)
    return rows


def configured(source: Path, folder: Path, *settings: str) -> dict[Path, list[str]]:
    """The compiler's command for each file, as CMake writes it."""
    command = [CMAKE, "-S", str(source), "-B", str(folder), "-G", "Ninja", *settings]
    command += [f"-DPython_EXECUTABLE={sys.executable}", "-DCMAKE_BUILD_TYPE=Release"]
    command += ["-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    entries = json.loads((folder / "compile_commands.json").read_text())
    for entry in entries:  # CMake would have made these folders
        (folder / shlex.split(entry["command"])[-3]).parent.mkdir(parents=True, exist_ok=True)
    return {Path(entry["file"]): shlex.split(entry["command"]) for entry in entries}


def cpu_seconds(command: list[str], repeats: int, folder: Path = ROOT) -> float:
    seconds = []
    for _ in range(repeats):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, cwd=folder)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return round(min(seconds), 3)


def row(kind: str, path: Path, seconds: float) -> dict:
    return {"kind": kind, "file": path.name, "cpu_s": seconds}


def check(anyop, torch, scratch: Path) -> None:
    """The three ways give equal results and gradients, in float32 and bfloat16."""
    import anyop.torch

    pybind = loaded("rotary_pybind", scratch / "rotary_pybind.so")
    torch.ops.load_library(scratch / "rotary_library.so")
    loaded("before_library", BEFORE / "rotary_library.py").register()
    anyop.load(scratch / "port" / "libport.so")
    sides = {
        "pybind11": loaded("before_pybind", BEFORE / "rotary_pybind.py").differentiable(pybind),
        "TORCH_LIBRARY": torch.ops.before.rotary,
        "anyop": anyop.ops.port.rotary,
    }
    for dtype in (torch.float32, torch.bfloat16):
        x, grad = torch.randn(2, 2, 3, 9, 16).to(dtype)
        angle = torch.randn(9, 8)
        results = []
        for side in sides.values():
            leaf = x.clone().requires_grad_()
            out = side(leaf, angle.cos().to(dtype), angle.sin().to(dtype))
            out.backward(grad)
            results.append((out.detach(), leaf.grad))
        for result in results[1:]:
            torch.testing.assert_close(result, results[0])


def loaded(name: str, path: Path):
    specification = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def show(rows: list[dict]) -> None:
    for result in rows:
        print(f"{result['kind']:24} {result['file']:28} {result['cpu_s']:8.3f} CPU s")
    for kind in (BINDING, OPERATOR):
        total = sum(result["cpu_s"] for result in rows if result["kind"] == kind)
        print(f"{kind:24} {'all of it':28} {total:8.3f} CPU s")
        if kind == BINDING:
            verdict = "met" if total <= LIMIT_S else "MISSED"
            print(f"{kind}: at most {LIMIT_S} CPU s: {verdict}")


if __name__ == "__main__":
    main()
