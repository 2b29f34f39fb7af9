# SPDX-License-Identifier: Apache-2.0
"""False runtimes, made from the rows of src/device/cuda_like/runtimes.toml: libraries with a vendor's names.

Below them is anyop's device `host` (false_runtime.c, false_acl.c, false_aclnn.c, false_cnrt.c), or the real cudart of
a GPU (over_cudart.c).
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
ACL = re.findall(r"\bF\((?:Code|const char\*), (\w+),", (SOURCES / "acl_api.h").read_text())
CNRT = re.findall(r"\bF\((?:Code|const char\*), (\w+),", (SOURCES / "cnrt_api.h").read_text())
OPERATORS = "libopapi.so"
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


def make(
    name: str,
    folder: Path,
    lacks: Collection[str] = (),
    full: bool = False,
    cudart: Path | None = None,
    driver: Path | str = "libcuda.so.1",
    row: dict[str, Any] | None = None,
) -> FalseRuntime:
    """The library of a row in a folder. It lacks what the row says may be missing (full: has it), and what is named."""
    row = row or ROWS[name]
    without = {*lacks, *(() if full or cudart else row.get("missing", []))}
    environment = {
        "ANYOP_FALSE_BELOW": str(LIBANYOP),
        "ANYOP_FALSE_CUDART": str(cudart),
        "ANYOP_FALSE_DRIVER": str(driver),
        "LD_LIBRARY_PATH": str(folder),
    }
    library = _place(row["libraries"][0], folder, environment)
    if row.get("shape") == "acl":
        _compile_acl(library, lacks)
        return FalseRuntime(library, environment)
    if row.get("shape") == "cnrt":
        _run_compiler(HERE / "false_cnrt.c", library, *(f"-D{name}=no_{name}" for name in lacks))
        return FalseRuntime(library, environment)
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


def _compile_acl(library: Path, lacks: Collection[str]) -> None:
    """With the library of operators beside it, unless that is to be lacking."""
    hidden = [f"-D{name}=no_{name}" for name in lacks if name != OPERATORS]
    _run_compiler(HERE / "false_acl.c", library, *hidden)
    if OPERATORS not in lacks:
        beside = library.parent / OPERATORS
        linked = ["-Wl,--no-as-needed,-rpath,$ORIGIN", str(library)]
        _run_compiler(HERE / "false_aclnn.c", beside, *hidden, *linked)


def _compile(row: dict[str, Any], library: Path, names: list[str], prefix: str, without: Collection[str],
             cudart: Path | None) -> None:  # fmt: skip
    library.parent.mkdir(parents=True, exist_ok=True)
    build = library.parent / f"{library.name}.names"
    build.mkdir(exist_ok=True)
    names_h = build / "names.h"
    names_h.write_text(_header(row, names, prefix, without))
    source = HERE / ("over_cudart.c" if cudart else "false_runtime.c")
    _run_compiler(source, library, "-include", str(names_h))


def _run_compiler(source: Path, library: Path, *flags: str) -> None:
    library.parent.mkdir(parents=True, exist_ok=True)
    words = [
        *os.environ.get("CC", "gcc").split(),
        "-shared",
        "-fPIC",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
    ]
    words += ["-fvisibility=hidden", f"-I{anyop.include_dir()}", *flags]
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


# Every function of a device once; what fails is printed.
ONCE = """
import ctypes, sys
from anyop.conformance.device_table import Device, Image, Launch, Pointer, Properties, Scope, Versions
device = Device(sys.argv[1])
def ask(function, *arguments, kind=Pointer):
    try:
        return device.made(function, *arguments, kind=kind)
    except Exception as error:
        print(error)
def do(function, *arguments):
    try:
        getattr(device, function)(*arguments)
    except Exception as error:
        print(error)
print("devices", ask("count", kind=ctypes.c_int32))
for index in (1, 0):
    do("set_current", index)
print("current", ask("get_current", kind=ctypes.c_int32))
do("versions", ctypes.byref(Versions(ctypes.sizeof(Versions))))
found = Properties(size=ctypes.sizeof(Properties))
do("properties", 0, ctypes.byref(found))
print("name", found.name.decode(), found.compute_units, found.major, found.minor)
memory, pinned, there = ask("allocate", 0, 4096), ask("allocate_host", 0, 4096), ask("allocate", 1, 4096)
streams = [ask("create_stream", 0), ask("create_stream_with", 0, -2)]
events = [ask("create_event", 0), ask("create_event", 0)]
if None in (memory, pinned, there, *streams, *events):
    sys.exit()
ordered = ask("allocate_on", 0, streams[0], 100)
do("free_on", 0, streams[0], ordered)
numbers, back = (ctypes.c_int32 * 1000)(), (ctypes.c_int32 * 1000)()
do("record_event", 0, events[0], streams[0])
do("copy", 0, memory, ctypes.addressof(numbers), 4000, 1)
image = Image(ctypes.sizeof(Image), 0, b"own.image", b"false image", 11, None)
loaded = ask("load_image", 0, ctypes.byref(image))
kernel = ask("find_kernel", 0, loaded, b"fill") if loaded else None
held = [Pointer(memory), ctypes.c_int32(7), ctypes.c_int64(1000)]
values = (Pointer * 3)(*map(ctypes.addressof, held))
how = Launch(ctypes.sizeof(Launch), 3, values, (ctypes.c_uint32 * 3)(0, 4, 8), (4, 1, 1), (256, 1, 1), 0)
if kernel:
    do("launch_kernel", 0, streams[0], kernel, ctypes.byref(how))
    held[1].value = 8  # which was read
do("copy_on", 0, streams[0], pinned, memory, 4000, 2)
do("copy_between_on", 0, streams[0], there, 1, memory, 0, 4000)
do("record_event", 0, events[1], streams[0])
do("wait_event", 0, streams[1], events[1])
do("launch_host", 0, streams[1], ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p), 1)
do("set_on", 0, streams[1], memory, 0, 8)
do("synchronize_stream", 0, streams[1])
do("synchronize_event", 0, events[1])
do("synchronize_device", 0)
for function, handle in (("query_stream", streams[0]), ("query_event", events[1])):
    print(function, ask(function, 0, handle, kind=ctypes.c_int32))
ask("elapsed_ms", 0, *events, kind=ctypes.c_float)
print("filled", list((ctypes.c_int32 * 1000).from_address(pinned)) == [7] * 1000)
do("copy", 1, ctypes.addressof(back), there, 4000, 2)
print("between", list(back) == [7] * 1000)
for event in events:
    do("destroy_event", 0, event)
for stream in streams:
    do("destroy_stream", 0, stream)
do("free", 0, memory)
do("free", 1, there)
do("free_host", 0, pinned)
do("free", 0, memory)
"""

OPEN = """
import sys
from anyop.conformance.device_table import Device
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
    more = os.environ | {"PYTHONSAFEPATH": "1"} | environment
    folders = (environment.get("LD_LIBRARY_PATH"), os.environ.get("LD_LIBRARY_PATH"))
    more["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, folders))
    done = subprocess.run(
        [sys.executable, "-u", *words], env=more, timeout=300, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, cwd=HERE.parents[1],
    )  # fmt: skip
    return done.returncode, done.stdout


def check(environment: dict[str, str], name: str, *only: str) -> tuple[int, str]:
    """`anyop device-check`, or some of its checks."""
    words = [word for check in only for word in ("--only", check)]
    return run(environment, "-m", "anyop", "device-check", name, *words)
