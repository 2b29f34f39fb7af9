# SPDX-License-Identifier: Apache-2.0
"""A program that is killed or interrupted between two tokens leaves no file, no shared memory and no process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="there is no /proc")


def session(pid: int) -> set[int]:
    """The processes that were started from this one, which leads them."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[3]) == pid and fields[0] != "Z":
            found.add(int(path.parent.name))
    return found


def shared(pid: int) -> set[str]:
    """Files of shared memory that a process has open or mapped."""
    paths = {
        line.split(maxsplit=5)[-1]
        for line in Path(f"/proc/{pid}/maps").read_text().split("\n")
        if line
    }
    paths |= {os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir()}
    return {path for path in paths if path.startswith("/dev/shm/")}


def as_in_a_terminal() -> None:
    """Jobs in a shell's background ignore SIGINT, and so do their children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize(
    "how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda s: s.name
)
def test_nothing_is_left(framework, how, tmp_path):
    for name in (framework, "ml_dtypes", "safetensors", "tokenizers"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    empty = {name: tmp_path / name for name in ("TMPDIR", "cwd")}
    for folder in empty.values():
        folder.mkdir()
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [
        sys.executable,
        "-m",
        "examples.generate",
        "--framework",
        framework,
        "--tokens",
        "400",
    ]
    command += ["--prompt", "Return the"] * 40  # they take seconds
    with subprocess.Popen(
        command, env=env | {"TMPDIR": str(empty["TMPDIR"])}, cwd=empty["cwd"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        preexec_fn=as_in_a_terminal,
    ) as program:  # fmt: skip
        try:
            assert program.stdout.readline()
            memory = shared(program.pid)
            assert session(program.pid) == {program.pid}
            program.send_signal(how)
            err = program.communicate(timeout=60)[1].decode()
        finally:
            program.kill()
    assert "tokens a second" not in err, "it has ended before"
    assert "Traceback" not in err
    if how is signal.SIGINT:
        assert program.returncode == 130
        assert err.splitlines()[-1] == "generate: interrupted"
    else:
        assert program.returncode == -how
    assert [str(path) for folder in empty.values() for path in folder.rglob("*")] == []
    assert not [path for path in memory if Path(path).exists()]
    end = time.monotonic() + 10
    while session(program.pid) and time.monotonic() < end:
        time.sleep(0.01)
    assert not session(program.pid)
