# SPDX-License-Identifier: Apache-2.0
"""`anyop cache list|verify|clean`: what is there, what is damaged, what goes."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
import small_builds as sb
from anyop.cache import maintenance, store
from anyop.cache.lock import locked, try_lock
from anyop.cache.lookup import Request, find
from anyop.cache.manifest import Manifest
from anyop.cache.obtain import obtain
from anyop.command import main

cache_folder = sb.cache_folder
DAY = 86400.0


def add(name: str, size: int = 100, age_seconds: float = 0.0) -> Request:
    """An entry, built by nobody."""
    request = Request(name, f"{abs(hash(name)):064x}"[:64], lambda role: None)

    def make(private: str) -> Manifest:
        Path(private, "entry", "lib.so").write_bytes(bytes(size))
        return Manifest(name=name, library="lib.so")

    now = time.time() - age_seconds
    patch = pytest.MonkeyPatch()
    patch.setattr(store.time, "time", lambda: now)
    try:
        store.store(request, make)
    finally:
        patch.undo()
    return request


def run(capsys, *words: str) -> tuple[int, str, str]:
    """Exit code, output and errors of `anyop cache`."""
    code = main(["cache", *words])
    return code, *capsys.readouterr()


def names() -> list[str]:
    """Of the entries that are left, oldest first."""
    return [entry.name for entry in maintenance.entries()]


def test_an_empty_cache(cache_folder, capsys):
    assert run(capsys, "list") == (0, f"0 entries, 0 B, in {cache_folder}\n", "")
    assert run(capsys, "verify")[0] == 0
    assert run(capsys, "clean") == (0, f"removed 0 of the entries below {cache_folder}, 0 B\n", "")
    assert not cache_folder.exists()


def test_list_shows_name_size_age_and_folder(cache_folder, capsys):
    add("young", 5 << 20)
    add("old", 100, 3 * DAY)
    code, output, _ = run(capsys, "list")
    old, young, total = output.splitlines()
    assert code == 0 and re.match(rf"old +\d+ B +3d +{cache_folder}/entries/old-", old)
    assert re.match(rf"young +5 MiB +\ds +{cache_folder}/entries/young-", young)
    assert re.fullmatch(rf"2 entries, 5 MiB, in {cache_folder}", total)
    data = json.loads(run(capsys, "list", "--json")[1])
    assert data["cache"] == str(cache_folder)
    assert [entry["name"] for entry in data["entries"]] == ["old", "young"]
    assert data["entries"][1]["size_bytes"] > 5 << 20 and os.path.isdir(data["entries"][0]["path"])


def test_verify_names_what_is_damaged(cache_folder, capsys):
    states = ("good", "flipped", "cut", "gone", "manifest", "open")
    library = {state: Path(find(add(state))) for state in states}
    library["flipped"].write_bytes(b"\1" + bytes(99))
    os.truncate(library["cut"], 9)
    library["gone"].unlink()
    (library["manifest"].parent / "manifest.json").unlink()
    library["open"].parent.chmod(0o777)
    code, output, _ = run(capsys, "verify")
    said = dict(re.findall(r"^(\w+) .*?(?:  DAMAGED: (.*))?$", output, re.M))
    assert code == 1 and "6 entries" in output and "5 damaged" in output
    assert said["good"] == "" and said["flipped"] == said["cut"] == "lib.so is not what was built"
    assert said["gone"] == "lib.so: No such file or directory"
    assert said["manifest"] == "its manifest is damaged"
    assert "can be written by others" in said["open"]
    data = json.loads(run(capsys, "verify", "--json")[1])
    assert sum(entry["problem"] is not None for entry in data["entries"]) == 5
    assert run(capsys, "clean", "--older", "1d")[0] == 0 and names() == ["good"]


def test_clean_takes_all(cache_folder, capsys):
    for name in ("a", "b"):
        add(name)
    (cache_folder / "torch_glue-2.0.so").touch()
    code, output, _ = run(capsys, "clean")
    assert code == 0 and output.startswith("removed 2 of the entries")
    assert names() == [] and list((cache_folder / "entries").iterdir()) == []
    assert list((cache_folder / "locks").iterdir()) == [] == sb.leftovers(cache_folder)
    assert find(add("a"))


@pytest.mark.parametrize(
    ("age", "left"),
    [("30s", ["a"]), ("1h", ["a", "b"]), ("2d", ["a", "b", "c"]), ("8w", ["a", "b", "c", "d"])],
)
def test_clean_by_age(age, left, cache_folder, capsys):
    for name, seconds in (("a", 0), ("b", 600), ("c", 1.5 * DAY), ("d", 30 * DAY)):
        add(name, age_seconds=seconds)
    assert run(capsys, "clean", "--older", age)[0] == 0
    assert sorted(names()) == sorted(left)


def test_clean_by_size_takes_the_oldest_first(cache_folder, capsys):
    for number, name in enumerate(("newest", "middle", "oldest")):
        add(name, 1 << 20, number * DAY)
    assert run(capsys, "clean", "--size", "10M")[0] == 0 and len(names()) == 3
    assert run(capsys, "clean", "--size", "2500K")[0] == 0 and names() == ["middle", "newest"]
    assert run(capsys, "clean", "--size", "0")[0] == 0 and names() == []


def test_clean_leaves_what_is_not_the_caches(cache_folder, capsys):
    """The cache may be named as a folder that has an `entries` for another purpose."""
    add("a")
    mine = [
        cache_folder / "entries" / "diary" / "monday",
        cache_folder / "locks" / "door.lock",
        cache_folder / "building" / "x",
    ]
    for path in mine:
        path.parent.mkdir(exist_ok=True)
        path.touch()
    assert run(capsys, "clean")[0] == 0
    assert names() == [] and all(path.exists() for path in mine)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (
            ["clean", "--older", "soon"],
            1,
            "anyop cache: --older 'soon', expected a number and one of s, m, h, d, w, such as 30d",
        ),
        (["clean", "--older", "3"], 1, "--older '3', expected"),
        (["clean", "--older", "-3d"], 2, "--older"),
        (["clean", "--older", "3y"], 1, "--older '3y', expected"),
        (
            ["clean", "--size", "big"],
            1,
            "--size 'big', expected a number and one of K, M, G, such as 500M",
        ),
        (["clean", "--size", "1.5G"], 1, "--size '1.5G'"),
        (["clean", "--size", ""], 1, "--size ''"),
        (["list", "--older", "3d"], 1, "--older and --size are of anyop cache clean"),
        (["wash"], 2, "action: 'wash', expected list, verify, clean"),
        ([], 2, "required: action"),
        (["clean", "--all"], 2, "--all"),
    ],
    ids=str,
)
def test_bad_inputs(words, code, says, cache_folder, capsys):
    add("a")
    found, output, errors = run(capsys, *words)
    assert (found, output) == (code, "") and says in errors and len(errors.splitlines()) == 1
    assert names() == ["a"]


def test_a_cache_that_is_no_absolute_path(cache_folder, capsys, monkeypatch):
    monkeypatch.setenv("ANYOP_CACHE_DIR", "cache")
    for action in ("list", "verify", "clean"):
        code, _, errors = run(capsys, action)
        assert code == 1 and "ANYOP_CACHE_DIR is 'cache', expected an absolute path" in errors


def test_clean_while_others_build_and_clean(cache_folder, request):
    """Nobody fails, and what was built in the end is there."""
    problems: list[BaseException] = []
    request.addfinalizer(partial(sys.setswitchinterval, sys.getswitchinterval()))
    sys.setswitchinterval(1e-5)  # the threads meet in every state

    def often(work) -> None:
        try:
            for _ in range(60):
                work()
        except BaseException as error:
            problems.append(error)

    def build(name: str) -> None:
        wanted = Request(name, name.encode().hex().ljust(64, "0"), lambda role: None)

        def make(private: str) -> Manifest:
            Path(private, "entry", "lib.so").write_bytes(b"x")
            return Manifest(name=name, library="lib.so")

        assert obtain(wanted, make)

    jobs = [
        lambda: maintenance.clean(),
        lambda: maintenance.clean(),
        lambda: build("a"),
        lambda: build("b"),
        lambda: maintenance.entries(),
    ]
    threads = [threading.Thread(target=often, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert problems == []
    build("a")
    assert len(sb.entries(cache_folder)) >= 1 and not any(
        map(maintenance.problem, maintenance.entries())
    )


def test_clean_leaves_a_lock_that_is_held(cache_folder):
    add("a")
    path = next((cache_folder / "locks").iterdir())
    with locked(str(path), "a", 1):
        maintenance.clean()
        assert path.exists() and try_lock(str(path)) is None
    shutil.rmtree(cache_folder / "entries")
    maintenance.clean()
    assert not path.exists()
