# SPDX-License-Identifier: Apache-2.0
"""`anyop doctor` on this machine, and on ones where something is missing, broken or never answers."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from anyop.cache.manifest import Manifest
from anyop.doctor import can_build, compilers, examine, frameworks
from anyop.doctor.finding import Finding, ask

if not shutil.which("g++"):
    pytest.skip("there is no g++", allow_module_level=True)


def doctor(*words: str, **variables: str) -> tuple[int, str]:
    """Exit code and output; it ends, whatever is wrong."""
    done = subprocess.run(
        [sys.executable, "-m", "anyop", "doctor", *words], env={**os.environ, **variables},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout


@pytest.fixture
def look(monkeypatch):
    """Whether a folder can be built as far as one part knows, and its findings by name, with these variables."""

    def run(part: str, **variables: str) -> tuple[bool, dict[str, Finding]]:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        found = list(importlib.import_module(f"anyop.doctor.{part}").findings())
        return can_build(found), {finding.name: finding for finding in found}

    return run


def program(folder: Path, name: str, text: str) -> str:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)
    return str(folder / name)


def test_this_machine(tmp_path):
    code, text = doctor("--json", ANYOP_CACHE_DIR=str(tmp_path / "cache"))
    report = json.loads(text)
    found = {finding["name"]: finding for finding in report["findings"]}
    assert code == 0 and report["can_build"] and report["executable"] == sys.executable, text
    assert found["C++"]["state"] == found["ninja"]["state"] == "ok"
    assert found["place"]["text"] == f"{tmp_path}/cache, made by the first build"
    import numpy as np

    assert found["numpy"]["text"] == np.__version__
    states = {finding["state"] for finding in found.values()}
    assert states <= {"ok", "note", "missing", "problem"}


def test_as_text():
    code, text = doctor()
    assert code == 0, text
    assert text.endswith("a folder of C++ operators can be built here\n")
    for group in ("compilers", "frameworks", "devices", "cache"):
        assert f"\n{group}\n" in text


def test_without_compiler_as_text(tmp_path):
    """What is missing, where it was looked for, the variable, the command; and the exit code."""
    code, text = doctor(PATH=str(tmp_path), CXX="")
    assert code == 1 and text.endswith("a folder of C++ operators cannot be built here\n")
    line = next(line for line in text.splitlines() if line.startswith("  MISSING  C++"))
    assert "looked for g++, c++, clang++ in PATH; CXX names one" in line
    assert "mend: " in text.split(line)[1].splitlines()[1]


def test_nothing_is_imported_that_takes_long():
    program = "import sys; from anyop.doctor import examine; examine(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "anyop.doctor.devices" in loaded and not loaded & {"torch", "jax", "paddle", "numpy"}


def test_no_ninja(look, tmp_path, monkeypatch):
    able, found = look("compilers", ANYOP_NINJA=str(tmp_path / "none"))
    assert not able and found["ninja"].state == "problem" and found["C++"].state == "ok"
    assert "is no program" in found["ninja"].text and found["ninja"].mend == "unset ANYOP_NINJA"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)  # the package ninja
    able, found = look("compilers", ANYOP_NINJA="", PATH=str(tmp_path))
    assert not able and found["ninja"].state == "missing"
    assert "ANYOP_NINJA" in found["ninja"].text and "-m pip install ninja" in found["ninja"].mend


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("exit 3", "ended with 3"),
        ("echo 'cc1plus: not found' >&2; exit 1", "cc1plus: not found"),
        ('[ "$1" = --version ] && echo 1.0 && exit; exit 1', "ended with 1"),
    ],
)
def test_a_compiler_that_does_not_work(text, says, look, tmp_path):
    able, found = look("compilers", CXX=program(tmp_path / "bin", "g++", text))
    assert not able and found["C++"].state == "problem"
    assert says in found["C++"].text and found["C++"].mend


def test_a_compiler_that_is_not_there(look):
    able, found = look("compilers", CXX="/nowhere/g++")
    assert not able and found["C++"].text == "CXX is '/nowhere/g++', which is no program"


def test_a_program_that_never_ends_goes_with_all_that_it_started(tmp_path):
    """A grandchild keeps the output open: that must not be waited for, and it must not stay."""
    path, note = (
        program(tmp_path / "bin", "slow", "sleep 999 & echo $! > pid; sleep 999"),
        tmp_path / "pid",
    )
    with pytest.raises(RuntimeError, match=r"env did not end within 2 s"):
        ask(["env", "-C", str(tmp_path), path], 2.0)
    for _ in range(250):
        if not command_line(int(note.read_text())):
            break
        time.sleep(0.02)
    else:
        pytest.fail("the grandchild is still there")


def command_line(pid: int) -> bytes:
    """Empty where the process is gone, or ended and not collected yet."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_a_part_that_fails_is_a_finding(monkeypatch):
    """Nothing can be promised then."""

    def fail():
        raise ZeroDivisionError("what nobody thought of")

    monkeypatch.setattr(compilers, "findings", fail)
    found = {finding.name: finding for finding in examine()}
    assert found["compilers"].text == "ZeroDivisionError: what nobody thought of"
    assert not can_build(list(found.values())) and found["place"].state == "ok"


