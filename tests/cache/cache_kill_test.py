# SPDX-License-Identifier: Apache-2.0
"""Builds that are killed, at 60 moments, in short 15, and before every change of the file system: the next is right."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyop
import small_builds as sb
from anyop.cache import store
from anyop.cache.lookup import Request, check_entry, find
from anyop.cache.manifest import Manifest, read_manifest
from drawn import FULL, part

cache_folder = sb.cache_folder
KILLS, LANES, STEP_SECONDS = 60, 15, 0.1
EACH = 1 if FULL else 4  # step between those that are tried
BUILD = "import sys, anyop; print('go', flush=True); anyop.build(sys.argv[1]); print('done', flush=True)"


@sb.needs_compiler
def test_kills_at_steps_of_a_tenth_of_a_second(tmp_path, capsys, monkeypatch):
    """Each lane has a cache of its own and kills four builds in it, in short one, one after the other, at moments that
    are spread over the whole build.

    The compiler waits before and after its work, so that a build takes four to six seconds and little of the processor.
    A build that is killed once its entry is in place leaves its private folder to the next build's sweep.
    """
    folder, log = sb.write_operator(tmp_path / "ops"), tmp_path / "log"
    slow = sb.write_compiler(
        tmp_path / "slow" / "g++", log, before="sleep 0.95", after="sleep 0.95"
    )
    where: Counter = Counter()

    def lane(number: int) -> None:
        cache = tmp_path / f"cache{number}"
        env = sb.environment(cache, CXX=str(slow))
        for step in range(
            number + LANES * ((number + part(EACH, "kills")) % EACH), KILLS, LANES * EACH
        ):
            where[kill_at(folder, env, step)] += 1
            assert all_whole(cache), f"killed at {step * STEP_SECONDS:.1f} s"
        assert sb.call(folder, sb.environment(cache)) == "6.0"
        assert all_whole(cache)

    with ThreadPoolExecutor(LANES) as pool:
        list(pool.map(lane, range(LANES)))
    assert_all_is_swept(tmp_path.glob("cache*"), monkeypatch)
    assert sum(where.values()) == KILLS // EACH
    assert where["killed"] >= 38 // EACH, where  # a build takes four seconds at least
    with capsys.disabled():
        print(
            f"\n{where['killed']} of {KILLS // EACH} kills fell into the build, {where['done']} came after it"
        )


def kill_at(folder: Path, env: dict[str, str], step: int) -> str:
    """Kill a build at the step, in one of three ways; says whether it was done already."""
    process = sb.python(BUILD, folder, env=env, start_new_session=True)
    process.stdout.readline()
    time.sleep(step * STEP_SECONDS)
    ended = process.poll() is not None
    children = descendants(process.pid) if step % 3 == 2 else []
    if not ended:  # alone; its process group; all that it started too
        os.kill(process.pid, signal.SIGKILL) if step % 3 == 0 else os.killpg(
            process.pid, signal.SIGKILL
        )
    for pid in children:
        end(pid)
    output = process.communicate()[0]
    assert not ended or output == "done\n"
    return "done" if ended else "killed"


def descendants(pid: int) -> list[int]:
    """Children, and theirs."""
    found = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            found += [child, *descendants(child)]
    return found


def all_whole(cache: Path) -> bool:
    """Whether no entry is broken."""
    return not any(check_entry(str(path), read_manifest(str(path))) for path in sb.entries(cache))


# What changes the file system, as Python's audit events name it, and the writes through.
EVENTS = (
    "open",
    "os.mkdir",
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.chmod",
    "shutil.rmtree",
    "fcntl.flock",
)


def test_a_kill_before_every_change_of_the_file_system(tmp_path, monkeypatch):
    """The n-th of them, each time in a new cache, for every n until a build comes through."""
    request = Request("x", "0" * 64, lambda role: None)
    for number in range(1, 100):
        cache = tmp_path / f"cache{number}"
        monkeypatch.setenv("ANYOP_CACHE_DIR", str(cache))
        child = os.fork()
        if child == 0:
            store_until(request, cache, number)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        found = find(request)  # never half of an entry
        assert found is None or Path(found).read_bytes() == b"a library"
        if status == 0:
            break
        assert status == -signal.SIGKILL
        assert Path(store.store(request, make)).read_bytes() == b"a library"
        assert all_whole(cache) and len(sb.entries(cache)) == 1
        assert_all_is_swept([cache], monkeypatch)
    assert found and number > 20


def assert_all_is_swept(caches: Iterable[Path], monkeypatch) -> None:
    """By the next build, after a minute: a younger folder without an owner may be one that is being made."""
    with monkeypatch.context() as patch:
        patch.setattr(store.time, "time", time_of_later)
        for cache in caches:
            store.sweep(str(cache / "building"))
            assert sb.leftovers(cache) == []


def time_of_later() -> float:
    """A minute and a second from now."""
    return time.clock_gettime(time.CLOCK_REALTIME) + 61


def store_until(request: Request, root: Path, number: int) -> None:
    """In a child: build, and be killed before the n-th event below the cache."""
    seen = 0

    def hook(event: str, arguments: tuple) -> None:
        nonlocal seen
        if event in EVENTS and (event == "fcntl.flock" or str(arguments[0]).startswith(str(root))):
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    try:
        store.store(request, make)
        os._exit(0)
    finally:
        os._exit(1)


def make(private: str) -> Manifest:
    """A build that needs no compiler."""
    Path(private, "entry", "libx.so").write_bytes(b"a library")
    return Manifest(name="x", library="libx.so")


@sb.needs_compiler
def test_the_next_build_sweeps_what_a_killed_one_left(cache_folder, tmp_path, monkeypatch):
    log = tmp_path / "log"
    slow = sb.write_compiler(tmp_path / "slow" / "g++", log, before="sleep 30")
    folder = sb.write_operator(tmp_path / "ops")
    process = sb.python(BUILD, folder, env=sb.environment(cache_folder, CXX=str(slow)))
    while not log.exists():
        assert process.poll() is None
        time.sleep(0.02)
    children = descendants(process.pid)
    process.kill()
    process.communicate()
    assert len(sb.leftovers(cache_folder)) == 1
    monkeypatch.delenv("CXX", raising=False)
    anyop.build(folder)
    assert sb.leftovers(cache_folder) == []
    ended = list(map(end, children))
    assert any(ended), "its compilers had ended: it was not in the middle"


def end(pid: int) -> bool:
    """Kill a process; whether it was there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
