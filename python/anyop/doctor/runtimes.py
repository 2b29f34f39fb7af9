# SPDX-License-Identifier: Apache-2.0
"""Runtimes shaped like CUDA's that the plugin cuda_like knows: each is opened by a process of its own."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator

from anyop.doctor.finding import NOTE, OK, PROBLEM, Finding, ask

_GROUP = "devices"
_SECONDS = 4.0
# A line of JSON for each row. What ends the process that opens one ends no other.
_ASK = """
import ctypes, json, os, sys
os.chdir(sys.argv[2])  # paths in variables may begin there
plugin = ctypes.CDLL(sys.argv[1])
def report(index, opens):
    text = ctypes.create_string_buffer(1 << 16)
    got = plugin.AnyopRuntimeReport(index, opens, text, len(text))
    return got, text.value.decode("utf-8", "replace").splitlines()
def tell(name, lines):
    found = {"name": name, "missing": []}
    for line in lines:
        key, _, value = line.partition("\\t")
        found[key] = found["missing"] + [value] if key == "missing" else value
    os.write(1, (json.dumps(found) + "\\n").encode())
index = 0
while True:
    got, lines = report(index, 0)
    if got < 0:
        tell("ANYOP_RUNTIMES", ["problem\\t" + " ".join(lines)])
    if got <= 0:
        break
    child = os.fork()
    if not child:
        tell(lines[0], report(index, 1)[1][1:])
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        tell(lines[0], [f"problem\\topening it ends the process with {code}"])
    index += 1
"""


def look() -> list[dict]:
    """What the plugin says of each row: name, and vendor, path, version, devices, missing, problem as far as known."""
    from anyop import _anyop

    plugin = os.path.join(os.path.dirname(_anyop.__file__), "lib", "libanyop_cuda_like.so")
    text = ask([sys.executable, "-I", "-S", "-c", _ASK, plugin, os.getcwd()], _SECONDS)
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def findings() -> Iterator[Finding]:
    """Each runtime that is there; one line for those that are not."""
    absent = []
    for row in look():
        if "absent" in row:
            absent.append(row["name"])
        else:
            yield _found(row)
    if absent:
        yield Finding(_GROUP, "other runtimes", NOTE, f"not here: {', '.join(absent)}")


def _found(row: dict) -> Finding:
    name = f"{row['name']} runtime"
    if "problem" in row:
        return Finding(_GROUP, name, PROBLEM, row["problem"])
    about = [f"{row['vendor']} in {row['path']}", f"version {row['version']}"]
    if "false" in row:
        about.append("a false runtime of tests")
    about.append(row.get("nodevice") or f"{row['devices']} devices")
    if row["missing"]:
        about.append(f"lacks {', '.join(row['missing'])}, which may be missing")
    if "toolchain" in row:
        lanes = f", {row['warp']} lanes" if "warp" in row else ""
        about.append(f"kernels by {row['toolchain']}{lanes}")
    state = OK if row.get("devices", "0") != "0" else NOTE
    return Finding(_GROUP, name, state, "; ".join(about))
