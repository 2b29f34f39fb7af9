# SPDX-License-Identifier: Apache-2.0
"""What an entry of the cache says of itself: its files and, by contents, all that they were made from."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field

from anyop.cache.dependencies import Record, hash_file, unchanged

FILE = "manifest.json"
FORMAT = 1


@dataclass
class Tool:
    """A program that took part: how it is called, what it says of its version, and the files that it consists of."""

    command: list[str]
    version: str = ""
    files: list[Record] = field(default_factory=list)

    def unchanged(self) -> bool:
        """Whether the program on this machine is still the same one."""
        return all(map(unchanged, self.files))


@dataclass
class Manifest:
    """One entry. files: path below the entry -> SHA-256."""

    name: str
    key: str = ""  # of the request that it answers
    library: str = ""  # of files, the one to load
    files: dict[str, str] = field(default_factory=dict)
    dependencies: list[Record] = field(default_factory=list)
    tools: dict[str, Tool] = field(default_factory=dict)  # by role: "host", "cuda"
    built: float = 0.0  # seconds since 1970
    built_seconds: float = 0.0  # how long it took
    format: int = FORMAT

    def write(self, folder: str) -> None:
        """List the files that are in the folder and write the manifest: the hash of the text, then the text."""
        for root, _, names in os.walk(folder):
            for name in names:
                path = os.path.join(root, name)
                self.files[os.path.relpath(path, folder)] = hash_file(path)
        text = json.dumps(asdict(self), separators=(",", ":"))
        with open(os.path.join(folder, FILE), "w", encoding="utf-8") as stream:
            stream.write(f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}\n")


def read_manifest(folder: str) -> Manifest | None:
    """The manifest of an entry; None where it is missing, damaged or of another format."""
    try:
        with open(os.path.join(folder, FILE), "rb") as stream:
            digest, text, end = stream.read().split(b"\n")
        if end or hashlib.sha256(text).hexdigest().encode() != digest:
            return None
        data = json.loads(text)
        if data["format"] != FORMAT:
            return None
        tools = {role: Tool(**tool) for role, tool in data.pop("tools").items()}
        return Manifest(tools=tools, **data)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def damaged_file(folder: str, manifest: Manifest) -> str | None:
    """The first file that is not what the manifest says, None when all are."""
    for name, digest in manifest.files.items():
        try:
            if hash_file(os.path.join(folder, name)) != digest:
                return name
        except OSError:
            return name
    return None
