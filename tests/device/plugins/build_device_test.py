# SPDX-License-Identifier: Apache-2.0
"""`anyop build-device`, and libraries of several files: two compilers at once, a line that says how far it is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import prepared
import pytest

pytestmark = pytest.mark.anyplatform
COMPILER = """#!/bin/sh
case "$*" in *-c*) ;; *) exec g++ "$@";; esac
echo begin $(date +%s%N) >> {log}
sleep 1.2; g++ "$@"; code=$?
echo end $(date +%s%N) >> {log}; exit $code
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A library over four small files, a compiler that writes down when it runs, and its log."""
    from anyop.native.library import NativeLibrary

    folder, log = tmp_path / "toy", tmp_path / "log"
    folder.mkdir()
    (folder / "number.h").write_text("#define NUMBER 40\n")
    for n in range(3):
        (folder / f"part{n}.cc").write_text(f"int part{n}() {{ return {n}; }}\n")
    (folder / "whole.cc").write_text(
        '#include "number.h"\nint part0(); int part1(); int part2();\n'
        'extern "C" int whole() { return NUMBER + part0() + part1() + part2(); }\n'
    )
    compiler = tmp_path / "slow-g++"
    compiler.write_text(COMPILER.format(log=log))
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("ANYOP_CACHE_DIR", str(tmp_path / "cache"))
    module = SimpleNamespace(__version__="1.0", version=SimpleNamespace(commit="c"))
    flags = ["-shared", "-fPIC", *map(str, sorted(folder.glob("*.cc"))), "-lm"]
    once = NativeLibrary("toy", lambda: module, None, lambda *where: flags, "a toy for torch")
    return once, module, folder, log


def value(path: str) -> int:
    """In a process of its own: a library that is loaded stays."""
    text = f"import ctypes; print(ctypes.CDLL({path!r}).whole())"
    return int(subprocess.run([sys.executable, "-c", text], capture_output=True, check=True).stdout)


def most_at_once(log: Path) -> int:
    events = sorted(
        (int(at), word) for word, at in (line.split() for line in log.read_text().splitlines())
    )
    running = most = 0
    for _, word in events:
        running += 1 if word == "begin" else -1
        most = max(most, running)
    return most


def test_several_files_are_built_once_two_at_a_time(toy, capfd):
    once, module, folder, log = toy
    path = once.find(module, jobs=2)
    assert value(path) == 43 and most_at_once(log) == 2
    lines = [line for line in capfd.readouterr().err.splitlines() if line]
    progress = r"anyop: building a toy for torch 1\.0 (\[[1-3]/3\] \w+\.cc )?\(once; \d+ s\)"
    assert lines and all(re.fullmatch(progress, line) for line in lines), lines
    built = log.read_text()
    assert once.find(module) == path and log.read_text() == built
    (folder / "number.h").write_text("#define NUMBER 50\n")  # only one file includes it
    assert value(once.find(module, jobs=1)) == 53
    log.write_text(log.read_text().removeprefix(built))
    assert most_at_once(log) == 1


def test_a_mistake_in_one_file_is_the_error(toy):
    once, module, folder, _ = toy
    (folder / "part1.cc").write_text("int part1() { return nothing; }\n")
    with pytest.raises(
        RuntimeError, match=r"a toy for torch 1.0 could not be built: .*part1.cc:1.*error"
    ):
        once.find(module, jobs=2)


def command(*words: str, **variables: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "anyop", "build-device", *words],
        env={**os.environ, **variables}, capture_output=True, text=True, timeout=900,
    )  # fmt: skip


def test_the_command(platform):
    pytest.importorskip("torch", reason="torch is not installed")
    done = command()  # the fixture has built it
    assert done.returncode == 0 and "building" not in done.stderr, done.stderr
    assert Path(done.stdout.strip()).is_file()
    assert command("--jobs", "0").stderr == "anyop build-device: --jobs 0, expected 1 or more\n"


def test_without_a_compiler_or_with_a_library_of_nobody(tmp_path):
    pytest.importorskip("torch", reason="torch is not installed")
    done = command(ANYOP_CACHE_DIR=str(tmp_path), ANYOP_TORCH_DEVICE="", PATH="/nowhere", CXX="")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("anyop build-device: there is no C++ compiler"), done.stderr
    done = command(ANYOP_TORCH_DEVICE="0")
    assert (done.returncode, done.stdout) == (1, "") and "ANYOP_TORCH_DEVICE=0" in done.stderr


OLD_TORCH = """
import contextlib, io, os, sys, torch
torch.__version__ = "2.8.1+cpu"
needs = "needs torch 2.9 or newer; this is torch 2.8.1+cpu"
sys.path.insert(0, sys.argv[1])
import anyop_device
anyop_device.autoload()
assert needs in torch.anyop.__doc__ and not torch.anyop.is_available(), torch.anyop.__doc__
try:
    import anyop.torch.device
    raise SystemExit("imported")
except ImportError as error:
    assert needs in str(error), error
from anyop.command import main
with contextlib.redirect_stderr(io.StringIO()) as said:
    assert main(["build-device"]) == 1
assert said.getvalue() == f"anyop build-device: the PyTorch device {needs}\\n", said.getvalue()
assert not os.listdir(os.environ["ANYOP_CACHE_DIR"])
"""


def test_below_the_oldest_torch_every_way_in_names_it(tmp_path):
    pytest.importorskip("torch", reason="torch is not installed")
    entry = Path(__file__).resolve().parents[3] / "python" / "anyop_device"
    variables = {"ANYOP_CACHE_DIR": str(tmp_path), "ANYOP_TORCH_DEVICE": ""}
    done = prepared.run(
        "torch", [sys.executable, "-c", OLD_TORCH, entry], timeout=300,
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", **variables},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.skipif(
    os.environ.get("ANYOP_TEST_FULL") != "1", reason="compiles for a minute: make test-full"
)
def test_from_nothing(tmp_path, report):
    pytest.importorskip("torch", reason="torch is not installed")
    before, begin = os.times(), time.monotonic()
    done = command("--jobs", "2", ANYOP_CACHE_DIR=str(tmp_path), ANYOP_TORCH_DEVICE="")
    seconds, spent = time.monotonic() - begin, os.times()
    processor = sum(spent[2:4]) - sum(before[2:4])
    assert done.returncode == 0 and "(once; " in done.stderr, done.stderr
    report.append(f"build-device: {seconds:.0f} s, {processor:.0f} s of processors, two at a time")
