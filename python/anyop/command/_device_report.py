# SPDX-License-Identifier: Apache-2.0
"""The report of `anyop device-check --report`: what was tested, of which sources, on what, and what came out.

Hashes are of the sources beside the folder of operators, where there are any: tools/device_labels.py compares them
with those of now.
"""

from __future__ import annotations

import ctypes
import datetime
import json
import platform
import re
from importlib import metadata
from pathlib import Path
from typing import Any

# What device.h says of the numbers is the vendor's; a false runtime of tests/runtimes has this one.
_FALSE = 0x0FA15E00


def describe(device: Any) -> dict[str, Any]:
    """What the device says of itself: chip, versions, how many there are."""
    from anyop.conformance.device_table import Properties, Versions

    found: dict[str, Any] = {"name": device.name, "devices": len(device.devices)}
    versions = Versions(ctypes.sizeof(Versions))
    if device.has("versions"):
        device.versions(ctypes.byref(versions))
    found["driver"], found["runtime"] = versions.driver, versions.runtime
    if found["devices"]:
        properties = Properties(size=ctypes.sizeof(Properties))
        device.properties(0, ctypes.byref(properties))
        found["chip"] = properties.name.decode(errors="replace")
        found["generation"] = f"{properties.major}.{properties.minor}"
        found["bytes"] = properties.total_bytes
    return found


def evidence(about: dict[str, Any], processor: str) -> str:
    """How far a run went, by what the device said: a word of docs/devices.md's table.

    A runtime that says no version of itself shows nothing: it may be a false one.
    """
    chip = about.get("chip", "")
    is_false = (
        chip.startswith("false ")
        or "simulated" in chip
        or _FALSE in (about.get("driver"), about.get("runtime"))
    )
    if is_false:
        below = chip.partition(" over ")[2]
        on_host = not below or below == "host" or below.startswith("false ")
        return "false runtime" if on_host else "false runtime on silicon"
    if not chip or about.get("name") == "host" or _is_processor(chip, processor):
        return "vendor's library, no chip"
    known = about.get("driver") or about.get("runtime") or about.get("name") == "opencl"
    return "silicon" if known else "public sources only"


def _is_processor(chip: str, processor: str) -> bool:
    """Whether a device is the machine's CPU by another name: PoCL's, Intel's OpenCL."""
    words = [word for word in re.findall(r"\w+", processor) if len(word) > 3]
    said = chip.lower()
    return said.startswith(("cpu", "pthread", "basic")) or any(
        word.lower() in said
        for word in words
        if word.lower() not in ("nvidia", "processor", "core", "with")
    )


def write_report(
    file: str, plugin: str, about: dict, results: dict[str, dict], operators: str | None
) -> None:
    """One JSON object, keys sorted."""
    from anyop.codegen.device_sources import sources_of

    processor = _processor()
    checks = {name: found for name, found in results.items() if not name.startswith("op ")}
    tested = {name[3:]: found for name, found in results.items() if name.startswith("op ")}
    root = _root(operators)
    report = {
        "plugin": plugin if "/" not in plugin else Path(plugin).name,
        "evidence": evidence(about, processor),
        "device": about,
        "sources": sources_of(about.get("name", plugin), root) if root else None,
        "checks": checks,
        "operators": {
            name: found | ({"sources": _operator_hash(name, about["name"], root)} if root else {})
            for name, found in tested.items()
        },
        "passed": all(found["good"] for found in results.values()),
        "machine": {"processor": processor, "system": platform.platform(terse=True)},
        "versions": {"anyop": metadata.version("anyop"), "numpy": metadata.version("numpy"),
                     "python": platform.python_version()},
        "utc": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }  # fmt: skip
    Path(file).write_text(json.dumps(report, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _processor() -> str:
    text = (
        Path("/proc/cpuinfo").read_text(errors="replace") if Path("/proc/cpuinfo").exists() else ""
    )
    found = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    return found[1] if found else platform.machine()


def _root(operators: str | None) -> Path | None:
    """The folder of anyop's sources; None where the operators are somebody else's."""
    root = Path(operators or "ops").resolve().parent
    return root if (root / "src" / "device").is_dir() else None


def _operator_hash(name: str, device: str, root: Path) -> str | None:
    from anyop.codegen.gpu_record import hash_of_sources
    from anyop.codegen.operators.operator_file import read_operator

    (file,) = root.glob(f"ops/*/{name}.toml")
    return hash_of_sources(read_operator(file), root, device)
