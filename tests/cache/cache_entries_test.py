# SPDX-License-Identifier: Apache-2.0
"""Entries of the cache: what was damaged, replaced or is open to others is never loaded; reading writes nothing."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from importlib import import_module
from pathlib import Path

import anyop
import anyop.builder
import pytest
import small_builds as sb
from anyop.cache import lookup, maintenance
from anyop.cache.manifest import read_manifest
from anyop.cache.obtain import obtain
from drawn import FULL

cache_folder = sb.cache_folder
pytestmark = sb.needs_compiler
FLIPS = 1000


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Path, Path]:
    """A folder of operators and a cache with its library."""
    root = tmp_path_factory.mktemp("made")
    folder = sb.write_operator(root / "ops")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANYOP_CACHE_DIR", str(root / "cache"))
        sb.build(folder)
    return folder, root / "cache"


@pytest.fixture
def built(made, cache_folder) -> tuple[Path, Path]:
    """The same folder, and its library in the test's own cache."""
    folder, cache = made
    shutil.copytree(cache, cache_folder)
    (entry,) = sb.entries(cache_folder)
    library = sb.build(folder)
    assert library.parent == entry, "the copy of an entry is one"
    return folder, library


@pytest.fixture
def request_of(monkeypatch):
    """The request that anyop.build makes for a folder."""
    made = []

    def noted(request, make):
        made.append(request)
        return obtain(request, make)

    monkeypatch.setattr(import_module("anyop.builder.build"), "obtain", noted)

    def ask(folder: Path) -> lookup.Request:
        sb.build(folder)
        return made[-1]

    return ask


def test_a_thousand_damages_are_seen(built, request_of):
    """Single bits flipped and files cut, in every file of an entry; each is seen before anything is loaded."""
    request = request_of(built[0])
    library = Path(lookup.find(request))
    files = [path for path in library.parent.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".so", ".json", ".h", ".pyi"}
    good = {path: path.read_bytes() for path in files}
    draw = random.Random(6)
    for number in range(FLIPS):
        path = files[number % len(files)]
        data = bytearray(good[path])
        if number % 5:
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        else:
            del data[draw.randrange(len(data)) :]
        path.write_bytes(data)
        assert lookup.find(request) is None, f"{path.name}, damage {number}"
        assert lookup.check_entry(str(library.parent), read_manifest(str(library.parent)))
        path.write_bytes(good[path])
    assert lookup.find(request) == str(library)


@pytest.mark.parametrize(
    "kind", ["flipped", "cut", "empty", "garbage", "gone", "manifest", "header"]
)
def test_what_is_damaged_is_built_anew(kind, built, cache_folder):
    folder, library = built
    target = {
        "manifest": library.parent / "manifest.json",
        "header": library.parent / "include" / "acme" / "ops.h",
    }.get(kind, library)
    data = target.read_bytes()
    if kind == "gone":
        target.unlink()
    else:
        middle = len(data) // 2
        flipped = data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :]
        target.write_bytes(
            {"cut": data[:middle], "empty": b"", "garbage": b"no ELF" * 99}.get(kind, flipped)
        )
    if kind in ("flipped", "garbage"):  # through a load
        assert sb.call(folder, sb.environment(cache_folder)) == "6.0"
    again = sb.build(folder)
    assert again != library and sb.entries(cache_folder) == [again.parent]
    assert sb.call(again, sb.environment(cache_folder)) == "6.0"
    assert sb.build(folder) == again


@pytest.mark.drawn(2)
@pytest.mark.parametrize("place", ["entry", "manifest.json", "libops.so"])
@pytest.mark.parametrize("kind", ["pipe", "folder", "loop", "file"])
def test_what_is_no_such_thing_is_built_anew(kind, place, built, cache_folder):
    """shutil.rmtree waits for the other end of a pipe that has an entry's name. In a process that may hang."""
    folder, entry = built[0], built[1].parent
    path = entry if place == "entry" else entry / place
    shutil.rmtree(path) if place == "entry" else path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path.name)
    else:
        path.write_text("x")
    env = sb.environment(cache_folder)
    assert sb.call(folder, env) == "6.0"
    assert sb.call(folder, env) == "6.0"
    assert not list((cache_folder / "building").iterdir())
    maintenance.clean()
    assert sb.call(folder, env) == "6.0"


