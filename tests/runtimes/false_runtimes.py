# SPDX-License-Identifier: Apache-2.0
"""False runtimes, made from the rows of src/device/cuda_like/runtimes.toml: libraries with a vendor's names.

Below them is anyop's device `host` (false_runtime.c), or the real cudart of a GPU (over_cudart.c).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import anyop

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "src" / "device" / "cuda_like"
LIBANYOP = Path(anyop._anyop.__file__).parent / "lib" / "libanyop.so"
ROWS: dict[str, dict[str, Any]] = tomllib.loads((SOURCES / "runtimes.toml").read_text())
_LIST = (SOURCES / "runtime_api.h").read_text().split("#define ANYOP_MODULE_FUNCTIONS")
_NAME = re.compile(r"\bF\((?:Code|const char\*), (\w+),")
FUNCTIONS, MODULES = (_NAME.findall(part) for part in _LIST)
_NEVER = ("GetErrorName", "GetErrorString", "GetLastError")  # what these return is no code
_OWN = ("RuntimeGetVersion", "GetDeviceProperties", "DeviceGetAttribute")  # over_cudart.c's
CAN_FAIL = [name for name in FUNCTIONS if name not in _NEVER]


class FalseRuntime(NamedTuple):
    """A library and the environment in which it is found."""

    library: Path
    environment: dict[str, str]


def device_name(row: str) -> str:
    """What the device of a row is called."""
    return "row.cuda" if row == "cuda" else row


def vendor_name(row: dict[str, Any], ours: str, prefix: str, which: int = 0) -> str:
    """The first (or another) of the vendor's names of a function."""
    named = dict(re.split(r" *= *", name, maxsplit=1) for name in row.get("names", []))
    return prefix + named.get(ours, ours).split("|")[which].strip()


def make(name: str, folder: Path, lacks: Collection[str] = (), full: bool = False,
         cudart: Path | None = None, row: dict[str, Any] | None = None) -> FalseRuntime:  # fmt: skip
    """The library of a row in a folder. It lacks what the row says may be missing (full: has it), and what is named."""
    row = row or ROWS[name]
    without = {*lacks, *(() if full or cudart else row.get("missing", []))}
    environment = {
        "ANYOP_FALSE_BELOW": str(cudart or LIBANYOP),
        "ANYOP_FALSE_DRIVER": "libcuda.so.1",
        "LD_LIBRARY_PATH": str(folder),
    }
    library = _place(row["libraries"][0], folder, environment)
    _compile(row, library, FUNCTIONS, row["prefix"], without, cudart)
    if modules := row.get("module_libraries"):
        if cudart and name == "cuda":
            return FalseRuntime(library, environment)
        beside = _place(modules[0], folder, environment)
        _compile(row, beside, MODULES, row["module_prefix"], without, cudart)
    else:
        _compile(row, library, FUNCTIONS + MODULES, row["prefix"], without, cudart)
    return FalseRuntime(library, environment)


def _place(path: str, folder: Path, environment: dict[str, str]) -> Path:
    """Where a row looks for it, beneath the folder."""
    if path.startswith("$"):
        variable, _, rest = path[1:].partition("/")
        environment[variable] = str(folder / variable)
        return folder / variable / rest
    return folder / path


def _compile(row: dict[str, Any], library: Path, names: list[str], prefix: str, without: Collection[str],
             cudart: Path | None) -> None:  # fmt: skip
    library.parent.mkdir(parents=True, exist_ok=True)
    build = library.parent / f"{library.name}.names"
    build.mkdir(exist_ok=True)
    names_h = build / "names.h"
    names_h.write_text(_header(row, names, prefix, without))
    source = HERE / ("over_cudart.c" if cudart else "false_runtime.c")
    words = [os.environ.get("CC", "gcc"), "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
    words += ["-fvisibility=hidden", "-include", str(names_h), f"-I{anyop.include_dir()}"]
    subprocess.run([*words, str(source), "-o", str(library), "-ldl"], check=True)


def _header(row: dict[str, Any], names: list[str], prefix: str, without: Collection[str]) -> str:
    """NAME_Malloc for each function; what is not to be there is called no_Malloc."""
    lines: list[str] = []
    lists: dict[str, list[str]] = {"FORWARDED": [], "MODULES": [], "OWN": []}
    for ours in FUNCTIONS + MODULES:
        there = ours in names and ours not in without
        theirs = vendor_name(row, ours, prefix) if there else f"no_{ours}"
        if theirs == prefix:  # the vendor's function of this name is not CUDA's
            theirs = f"no_{ours}"
        lines.append(f"#define NAME_{ours} {theirs}")
        if theirs != f"no_{ours}":
            kind = "MODULES" if ours in MODULES else "OWN" if ours in _OWN else "FORWARDED"
            lists[kind].append(f"F({ours}, {theirs})")
    units, major, minor = row.get("attributes", (-1, -2, -3))
    lines += [f"#define UNITS {units}", f"#define MAJOR {major}", f"#define MINOR {minor}"]
    lines += [f"#define PREFIX {row['prefix']}", f"#define VENDOR {row.get('vendor', 'chip')}"]
    lines += [f"#define HAS_GetLastError {int('GetLastError' not in without)}"]
    lines += [f"#define {kind}(F) {' '.join(names)}" for kind, names in lists.items()]
    return "\n".join([*lines, ""])


OPEN = """
import sys
from anyop.testing.device_table import Device
for name in sys.argv[1:]:
    try:
        device = Device(name)
        print("devices", device.devices)
        device.set_current(0)
    except Exception as error:
        print(error)
"""


def run(environment: dict[str, str], *words: str) -> tuple[int, str]:
    """A Python process; its code and all that it says."""
    done = subprocess.run(
        [sys.executable, *words], env=os.environ | {"PYTHONSAFEPATH": "1"} | environment, timeout=300,
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=HERE.parents[1],
    )  # fmt: skip
    return done.returncode, done.stdout


def check(environment: dict[str, str], name: str, *only: str) -> tuple[int, str]:
    """`anyop device-check`, or some of its checks."""
    words = [word for check in only for word in ("--only", check)]
    return run(environment, "-m", "anyop", "device-check", name, *words)
