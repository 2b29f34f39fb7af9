# SPDX-License-Identifier: Apache-2.0
"""The sources that a device of src/device is made of, and their hash, which a report of a device has."""

from __future__ import annotations

from pathlib import Path

from .code_hash import code_of, hash_of_code

# Beginnings of names of sources that are for these rows alone.
_BOTH = ("ascend", "mlu")
_OWN = {
    "acl": ("ascend",),
    "ascend": ("ascend",),
    "cnrt": ("mlu",),
    "ended": _BOTH,
    "translated": _BOTH,
}


def device_files(name: str, root: Path) -> list[Path]:
    """The sources that a device is made of; empty where they are somebody else's."""
    device = root / "src" / "device"
    name = "cuda_like" if not (device / name).is_dir() and is_row(name, root) else name
    if not (device / name).is_dir():
        return []
    return [root / "include" / "anyop" / "device.h", *sorted((device / name).iterdir())]


def is_row(name: str, root: Path) -> bool:
    """Whether a device is one of the rows of cuda_like."""
    rows = (root / "src" / "device" / "cuda_like" / "runtimes.toml").read_text(encoding="utf-8")
    return f"[{name.removeprefix('row.')}]" in rows.splitlines()


def sources_of(name: str, root: Path) -> str | None:
    """A hash of what a device is made of: of a row, its own text and the files of its shape."""
    codes = []
    for file in (files := device_files(name, root)):
        code = code_of(file)
        if file.name == "runtimes.toml":
            row = f"\n[{name.removeprefix('row.')}]\n".encode()
            code = code.partition(row)[2].partition(b"\n[")[0]
        elif file.parent.name == "cuda_like" and name not in _owners(file.stem, name):
            continue  # another shape's
        codes.append(code)
    return hash_of_code(codes) if files else None


def _owners(stem: str, otherwise: str) -> tuple[str, ...]:
    return next((rows for part, rows in _OWN.items() if stem.startswith(part)), (otherwise,))