@pytest.mark.drawn(2)
@pytest.mark.parametrize("place", ["dependencies", "tools"])
@pytest.mark.parametrize("value", ["\ud800", "\0", None, {}, -1, [[]]])
def test_a_manifest_with_what_is_no_path_is_passed_over(value, place, built, cache_folder):
    """Its hash is right. Half a surrogate pair is text in JSON, and no name of a file."""
    folder, library = built
    path = library.parent / "manifest.json"
    facts = json.loads(path.read_text().split("\n")[1])
    records = facts[place] if place == "dependencies" else facts[place]["host"]["files"]
    records[0][0] = value
    text = json.dumps(facts)
    path.write_text(f"{sha256(text.encode()).hexdigest()}\n{text}\n")
    again = sb.build(folder)
    assert again != library and sb.call(again, sb.environment(cache_folder)) == "6.0"


def test_a_cache_that_is_a_link_to_itself_is_named(cache_folder, tmp_path):
    folder = sb.write_operator(tmp_path / "ops")
    cache_folder.parent.mkdir(exist_ok=True)
    cache_folder.symlink_to(cache_folder.name)
    with pytest.raises(OSError, match=f"ANYOP_CACHE_DIR names another cache.*{cache_folder.name}"):
        anyop.build(folder)


def test_another_valid_library_in_its_place_is_not_loaded(cache_folder, tmp_path):
    wanted = sb.build(sb.write_operator(tmp_path / "a" / "ops"))
    other = sb.build(sb.write_operator(tmp_path / "b" / "ops", "5 * x[r]"))
    shutil.copyfile(other, wanted)
    assert sb.call(tmp_path / "a" / "ops", sb.environment(cache_folder)) == "6.0"


def test_another_valid_entry_in_its_place_is_not_loaded(cache_folder, tmp_path):
    """With its manifest, which is right by itself."""
    wanted = sb.build(sb.write_operator(tmp_path / "a" / "ops")).parent
    other = sb.build(sb.write_operator(tmp_path / "b" / "ops", "5 * x[r]")).parent
    shutil.rmtree(wanted)
    shutil.copytree(other, wanted)
    assert sb.call(tmp_path / "a" / "ops", sb.environment(cache_folder)) == "6.0"


def test_an_entry_of_another_format_is_passed_over(built, monkeypatch):
    folder, first = built
    monkeypatch.setattr("anyop.cache.manifest.FORMAT", 2)
    monkeypatch.setattr("anyop.cache.manifest.Manifest.format", 2)
    assert sb.build(folder) != first


def test_umask_0_makes_private_folders(cache_folder, tmp_path):
    """Those above the cache, too."""
    folder = sb.write_operator(tmp_path / "ops")
    cache = tmp_path / "new" / "deep" / "cache"
    program = "import os, sys; os.umask(0); import anyop; anyop.build(sys.argv[1])"
    process = sb.python(program, folder, env=sb.environment(cache))
    assert process.communicate(timeout=60)[1] == ""
    made = [tmp_path / "new", *(tmp_path / "new").rglob("*")]
    assert len(made) > 10
    assert [path for path in made if path.stat().st_mode & 0o077] == []


@pytest.mark.parametrize("where", ["cache", "entries", "key", "entry"])
@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_folders_writable_by_others_are_refused(where, mode, built, cache_folder):
    folder, entry = built[0], built[1].parent
    place = {
        "cache": cache_folder, "entries": cache_folder / "entries", "key": entry.parent, "entry": entry,
    }[where]  # fmt: skip
    place.chmod(mode)
    with pytest.raises(
        PermissionError, match=f"can be written by others .mode {mode:o}.*ANYOP_CACHE_DIR"
    ):
        anyop.build(folder)
    place.chmod(0o700)
    assert sb.build(folder).parent == entry


def test_a_library_writable_by_others_is_built_anew(built):
    folder, library = built
    library.chmod(0o777)
    again = sb.build(folder)
    assert again != library and again.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_folders_of_another_user_are_refused(built):
    folder, entry = built[0], built[1].parent
    os.chown(entry, 65534, 65534)
    with pytest.raises(PermissionError, match=r"belongs to user 65534.*ANYOP_CACHE_DIR"):
        anyop.build(folder)