def test_a_device_compiler_is_no_must(look, tmp_path):
    able, found = look("compilers", ANYOP_NVCC=str(tmp_path / "none"))
    assert able and found["cuda"].state == "problem" and "ANYOP_NVCC is" in found["cuda"].text
    assert found["cuda"].mend == "unset ANYOP_NVCC"
    able, found = look("compilers", ANYOP_NVCC=program(tmp_path / "bin", "nvcc", "exit 1"))
    assert able and found["cuda"].state == "problem"


@pytest.mark.parametrize(
    ("cache", "says"),
    [("relative/cache", "expected an absolute path"), ("/dev/null/cache", "/dev/null is a file")],
)
def test_a_cache_that_cannot_be(cache, says, look):
    able, found = look("cache_state", ANYOP_CACHE_DIR=cache)
    assert not able and found["place"].state == "problem"
    assert says in found["place"].text and "ANYOP_CACHE_DIR" in found["place"].mend


def test_a_cache_that_cannot_be_written(look, tmp_path, monkeypatch):
    """Root may write anywhere, so the answer is made up."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    able, found = look("cache_state", ANYOP_CACHE_DIR=str(tmp_path / "a" / "b"))
    assert not able and f"{tmp_path} cannot be written" in found["place"].text


def test_a_cache_that_others_can_write(look, tmp_path):
    tmp_path.chmod(0o777)
    able, found = look("cache_state", ANYOP_CACHE_DIR=str(tmp_path))
    assert not able and found["place"].mend == f"chmod go-w {tmp_path}"


def test_a_disk_that_is_full(look, tmp_path, monkeypatch):
    full = os.statvfs_result((4096, 4096, 1000, 0, 0, 1000, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    able, found = look("cache_state", ANYOP_CACHE_DIR=str(tmp_path))
    assert not able and found["disk"].mend.startswith("anyop cache clean")


def test_what_the_cache_holds(look, tmp_path):
    for at in range(3):
        entry = tmp_path / "cache" / "entries" / f"x{at}-{'0' * 40}" / f"{'0' * 13}-{'0' * 8}"
        entry.mkdir(parents=True)
        (entry / "libx.so").write_bytes(bytes(100_000))
        Manifest(f"x{at}", library="libx.so").write(str(entry))
    for folder in [tmp_path / "cache", *(tmp_path / "cache").rglob("*")]:
        folder.chmod(0o700)
    able, found = look("cache_state", ANYOP_CACHE_DIR=str(tmp_path / "cache"))
    assert able and found["contents"].text == "3 libraries, 0.3 MB" and "damaged" not in found
    (entry / "libx.so").write_bytes(bytes(99_999) + b"x")
    able, found = look("cache_state")
    assert able and found["damaged"].text == "1 are damaged and will be built anew"
    assert found["damaged"].mend == "anyop cache verify"


def test_a_table_of_toolchains_that_is_wrong(tmp_path, monkeypatch):
    (tmp_path / "table.toml").write_text("x = [")
    monkeypatch.setenv("ANYOP_TOOLCHAINS", str(tmp_path / "table.toml"))
    found = {finding.name: finding for finding in examine()}
    assert "table.toml" in found["compilers"].text and not can_build(list(found.values()))


def test_versions_that_are_too_old(look, monkeypatch):
    monkeypatch.setattr(frameworks, "_version", lambda names: "2.8.1" if "torch" in names else None)
    _, found = look("frameworks")
    assert (
        found["torch"].state == "problem"
        and found["torch"].text == "2.8.1, anyop needs 2.9 or newer"
    )
    assert "torch>=2.9" in found["torch"].mend and found["jax"].text == "not installed"


def test_glue(look, tmp_path, monkeypatch):
    monkeypatch.setattr(
        frameworks, "_version", lambda names: "2.13.0+cpu" if "torch" in names else None
    )
    _, found = look("frameworks", ANYOP_CACHE_DIR=str(tmp_path), ANYOP_TORCH_GLUE="")
    assert (
        found["glue for torch"].text.startswith("not built yet") and "glue for paddle" not in found
    )
    entry = tmp_path / "entries" / "torch_glue_2.13.0+cpu-abc" / "1"
    entry.mkdir(parents=True)
    (entry / "torch_glue.so").write_text("")
    _, found = look("frameworks")
    assert found["glue for torch"].text == str(entry / "torch_glue.so")
    _, found = look("frameworks", ANYOP_TORCH_GLUE="0")
    assert found["glue for torch"].mend == "unset ANYOP_TORCH_GLUE"
    _, found = look("frameworks", ANYOP_TORCH_GLUE="/nowhere.so")
    assert found["glue for torch"].state == "problem"


@pytest.mark.parametrize(
    ("driver", "mend"),
    [(None, ""), ("570.86.10", "cupy-cuda12x"), ("580.65.06", "cupy-cuda13x")],
)
def test_cupy_is_proposed_as_the_drivers_wheel(driver, mend, look, tmp_path, monkeypatch):
    """The package cupy itself is a source."""
    monkeypatch.setattr(frameworks, "_version", lambda names: None)
    monkeypatch.setattr(frameworks, "_DRIVER", str(tmp_path / "version"))
    if driver:
        text = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {driver}  Release Build\n"
        (tmp_path / "version").write_text(text)
    _, found = look("frameworks")
    assert found["cupy"].mend == (f"{sys.executable} -m pip install {mend}" if mend else "")


def test_build_device_without_torch_says_what_to_install():
    lines = ["import sys", "sys.modules['torch'] = None", "from anyop.command import main"]
    program = "\n".join([*lines, "sys.exit(main(['build-device']))"])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert (
        "needs torch, which is not installed: " in done.stderr
        and "-m pip install torch" in done.stderr
    )


def test_what_a_bug_report_needs_besides():
    """Processor, system, operators of the build, variables and routes; nothing secret: named variables alone."""
    code, text = doctor("--json", ANYOP_ROUTES="cpu", OMP_NUM_THREADS="3", API_TOKEN="secret")
    report = json.loads(text)
    found = {f["name"]: f["text"] for f in report["findings"] if f["group"] == "settings"}
    assert code == 0 and "secret" not in text
    assert found["ANYOP_ROUTES"] == "cpu" and found["OMP_NUM_THREADS"] == "3"
    assert f"{len(os.sched_getaffinity(0))} CPUs" in found["processor"]
    assert f"Linux {os.uname().release}" in found["system"]
    count = "import anyop; print(len(anyop.list_ops()))"  # this process may have more of them
    operators = subprocess.run([sys.executable, "-c", count], capture_output=True, text=True)
    assert found["operators"].startswith(f"{operators.stdout.strip()}: ")
    assert found["routes"] == "1 rules of preset cpu"
