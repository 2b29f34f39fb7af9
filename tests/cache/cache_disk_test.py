# SPDX-License-Identifier: Apache-2.0
"""Where the cache is and what the disk allows: full, no inodes, read-only, no home; errors name the variable."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyop
import anyop.builder
import pytest
import small_builds as sb
from anyop.cache.place import cache_dir

cache_folder = sb.cache_folder
pytestmark = sb.needs_compiler


@contextmanager
def mounted(place: Path, *options: str) -> Iterator[None]:
    """A file system at the place; the test is skipped where no mount is permitted."""
    place.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *options, str(place)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no mount is permitted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def tmpfs(place: Path, options: str):
    """A file system in memory."""
    return mounted(place, "-t", "tmpfs", "-o", f"mode=700,{options}", "none")


def test_a_full_disk_is_said_and_what_is_built_after_it_is_right(tmp_path):
    folder, disk = sb.write_operator(tmp_path / "ops"), tmp_path / "disk"
    env = sb.environment(disk / "cache")
    with tmpfs(disk, "size=512k"):
        ballast = disk / "ballast"
        failures = []
        for free in (0, 12, 24, 40, 60, 90, 120, 400):  # each lets the build come a little further
            ballast.unlink(missing_ok=True)
            write_up_to(ballast, (512 - free) << 10)
            said = sb.call(folder, env)
            if said == "6.0":
                break
            failures.append(said)
            assert "No space left on device" in said, said
            assert "ANYOP_CACHE_DIR" in said and str(disk / "cache") in said, said
            assert sb.leftovers(disk / "cache") == [] and sb.entries(disk / "cache") == []
        assert len(failures) >= 3 and said == "6.0", failures
        assert all("Traceback" not in failure for failure in failures)


def write_up_to(path: Path, size: int) -> None:
    """As much of it as the disk takes."""
    try:
        with path.open("wb", buffering=0) as stream:
            for _ in range(size >> 10):
                stream.write(bytes(1024))
    except OSError:
        return


def test_a_disk_without_inodes_is_said_and_what_is_built_after_it_is_right(tmp_path):
    folder, disk = sb.write_operator(tmp_path / "ops"), tmp_path / "disk"
    env = sb.environment(disk / "cache")
    with tmpfs(disk, "size=8m,nr_inodes=60"):
        ballast = [disk / f"ballast{number}" for number in range(58)]
        for path in ballast:
            path.touch()
        failures = []
        while (said := sb.call(folder, env)) != "6.0":
            failures.append(said)
            assert "No space left on device" in said and "ANYOP_CACHE_DIR" in said, said
            assert sb.leftovers(disk / "cache") == []
            for path in ballast[-8:]:
                path.unlink()
            del ballast[-8:]
        assert len(failures) >= 3


def test_a_read_only_cache_loads_what_it_has_and_says_so_otherwise(cache_folder, tmp_path):
    warm, cold = (
        sb.write_operator(tmp_path / "warm"),
        sb.write_operator(tmp_path / "cold", "4 * x[r]"),
    )
    sb.build(warm)
    view = tmp_path / "view"
    with mounted(view, "--bind", str(cache_folder)):
        subprocess.run(["mount", "-o", "remount,ro,bind", str(view)], check=True)
        env = sb.environment(view)
        assert sb.call(warm, env) == "6.0"
        said = sb.call(cold, env)
        assert re.match(
            r"OSError: \[Errno 30\] Read-only file system; .*ANYOP_CACHE_DIR names another", said
        )
        new = sb.call(cold, sb.environment(view / "new"))
        assert re.match(r"OSError: \[Errno 30\] Read-only file system; ANYOP_CACHE_DIR names", new)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_loads_what_root_built_and_cannot_write(cache_folder, request, monkeypatch):
    """Without a mount: a cache of root's that another user may read. The first build brings all imports, for this
    Python may lie where nobody else reads. It does not lie below pytest's folder, which each run of pytest closes.
    """
    place = Path(tempfile.mkdtemp())
    request.addfinalizer(lambda: shutil.rmtree(place))
    cache_folder = place / "cache"
    monkeypatch.setenv("ANYOP_CACHE_DIR", str(cache_folder))
    warm, cold = (
        sb.write_operator(place / "warm"),
        sb.write_operator(place / "cold", "4 * x[r]"),
    )
    first = sb.write_operator(place / "first", namespace="first")
    sb.build(warm)
    sb.build(first)
    for path in (place, *place.rglob("*")):
        path.chmod(path.stat().st_mode | (0o055 if path.is_dir() else 0o044))
    imports = "import os, sys, anyop, anyop.cache.store, numpy; anyop.load(sys.argv[3])"
    program = f"{imports}; os.setgid(65534); os.setuid(65534)\n{sb.CALL}"
    root = sb.environment(cache_folder)
    for folder, expected in (
        (warm, "6.0"),
        (cold, "PermissionError: .*ANYOP_CACHE_DIR names another"),
    ):
        process = sb.python(program, folder, "acme", first, env=root)
        output = "".join(process.communicate(timeout=60)).strip()
        assert re.match(expected, output), output


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"ANYOP_CACHE_DIR": None, "XDG_CACHE_HOME": "{tmp}/xdg"}, "{tmp}/xdg/anyop"),
        ({"ANYOP_CACHE_DIR": "", "XDG_CACHE_HOME": None, "HOME": "{tmp}"}, "{tmp}/.cache/anyop"),
        ({"ANYOP_CACHE_DIR": None, "XDG_CACHE_HOME": "relative", "HOME": "{tmp}"}, "{tmp}/.cache/anyop"),
        ({"ANYOP_CACHE_DIR": None, "HOME": "/nowhere", "TMPDIR": "{tmp}/t"}, "{tmp}/t/anyop-{uid}"),
        ({"ANYOP_CACHE_DIR": None, "HOME": "{tmp}/no/home", "TMPDIR": "{tmp}/t"}, "{tmp}/t/anyop-{uid}"),
        ({"ANYOP_CACHE_DIR": None, "HOME": "relative", "TMPDIR": "{tmp}/t"}, "{tmp}/t/anyop-{uid}"),
        ({"ANYOP_CACHE_DIR": None, "HOME": None}, "{home}/.cache/anyop"),  # as the user database says
        ({"ANYOP_CACHE_DIR": "{tmp}/named"}, "{tmp}/named"),
    ],
)  # fmt: skip
def test_where_the_cache_is(changes, place, tmp_path):
    import pwd

    home = pwd.getpwuid(os.getuid()).pw_dir
    (tmp_path / "t").mkdir()
    words = {"tmp": tmp_path, "uid": os.getuid(), "home": home}
    env = sb.environment(
        tmp_path, **{name: value and value.format(**words) for name, value in changes.items()}
    )
    process = sb.python("from anyop.cache.place import cache_dir; print(cache_dir())", env=env)
    output, errors = process.communicate(timeout=60)
    assert output.strip() == place.format(**words), errors


def test_a_build_without_a_home(tmp_path):
    """In the folder of temporary files, in one that nobody else can have made."""
    folder = sb.write_operator(tmp_path / "ops")
    env = sb.environment(tmp_path, ANYOP_CACHE_DIR=None, HOME="/nowhere", TMPDIR=str(tmp_path))
    assert sb.call(folder, env) == "6.0"
    place = tmp_path / f"anyop-{os.getuid()}"
    assert place.stat().st_mode & 0o777 == 0o700 and len(sb.entries(place)) == 1
    place.chmod(0o777)
    assert sb.call(folder, env).startswith(f"PermissionError: {place} can be written by others")


def test_a_cache_below_a_file_is_said(cache_folder, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("ANYOP_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(
        OSError, match=r"(Not a directory|File exists); ANYOP_CACHE_DIR names another"
    ):
        anyop.build(sb.write_operator(tmp_path / "ops"))


def test_a_cache_that_vanishes_is_made_again(cache_folder, tmp_path):
    folder = sb.write_operator(tmp_path / "ops")
    sb.build(folder)
    shutil.rmtree(cache_dir())
    assert sb.build(folder).exists()
