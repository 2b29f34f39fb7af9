# SPDX-License-Identifier: Apache-2.0
"""Damages files of one kind again and again, and reads them as anyop does: a program of its own, which may die.

    python damage.py KIND SEED COUNT FOLDER

FOLDER holds `ops` (a folder of operators that is built into the cache), `lib.so` (their library), `routes.toml` and
`toolchains.toml`. Each case prints a line before and after; SIGALRM ends one that takes too long.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import random
import shutil
import signal
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import anyop
from anyop.cache import lookup, maintenance
from anyop.cache.manifest import FILE
from anyop.cache.obtain import obtain

SECONDS = 20  # of one case
# Whatever may be said of a damaged file; anything else is a fault of ours.
REFUSED = (ValueError, OSError, RuntimeError, LookupError)
ODD = [None, True, 0, -1, 7, 2**70, 1.5, 1e308, "", "x", "\0", "\ud800", "../../x", "/dev/zero", [], [[]], ["x"], {},
       {"x": 1}, {"x": {}}, [1, 2, 3, 4, 5, 6]]  # fmt: skip


def damage(path: Path, draw: random.Random) -> str:
    """Does one thing to the file; says what."""
    data = bytearray(path.read_bytes())
    kind = draw.choice(["cut", "cut", "flip", "flip", "bytes", "insert", "empty", "pipe", "folder", "loop", "dangling",
                        "device", "mode"])  # fmt: skip
    if kind in ("cut", "flip", "bytes", "insert", "empty"):
        at = draw.randrange(len(data) + 1)
        if kind == "flip":
            data[min(at, len(data) - 1)] ^= 1 << draw.randrange(8)
        elif kind == "insert":
            data[at:at] = draw.randbytes(draw.randrange(1, 100))
        elif kind == "bytes":
            data[at : at + 8] = draw.randbytes(min(8, len(data) - at))
        else:
            del data[at if kind == "cut" else 0 :]
        path.write_bytes(data)
        return f"{kind} at {at}"
    if kind == "mode":
        path.chmod(0)
        return kind
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to({"loop": path.name, "dangling": "nowhere", "device": "/dev/zero"}[kind])
    return kind


def restore(path: Path, data: bytes, mode: int) -> None:
    """The file as it was."""
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)
    path.write_bytes(data)
    path.chmod(mode)


def change_type(path: Path, draw: random.Random) -> str:
    """Another value somewhere in a manifest, whose hash is right."""
    facts = json.loads(path.read_bytes().split(b"\n")[1])
    place, key = facts, draw.choice(list(facts))
    while isinstance(place[key], (dict, list)) and place[key] and draw.random() < 0.7:
        place = place[key]
        key = draw.choice(list(place)) if isinstance(place, dict) else draw.randrange(len(place))
    place[key] = draw.choice(ODD)
    if draw.random() < 0.1:
        facts = draw.choice(ODD)
    text = json.dumps(facts)
    path.write_text(f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}\n")
    return f"{key} = {str(place[key])[:20]!r}"


class Case:
    """One kind of files: what is damaged, how, and how it is read."""

    name = ""  # of the one file

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.damage: Callable[[Path, random.Random], str] = damage

    def files(self) -> list[Path]:
        """Those that may be damaged."""
        return [self.folder / self.name]

    def read(self) -> str:
        """What anyop makes of them: "whole" or a refusal's text."""
        raise NotImplementedError


class Entry(Case):
    """An entry of the cache: it is taken whole or not at all."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        made = []
        builder = importlib.import_module("anyop.builder.build")
        builder.obtain = lambda request, make: (made.append(request), obtain(request, make))[1]
        self.library = Path(anyop.build(folder / "ops"))
        self.request, self.good = made[0], self.library.read_bytes()

    def files(self) -> list[Path]:
        return [path for path in self.library.parent.rglob("*") if path.is_file()]

    def read(self) -> str:
        for entry in maintenance.entries():
            maintenance.problem(entry)
        found = lookup.find(self.request)
        if found is None:
            return "refused"
        with open(
            found, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)
        ) as stream:
            assert stream.read() == self.good, "another library was taken"
        return "whole"


class Manifests(Entry):
    """Manifests with right hashes and values of other types."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.damage = change_type

    def files(self) -> list[Path]:
        return [self.library.parent / FILE]


class Library(Case):
    """A built library outside of the cache."""

    name = "lib.so"

    def read(self) -> str:
        anyop.load(self.folder / "lib.so")
        return "whole"


class Stripped(Library):
    """One without a checksum: what was cut off, or is no file, is seen."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        path = folder / "lib.so"
        path.write_bytes(path.read_bytes()[:-16])

        def cut(path: Path, draw: random.Random) -> str:
            data = path.read_bytes()
            at = draw.randrange(len(data))
            path.write_bytes(data[:at])
            return f"cut at {at}"

        self.damage = cut


class Operators(Case):
    """Operator files and kernels: their key and what the generator reads."""

    def files(self) -> list[Path]:
        return sorted((self.folder / "ops").iterdir())

    def read(self) -> str:
        from anyop.builder.folder import check_folder, find_files, make_key
        from anyop.codegen.generate import generate

        folder = check_folder(self.folder / "ops")
        make_key([], folder, find_files(folder))
        generate([Path(folder)], "ops")
        return "whole"


class Routes(Case):
    """A route file."""

    name = "routes.toml"

    def read(self) -> str:
        anyop.load_routes(self.folder / "routes.toml")
        return "whole"


class Toolchains(Case):
    """The user's table of compilers."""

    name = "toolchains.toml"

    def read(self) -> str:
        from anyop.builder.toolchains import read_toolchains

        os.environ["ANYOP_TOOLCHAINS"] = str(self.folder / "toolchains.toml")
        read_toolchains()
        return "whole"


KINDS = {
    "entry": Entry, "manifest": Manifests, "library": Library, "stripped": Stripped, "operators": Operators,
    "routes": Routes, "toolchains": Toolchains,
}  # fmt: skip


def main() -> None:
    kind, seed, count, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    case, draw = KINDS[kind](folder), random.Random(seed)
    files = case.files()
    good = {path: (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) for path in files}
    for number in range(count):
        path = draw.choice(files)
        signal.alarm(SECONDS)
        what = case.damage(path, draw)
        print(f"{number} {path.name}: {what}", flush=True)
        try:
            said = case.read()
        except REFUSED as error:
            said = f"{type(error).__name__}: {error}"
            assert str(error).strip() and len(said) < 20_000, f"no text, or too much: {said[:500]}"
        print(f"  {said.splitlines()[0][:300]}", flush=True)
        restore(path, *good[path])
    signal.alarm(0)
    assert case.read() == "whole"
    shutil.rmtree(folder, ignore_errors=True)
    print("done")


if __name__ == "__main__":
    main()
