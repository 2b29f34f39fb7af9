# SPDX-License-Identifier: Apache-2.0
"""Checks that includes go one way, ops -> include <- core <- bindings.

Also: framework headers stay where they may be, and every source file begins with its licence.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

CORE = {"src/core", "src/core/router", "src/core/router/read"}
# Folder -> folders whose headers it may include. The longest matching name of a file's path counts.
ALLOWED = {
    "ops": {"ops", "include", "generated"},
    "include": {"include", "generated"},
    "src/core": {*CORE, "src/device", "include", "generated"},
    "src/core/router": {*CORE, "src/device", "include"},
    "src/core/router/read": {"src/core/router/read", "src/core", "include"},
    "src/device": {"src/device", "include"},
    "bindings/tvm_ffi": {"bindings/tvm_ffi", *CORE, "include"},
    "bindings/jax": {"bindings/jax", *CORE, "include"},
    "bindings/paddle_glue": {"bindings/paddle_glue", "include"},
    "bindings/torch_device": {"bindings/torch_device", "bindings/torch_glue", "include"},
    "bindings/torch_glue": {"bindings/torch_glue", "include"},
    "bindings/torch": {
        "bindings/torch",
        "bindings/torch_glue",
        *CORE,
        "include",
    },
    "bindings/aten": {
        "bindings/aten",
        "bindings/torch",
        "bindings/torch_glue",
        *CORE,
        "include",
    },
    "bindings/python": {
        "bindings/python",
        "bindings/aten",
        "bindings/jax",
        "bindings/paddle_glue",
        "bindings/torch",
        "bindings/torch_glue",
        "bindings/tvm_ffi",
        *CORE,
        "include",
    },
    "examples/porting/before": {"examples/porting/before"},
    "examples/from_pybind11/before": {"examples/from_pybind11/before", "examples"},
    "examples": {"examples", "include", "generated"},
    "tests/made_up": {"bindings/python", "src/core", "include"},
    "tests": {
        "tests",
        *CORE,
        "bindings/tvm_ffi",
        "include",
        "generated",
        "ops",
    },
    "bench": {"bench", *CORE, "include", "generated", "ops"},
}
# Where quoted includes are looked for besides the file's own folder.
SEARCHED = (
    "include",
    "src/core",
    "src/device",
    "bindings/aten",
    "bindings/jax",
    "bindings/python",
    "bindings/torch",
    "bindings/torch_device",
    "bindings/torch_glue",
    "bindings/tvm_ffi",
)

# First part of a framework header's name -> folders that may include it.
FRAMEWORKS = {
    "Python.h": {"bindings/python"},
    "tvm": {"bindings/tvm_ffi", "bench", "examples/from_pybind11/before"},
    "dlpack": {"bindings/tvm_ffi", "bindings/python"},
    "torch": {
        "bench",
        "bindings/torch_device",
        "examples/porting/before",
        "examples/from_pybind11/before",
    },
    "pybind11": {"bench"},
    "hwy": {"bench"},
    "nlohmann": {"src/core", "bindings/jax", "bindings/tvm_ffi", "examples"},
    "ATen": {"bench", "bindings/torch_device", "bindings/torch_glue", "examples/porting/before"},
    "c10": {"bindings/torch_device", "bindings/torch_glue"},
    "cuda.h": {"src/device", "include"},
    "cuda_runtime_api.h": {"src/device", "include"},
    "cuda_bf16.h": {"include"},
    "cuda_fp16.h": {"include"},
    "numpy": set(),
    "nanobind": set(),
    "paddle": {"bindings/paddle_glue"},
    "xla": set(),
}
GENERATED = re.compile(r"^\w+/ops/\w+\.h$|^anyop/ops\.h$")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
LICENSED = {".cc", ".h", ".cu", ".c", ".py", ".toml", ".cmake", ".in", ".txt", ".yaml"}
SKIPPED = {"build", ".venv", ".git", ".ruff_cache", ".pytest_cache", "__pycache__"}


def folder_of(path: str) -> str | None:
    """The entry of ALLOWED that a path (relative to the root) lies in."""
    found = [name for name in ALLOWED if path.startswith(name + "/")]
    return max(found, key=len) if found else None


def target_of(path: Path, name: str, root: Path) -> str | None:
    """The folder that a quoted include leads to; None when it leads nowhere."""
    if (path.parent / name).exists():
        return folder_of((path.parent / name).resolve().relative_to(root).as_posix())
    for folder in SEARCHED:
        if (root / folder / name).exists():
            return folder_of(f"{folder}/{name}")
    if GENERATED.match(name):
        return "generated"
    return folder_of(name) if (root / name).exists() else None


def check_include(path: Path, bracket: str, name: str, root: Path) -> str | None:
    """What is wrong with one include."""
    relative = path.relative_to(root).as_posix()
    zone = folder_of(relative)
    if zone is None:
        return None
    may = FRAMEWORKS.get(name.split("/")[0])
    if may is not None and zone not in may:
        return f"{zone} may not include the framework header {name}"
    if bracket == "<" or may is not None:
        return None
    target = target_of(path, name, root)
    if target is None:
        return f"there is no header {name}"
    if target == "tests" and relative.endswith("_test.cc"):
        return None
    if target not in ALLOWED[zone]:
        return f"{zone} may not include {name} of {target}"
    return None


def sources(root: Path) -> list[Path]:
    """Every file of the tree that is written by hand."""
    found = []
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        frozen = parts[:2] == ("tests", "abi")  # generated files of past releases
        theirs = path.parent.name == "templates"  # what `anyop new` writes bears its user's licence
        if SKIPPED.intersection(parts) or frozen or theirs:
            continue
        if path.is_file() and path.suffix in LICENSED:
            found.append(path)
    return found


def mistakes(root: Path) -> list[str]:
    found = []
    for path in sources(root):
        lines = path.read_text(encoding="utf-8").splitlines()
        place = path.relative_to(root).as_posix()
        first = lines[0] if lines else ""
        if "SPDX-License-Identifier: Apache-2.0" not in first:
            found.append(f"{place}:1: the first line names no licence (SPDX-License-Identifier)")
        if path.suffix not in {".cc", ".h", ".cu", ".c"}:
            continue
        for number, line in enumerate(lines, 1):
            match = INCLUDE.match(line)
            wrong = match and check_include(path, match[1], match[2], root)
            if wrong:
                found.append(f"{place}:{number}: {wrong}")
    return found


if __name__ == "__main__":
    wrong = mistakes(ROOT)
    print(*wrong, sep="\n", end="\n" if wrong else "")
    sys.exit(bool(wrong))
