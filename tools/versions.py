# SPDX-License-Identifier: Apache-2.0
"""Runs the torch tests with one build of anyop on several versions of torch and Python: `make test-versions`.

One wheel is built, by the oldest Python; every row of the matrix gets an environment of its own in build/versions, with
torch from PyPI (gigabytes each), and the tests run there on the very same shared objects, whose hashes are compared.
Prints a Markdown table; docs/versions.md holds the last one.
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
    "scipy-openblas64",
    "numpy",
    "ml_dtypes",
    "pytest",
    "expecttest",
]
TESTS = [
    "python_torch",
    "torch_hazards",
    "torch_operators",
    "torch_gradients",
    "torch_fakes",
    "torch_nn",
    "aten_schemas",
    "aten_table",
    "aten_glue",
    "aten_glue_memory",
    "aten_python",
    "aten_without_glue",
    "conformance/aten/overloads",
    "conformance/aten/resolution",
    "conformance/aten/opinfo",
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--matrix", nargs="+", default=MATRIX, metavar="PYTHON:TORCH")
    options = parser.parse_args()
    rows = [row.split(":") for row in options.matrix]
    missing = [python for python, _ in rows if not find_python(python)]
    if missing:
        print("no Python " + ", ".join(missing) + " found on PATH or under pyenv", file=sys.stderr)
        return 1
    wheel = build_wheel(find_python(min(rows, key=lambda row: version(row[0]))[0]))
    print(
        "| Python | torch | glue | tests | _anyop | libanyop |\n|---|---|---|---|---|---|",
        flush=True,
    )
    results = [run_row(python, torch, wheel) for python, torch in rows]
    hashes = {row[1:] for row in results}
    print(f"\none set of shared objects: {'yes' if len(hashes) == 1 else 'NO'}")
    return 0 if len(hashes) == 1 and all(row[0] for row in results) else 1


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


def run_row(python: str, torch: str, wheel: Path) -> tuple:
    """Prints one row; (all passed, hash of _anyop, hash of libanyop)."""
    env = WORK / f"py{python}-torch{torch}"
    bin_python = env / "bin" / "python"
    if not bin_python.exists():
        run([find_python(python), "-m", "venv", str(env)])
    pip = [str(bin_python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    run([*pip, *NEEDS, f"torch=={torch}"])
    run([*pip, "--no-deps", "--force-reinstall", str(wheel)])
    tests = [f"tests/{name}_test.py" for name in TESTS]
    done = ask(bin_python, "-m", "pytest", "-p", "no:cacheprovider", *tests)
    (WORK / f"py{python}-torch{torch}.log").write_text(done.stdout + done.stderr)
    last = next((line for line in reversed(done.stdout.splitlines()) if " in " in line), "none ran")
    glue = (
        "import torch; from anyop import _torch_glue as g; print('yes' if g.load() else g.problem)"
    )
    has_glue = ask(bin_python, "-c", glue).stdout.strip()
    hashes = installed(bin_python)
    summary = re.sub(r" in .*", "", last)
    print(
        f"| {python} | {torch} | {has_glue} | {summary} | {hashes[0]} | {hashes[1]} |", flush=True
    )
    return done.returncode == 0, *hashes


def ask(python: Path, *arguments: str) -> subprocess.CompletedProcess:
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [str(python), *arguments], cwd=ROOT, env=clean, capture_output=True, text=True
    )


def installed(python: Path) -> list[str]:
    """Hashes of the shared objects as they lie in the environment."""
    folder = ask(python, "-c", "import anyop; print(anyop.__path__[0])").stdout.strip()
    files = [Path(folder, name) for name in ("_anyop.abi3.so", "lib/libanyop.so")]
    return [hashlib.sha256(file.read_bytes()).hexdigest()[:12] for file in files]


def run(command: list[str]) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    sys.exit(main())
