# SPDX-License-Identifier: Apache-2.0
"""Runs the torch tests with one build of anyop on several versions of torch and Python: `make test-versions`.

One wheel is built, by the oldest Python; every row of the matrix gets an environment of its own in build/versions, with
torch from PyPI (gigabytes each), and the tests run there on the very same shared objects, whose hashes are compared.
The glue and the library of the device are built for each torch. Prints a Markdown table; docs/versions.md has the last.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "versions"
MATRIX = ["3.10:2.9.1", "3.11:2.13.0", "3.12:2.11.0", "3.13:2.13.0"]
NEEDS = [
    "apache-tvm-ffi>=0.1.6,<0.2",
    "ninja",
    "pyelftools",
    "scipy-openblas64",
    "numpy",
    "ml_dtypes",
    "pytest",
    "pytest-xdist",
    "expecttest",
    "safetensors",
    "transformers>=4.56",
]
TESTS = [
    "border/python_torch",
    "torch/torch_hazards",
    "torch/torch_operators",
    "torch/torch_gradients",
    "torch/torch_fakes",
    "torch/torch_nn",
    "aten/aten_schemas",
    "aten/aten_table",
    "aten/aten_glue",
    "aten/aten_glue_memory",
    "aten/aten_python",
    "aten/aten_without_glue",
    "conformance/aten/overloads",
    "conformance/aten/resolution",
    "conformance/aten/opinfo",
]
OURS = ("PYTHONPATH", "ANYOP_TORCH_DEVICE", "ANYOP_TORCH_GLUE")
PARTS = ("operators", "device")
HEAD = ["Python", "torch", "glue", "tests", "device", "its OpInfo, right", "_anyop", "libanyop"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--matrix", nargs="+", default=MATRIX, metavar="PYTHON:TORCH")
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--jobs", type=int, default=2, help="processes that test the device")
    options = parser.parse_args()
    rows = [row.split(":") for row in options.matrix]
    missing = [python for python, _ in rows if not find_python(python)]
    if missing:
        print("no Python " + ", ".join(missing) + " found on PATH or under pyenv", file=sys.stderr)
        return 1
    wheel = build_wheel(find_python(min(rows, key=lambda row: version(row[0]))[0]))
    print(line(HEAD), "---".join("|" * (len(HEAD) + 1)), sep="\n", flush=True)
    results = [run_row(python, torch, wheel, options) for python, torch in rows]
    hashes = {row[1:] for row in results}
    print(f"\none set of shared objects: {'yes' if len(hashes) == 1 else 'NO'}")
    return 0 if len(hashes) == 1 and all(row[0] for row in results) else 1


def line(cells: list[str]) -> str:
    """Of the table."""
    return "| " + " | ".join(cells) + " |"


def version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def find_python(minor: str) -> str | None:
    """An interpreter of this minor version."""
    roots = [os.environ.get("PYENV_ROOT"), str(Path.home() / ".pyenv")]
    for root in filter(None, roots):
        for folder in sorted(Path(root, "versions").glob(f"{minor}.*")):
            if (folder / "bin" / "python").exists():
                return str(folder / "bin" / "python")
    return shutil.which(f"python{minor}")


def build_wheel(python: str) -> Path:
    out = WORK / "wheel"
    shutil.rmtree(out, ignore_errors=True)
    run([python, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(out), str(ROOT)])
    return next(out.glob("anyop-*.whl"))


def run_row(python: str, torch: str, wheel: Path, options: argparse.Namespace) -> tuple:
    """Prints one row; (all passed, hash of _anyop, hash of libanyop)."""
    env = make_environment(python, torch, wheel)
    found = dict.fromkeys(PARTS, ("not run", ""))
    passed = True
    for part in options.parts:
        tests = device_tests(env, options.jobs) if part == "device" else operator_tests(env)
        WORK.joinpath(f"{env.name}-{part}.log").write_text(tests.stdout + tests.stderr)
        found[part] = summary(tests.stdout), opinfo(tests.stdout)
        passed = passed and tests.returncode == 0
    glue = "import torch; from anyop.native.glues import torch_glue as g; print('yes' if g.load() else g.problem)"
    has_glue = ask(env, "-c", glue).stdout.strip()
    hashes = installed(env)
    cells = [python, torch, has_glue, found["operators"][0], *found["device"], *hashes]
    print(line(cells), flush=True)
    return passed, *hashes


def make_environment(python: str, torch: str, wheel: Path) -> Path:
    """With this torch and the wheel; what an earlier run has installed stays."""
    env = WORK / f"py{python}-torch{torch}"
    if not (env / "bin" / "python").exists():
        run([find_python(python), "-m", "venv", str(env)])
    pip = [str(env / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    run([*pip, *NEEDS, f"torch=={torch}"])
    run([*pip, "--no-deps", "--force-reinstall", str(wheel)])
    return env


def operator_tests(env: Path) -> subprocess.CompletedProcess:
    tests = [f"tests/{name}_test.py" for name in TESTS]
    return ask(env, "-m", "pytest", "-p", "no:cacheprovider", *tests)


def device_tests(env: Path, jobs: int) -> subprocess.CompletedProcess:
    """Builds the library for this torch first, for which no test waits long enough."""
    built = ask(env, "-m", "anyop", "build-device")
    if built.returncode:
        return built
    spread = ["-n", str(jobs), "--dist", "loadfile"]
    return ask(env, "-m", "pytest", "-p", "no:cacheprovider", *spread, "tests/device")


def summary(said: str) -> str:
    last = next((text for text in reversed(said.splitlines()) if " in " in text), "none ran")
    return re.sub(r" in [\d.]+s.*", "", last)


def opinfo(said: str) -> str:
    """What tests/device/opinfo/opinfo_test.py has counted."""
    counts = re.findall(r"^OpInfo (\w+) on .*: (\d+ of \d+) entries right", said, re.M)
    return ", ".join(f"{dtype} {right}" for dtype, right in counts)


def ask(env: Path, *arguments: str) -> subprocess.CompletedProcess:
    """Its Python, which finds no other anyop, no other device and the environment's programs."""
    clean = {key: value for key, value in os.environ.items() if key not in OURS}
    clean["PATH"] = os.pathsep.join([str(env / "bin"), os.environ["PATH"]])
    command = [str(env / "bin" / "python"), *arguments]
    return subprocess.run(command, cwd=ROOT, env=clean, capture_output=True, text=True)


def installed(env: Path) -> list[str]:
    """Hashes of the shared objects as they lie in the environment."""
    folder = ask(env, "-c", "import anyop; print(anyop.__path__[0])").stdout.strip()
    files = [Path(folder, name) for name in ("_anyop.abi3.so", "lib/libanyop.so")]
    return [hashlib.sha256(file.read_bytes()).hexdigest()[:12] for file in files]


def run(command: list[str]) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    sys.exit(main())