def test_a_cache_that_is_no_absolute_path_is_refused(cache_folder, tmp_path, monkeypatch):
    """Code is never loaded from the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANYOP_CACHE_DIR", "cache")
    with pytest.raises(ValueError, match="ANYOP_CACHE_DIR is 'cache', expected an absolute path"):
        anyop.build(sb.write_operator(tmp_path / "ops"))


@pytest.fixture(scope="module")
def crowded(tmp_path_factory) -> Iterator[tuple[Path, Path]]:
    """A folder of operators, and a cache with its library among a thousand others."""
    root = tmp_path_factory.mktemp("crowded")
    folder, cache = sb.write_operator(root / "ops"), root / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANYOP_CACHE_DIR", str(cache))
        sb.build(folder)
    (entry,) = sb.entries(cache)
    stem, key = entry.parent.name.rsplit("-", 1)
    for number in range(1000):
        place = cache / "entries" / f"{stem}-{number:08x}{key[8:]}" / entry.name
        place.mkdir(mode=0o700, parents=True)
        for file in (entry / "manifest.json", *entry.glob("*.so")):
            os.link(file, place / file.name)
    yield folder, cache
    shutil.rmtree(cache)


def test_a_thousand_entries_cost_nothing(crowded, cache_folder, request_of, monkeypatch):
    """A warm look-up reads its own entry only."""
    folder, cache = crowded

    def calls() -> int:
        """Of functions, Python's and others, in a look-up."""
        request, seen = request_of(folder), []
        assert lookup.find(request)
        sys.setprofile(lambda frame, event, what: seen.append(event))
        assert lookup.find(request)
        sys.setprofile(None)
        return len(seen)

    alone = calls()
    monkeypatch.setenv("ANYOP_CACHE_DIR", str(cache))
    assert len(sb.entries(cache)) == 1001 and 10 < calls() < alone + 100


# Says what it opens for writing, makes, removes or locks: "import anyop; anyop.load" with an audit hook.
WATCH = """
import os, sys
seen = []
def hook(event, args):
    if event == "open":
        flags = args[2] if isinstance(args[2], int) else 0
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
            seen.append(f"open {args[0]}")
    elif event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.chmod", "os.utime",
                   "os.truncate", "fcntl.flock", "fcntl.lockf", "subprocess.Popen", "os.posix_spawn", "os.system"):
        seen.append(f"{event} {args[:1]}")
sys.addaudithook(hook)
import anyop
anyop.load(sys.argv[1])
import numpy as np
print(float(anyop.ops.acme.scale(np.float32([3]))[0]), *seen, sep="|")
"""


def test_warm_processes_write_and_lock_nothing(crowded, tmp_path):
    """Eight at once; four times with ANYOP_TEST_FULL=1."""
    folder, cache = crowded
    env = sb.environment(cache, PYTHONDONTWRITEBYTECODE="1", PATH="/nowhere")
    command = [sys.executable, "-c", WATCH, str(folder)]
    strace = find_strace(tmp_path)
    if not strace:
        print("no strace here: Python's audit events and the files' times are what is compared")
    before = snapshot(cache)
    for number in range(0, 32 if FULL else 8, 8):
        logs = [tmp_path / f"strace{number + i}" for i in range(8)]
        traced = [[*strace, "-o", str(log), *command] if strace else command for log in logs]
        for process in [sb.start(words, env) for words in traced]:
            output, errors = process.communicate(timeout=60)
            assert output == "6.0\n", output + errors
        for log in logs if strace else ():
            lines = log.read_text().splitlines()
            assert any("libops.so" in line for line in lines), "strace saw nothing"
            assert [line for line in lines if is_write(line)] == []
    assert snapshot(cache) == before


CALLS = (
    "openat", "open", "creat", "mkdir", "mkdirat", "rename", "renameat", "renameat2", "unlink", "unlinkat", "flock",
    "fcntl", "chmod", "fchmod", "ftruncate", "link", "linkat", "symlink", "symlinkat",
)  # fmt: skip


def find_strace(folder: Path) -> list[str]:
    """The command, nothing where there is none that works: a container may not permit it."""
    program = shutil.which("strace")
    calls = ",".join(f"?{call}" for call in CALLS)  # some machines have not all
    command = [program or "", "-f", "--seccomp-bpf", "-qq", "-e", f"trace={calls}"]
    probe = [*command, "-o", str(folder / "probe"), "true"]
    works = program and subprocess.run(probe, capture_output=True).returncode == 0
    return command if works else []


def is_write(line: str) -> bool:
    """Of strace's lines, those that lock, or change a file."""
    harmless = (" = -1 ", "/dev/", "F_GETFD", "F_DUPFD", "F_SETFD", "F_GETFL")
    if any(text in line for text in harmless):
        return False
    flags = ("O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC", "F_SETLK", "F_OFD_SETLK")
    call = line.split(None, 1)[-1]
    return not call.startswith(("open", "fcntl", "+++", "---")) or any(
        flag in call for flag in flags
    )


def snapshot(folder: Path) -> list[tuple]:
    """All paths with their times of change."""
    return [(path, path.stat().st_ctime_ns) for path in sorted(folder.rglob("*"))]
