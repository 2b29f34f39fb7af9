# SPDX-License-Identifier: Apache-2.0
"""What an entry of the cache says of itself: its files and, by contents, all that they were made from."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping

from anyop.cache.dependencies import Record, hash_file, open_regular, sha256, unchanged

FILE = "manifest.json"
FORMAT = 1


class Tool:
    """A program that took part: how it is called, what it says of its version, and the files that it consists of."""

    def __init__(self, command: list[str], version: str = "", files: Iterable[Record] = ()) -> None:
        self.command, self.version, self.files = command, version, list(files)

    def unchanged(self) -> bool:
        """Whether the program on this machine is still the same one."""
        return all(map(unchanged, self.files))


class Manifest:
    """One entry."""

    format = FORMAT

    def __init__(
        self,
        name: str,
        key: str = "",  # of the request that it answers
        library: str = "",  # of files, the one to load
        files: Mapping[str, str] = {},  # path below the entry -> SHA-256
        dependencies: Iterable[Record] = (),
        tools: Mapping[str, Tool] = {},  # by role: "host", "cuda"
        built: float = 0.0,  # seconds since 1970
        built_seconds: float = 0.0,  # how long it took
    ) -> None:
        self.name, self.key, self.library = name, key, library
        self.files, self.dependencies, self.tools = dict(files), list(dependencies), dict(tools)
        self.built, self.built_seconds = built, built_seconds

    def write(self, folder: str) -> None:
        """List the files that are in the folder and write the manifest: the hash of the text, then the text."""
        for root, _, names in os.walk(folder):
            for name in names:
                path = os.path.join(root, name)
                self.files[os.path.relpath(path, folder)] = hash_file(path)
        tools = {role: vars(tool) for role, tool in self.tools.items()}
        facts = {**vars(self), "tools": tools, "format": self.format}
        text = json.dumps(facts, separators=(",", ":"))
        with open(os.path.join(folder, FILE), "w", encoding="utf-8") as stream:
            stream.write(f"{sha256(text.encode()).hexdigest()}\n{text}\n")


def read_manifest(folder: str) -> Manifest | None:
    """The manifest of an entry; None where it is missing, damaged or of another format."""
    try:
        with open(os.path.join(folder, FILE), "rb", opener=open_regular) as stream:
            digest, text, end = stream.read().split(b"\n")
        if end or sha256(text).hexdigest().encode() != digest:
            return None
        data = json.loads(text)
        if data.pop("format") != FORMAT:
            return None
        tools = {role: Tool(**tool) for role, tool in data.pop("tools").items()}
        made = Manifest(tools=tools, **data)
        return made if _is_well_formed(made) else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def _is_well_formed(made: Manifest) -> bool:
    """Whether each value is of its type, so that nobody who reads it meets another."""
    texts = [made.name, made.key, made.library, *made.files, *made.files.values()]
    records = list(made.dependencies)
    for tool in made.tools.values():
        texts += [*tool.command, tool.version]
        records += tool.files
    numbers = [made.built, made.built_seconds]
    for record in records:
        path, digest, *state = record
        texts += [path, digest]
        numbers += state
    return (
        # What no path can be, such as half a surrogate pair, raises ValueError.
        all(isinstance(text, str) and b"\0" not in os.fsencode(text) for text in texts)
        and all(type(number) in (int, float) and math.isfinite(number) for number in numbers)
        and made.library in made.files
    )


def damaged_file(folder: str, manifest: Manifest) -> str | None:
    """The first file that is not what the manifest says, None when all are."""
    for name, digest in manifest.files.items():
        try:
            if hash_file(os.path.join(folder, name)) != digest:
                return name
        except OSError:
            return name
    return None
