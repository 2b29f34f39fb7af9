# SPDX-License-Identifier: Apache-2.0
"""Builds at the same time: one compiles, the others wait for a bounded time and know for whom."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import anyop
import anyop.builder
import pytest
import small_builds as sb
from anyop.cache import store
from anyop.cache.lock import locked, release, try_lock
from anyop.cache.lookup import Request, find
from anyop.cache.manifest import Manifest

cache_folder = sb.cache_folder
BUILD = "import sys, anyop; print(anyop.build(sys.argv[1]))"


def wait_for(what, seconds: float = 20.0):
    """What the function returns, once it is true."""
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)
    return found


@sb.needs_compiler
def test_32_processes_compile_once(cache_folder, tmp_path):
    folder, log = sb.write_operator(tmp_path / "ops"), tmp_path / "log"
    compiler = sb.write_compiler(tmp_path / "bin" / "g++", log)
    env = sb.environment(cache_folder, CXX=str(compiler))
    processes = [sb.python(BUILD, folder, env=env) for _ in range(32)]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0] * 32, outputs
    assert len({output for output, _ in outputs}) == 1
    assert sb.links(log) == 1
    assert len(sb.entries(cache_folder)) == 1 and sb.leftovers(cache_folder) == []


@sb.needs_compiler
def test_a_stopped_holder_is_named_and_waited_for_with_a_bound(cache_folder, tmp_path):
    folder, log = sb.write_operator(tmp_path / "ops"), tmp_path / "log"
    compiler = sb.write_compiler(tmp_path / "bin" / "g++", log, before="sleep 60")
    env = sb.environment(cache_folder, CXX=str(compiler))
    holder = sb.python(BUILD, folder, env=env)
    try:
        wait_for(log.exists)
        holder.send_signal(signal.SIGSTOP)
        start = time.monotonic()
        waiter = sb.python(BUILD, folder, env=env | {"ANYOP_BUILD_TIMEOUT": "4.5"})
        lines = list(waiter.stderr)
        waiter.wait(timeout=30)
        took = time.monotonic() - start
    finally:
        kill_all(holder)
    (lock,) = (cache_folder / "locks").iterdir()
    named = (
        f"process {holder.pid} on host {socket.gethostname()}, which builds ops and holds {lock}"
    )
    assert lines[0] == f"anyop: waiting for {named}; for 4 s at most\n"
    assert re.match(rf"TimeoutError: waited \d+ s for {re.escape(named)}", lines[-1])
    assert "ANYOP_BUILD_TIMEOUT sets the seconds" in lines[-1] and took >= 4.5
    assert sb.call(folder, sb.environment(cache_folder)) == "6.0"  # the lock ended with its holder


def kill_all(process: subprocess.Popen) -> None:
    """The process and all that it started."""
    for pid in [process.pid, *descendants(process.pid)]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.communicate()


def descendants(pid: int) -> list[int]:
    """Children, and theirs."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *descendants(child)]
    return found


@sb.needs_compiler
def test_a_build_that_takes_too_long_ends_with_its_compilers(cache_folder, tmp_path):
    """ninja puts each of them into a process group of its own, and this one hears no signal but the last."""
    pids = tmp_path / "pids"
    compiler = sb.write_compiler(
        tmp_path / "bin" / "g++", before=f"trap '' TERM INT HUP; echo $$ >> '{pids}'; sleep 60"
    )
    folder = sb.write_operator(tmp_path / "ops")
    env = sb.environment(cache_folder, CXX=str(compiler), ANYOP_BUILD_TIMEOUT="1.5")
    process = sb.python(BUILD, folder, env=env)
    errors = process.communicate(timeout=30)[1]
    assert "TimeoutError: building ops took more than 2 s; ANYOP_BUILD_TIMEOUT sets" in errors, (
        errors
    )
    started = [int(pid) for pid in pids.read_text().split()]
    assert started and not any(map(is_running, started))
    assert sb.leftovers(cache_folder) == []


def is_running(pid: int) -> bool:
    """A zombie does not: who reaps it is not our matter."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf"])
def test_a_bound_that_is_no_number_is_refused(text, monkeypatch):
    monkeypatch.setenv("ANYOP_BUILD_TIMEOUT", text)
    with pytest.raises(
        ValueError, match=re.escape(f"ANYOP_BUILD_TIMEOUT is {text!r}, expected seconds")
    ):
        store.timeout_seconds()


@sb.needs_compiler
def test_two_threads_compile_once(cache_folder, tmp_path, monkeypatch):
    folder, log = sb.write_operator(tmp_path / "ops"), tmp_path / "log"
    monkeypatch.setenv("CXX", str(sb.write_compiler(tmp_path / "bin" / "g++", log)))
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(anyop.build(folder))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 8 and len(set(found)) == 1 and sb.links(log) == 1


FORK = """
import os, sys, threading, time
import anyop
def build():
    print("built", os.path.basename(anyop.build(sys.argv[1])), flush=True)
thread = threading.Thread(target=build)
thread.start()
while not os.path.exists(sys.argv[2]):  # the compiler runs
    time.sleep(0.01)
child = os.fork()
if child == 0:  # waits for its parent's build, as any other process
    build()
    os._exit(0)
thread.join()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@sb.needs_compiler
def test_a_fork_in_the_middle_of_a_build(cache_folder, tmp_path):
    folder, log = sb.write_operator(tmp_path / "ops"), tmp_path / "log"
    compiler = sb.write_compiler(tmp_path / "bin" / "g++", log, before="sleep 0.5")
    process = sb.python(FORK, folder, log, env=sb.environment(cache_folder, CXX=str(compiler)))
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (0, "built libops.so\n" * 2), errors
    assert sb.links(log) == 1


def test_a_lock_ends_with_its_holder_though_a_forked_child_lives(tmp_path):
    """As data loaders do: a child of the building process goes on while that is killed."""
    path, reader = str(tmp_path / "x.lock"), os.pipe()
    holder = os.fork()
    if holder == 0:
        try_lock(path)
        if os.fork() == 0:
            os.write(reader[1], b"%d" % os.getpid())
            time.sleep(30)
        time.sleep(30)
        os._exit(0)
    child = int(os.read(reader[0], 20))
    try:
        assert try_lock(path) is None
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)
        handle = try_lock(path)
        assert handle is not None
        release(handle)
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_lock_that_was_removed_meanwhile_is_none(tmp_path):
    """`anyop cache clean` removes lock files that nobody holds; who opened one before takes the new one."""
    path = tmp_path / "x.lock"
    handle = try_lock(str(path))
    threading.Timer(0.3, lambda: (path.unlink(), path.touch(), release(handle))).start()
    with locked(str(path), "x", 10):
        assert try_lock(str(path)) is None  # what the next one sees is held


def test_file_systems_without_locks(cache_folder, monkeypatch):
    """Both build, the first to finish counts for the others; nobody's folder is swept away."""

    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    request = Request("x", "0" * 64, lambda role: None)

    def make(private: str) -> Manifest:
        if not sb.entries(cache_folder):  # another process builds the same meanwhile
            nested = Request("y", "1" * 64, lambda role: None)
            store.store(nested, write_library)
        return write_library(private)

    assert find(request) is None
    library = store.store(request, make)
    assert find(request) == library and len(sb.entries(cache_folder)) == 2


def write_library(private: str) -> Manifest:
    """A build that needs no compiler."""
    Path(private, "entry", "libx.so").write_bytes(b"a library")
    return Manifest(name="x", library="libx.so")
