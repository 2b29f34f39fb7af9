# SPDX-License-Identifier: Apache-2.0
"""What prepared.run does is what subprocess.run does, but for the time that an import takes."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import prepared
import pytest

pytest.importorskip("torch", reason="torch is not installed")

SAYS = """
import json, os, sys, torch
imported = "torch" in sys.modules
names = sorted(name for name in globals() if name[:2] != "__")
print(json.dumps([__name__, sys.argv, sys.path[:2], os.getcwd(), os.environ["SAID"], imported, names]))
print("error", file=sys.stderr)
"""


@pytest.fixture(params=[partial(prepared.run, "torch"), subprocess.run], ids=["prepared", "own"])
def run(request, monkeypatch):
    monkeypatch.setattr(prepared, "FULL", False)
    return request.param


def test_a_program_finds_what_it_finds_in_a_python_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setattr(prepared, "FULL", False)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    options = {"cwd": tmp_path, "env": {**os.environ, "SAID": "ü \udcff", "PYTHONPATH": path}}
    command = [sys.executable, "-c", SAYS, "a b", "ü"]
    both = [
        start(command, capture_output=True, text=True, timeout=300, **options)
        for start in (partial(prepared.run, "torch"), subprocess.run)
    ]
    assert both[0].stdout == both[1].stdout and both[0].stderr == both[1].stderr == "error\n"


def test_a_file_finds_what_it_finds_in_a_python_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setattr(prepared, "FULL", False)
    (tmp_path / "beside.py").write_text("there = True\n")
    (tmp_path / "says.py").write_text(f"import beside\n{SAYS}print(__file__, __spec__)\n")
    options = {"env": {**os.environ, "SAID": "x"}, "capture_output": True, "text": True}
    command = [sys.executable, tmp_path / "says.py", "a b"]
    both = [start(command, **options) for start in (partial(prepared.run, "torch"), subprocess.run)]
    assert both[0].stdout == both[1].stdout != "" and both[0].stderr == both[1].stderr == "error\n"


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("import sys; sys.exit(3)", 3, ""),
        ("raise ValueError('mine')", 1, "ValueError: mine"),
        ("raise SystemExit('said')", 1, "said"),
        ("import os; os.abort()", -6, ""),
        ("import atexit, os; atexit.register(lambda: os._exit(7))", 7, ""),
        ("import torch; assert torch.ones(3).sum() == 3", 0, ""),
    ],
)
def test_how_it_ends(run, text, code, says):
    found = run([sys.executable, "-c", text], capture_output=True, text=True, timeout=300)
    assert found.returncode == code and found.stderr.rstrip().endswith(says), found.stderr


def test_it_is_ended_when_its_time_is_over(run):
    with pytest.raises(subprocess.TimeoutExpired):
        run([sys.executable, "-c", "while True: pass"], capture_output=True, timeout=0.5)


def test_several_at_once_and_nothing_stays(monkeypatch):
    monkeypatch.setattr(prepared, "FULL", False)
    run = partial(prepared.run, "torch")

    def one(number: int) -> str:
        text = f"import torch; torch.mine = {number}; print(torch.mine)"
        return run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(one, range(3))) == ["0\n", "1\n", "2\n"]
    with pytest.raises(subprocess.CalledProcessError):
        run([sys.executable, "-c", "import torch; torch.mine"], capture_output=True, check=True)


def test_variables_that_python_reads_first_start_one(monkeypatch):
    monkeypatch.setattr(prepared, "FULL", False)
    text = "import sys; print('torch' in sys.modules)"
    for more, imported in (({"ANYOP_X": "1"}, True), ({"PYTHONWARNINGS": "error"}, False)):
        found = prepared.run(
            "torch", [sys.executable, "-c", text],
            env={**os.environ, **more},
        )  # fmt: skip
        assert found.stdout == f"{imported}\n", more


def test_a_framework_that_is_not_there_is_said(monkeypatch, capfd):
    monkeypatch.setattr(prepared, "FULL", False)
    with pytest.raises((AssertionError, OSError)):
        prepared.run(
            "no_such_framework",
            [sys.executable, "-c", ""],
        )
    assert "No module named 'no_such_framework'" in capfd.readouterr().err


def test_what_it_took_is_counted(monkeypatch):
    monkeypatch.setattr(prepared, "FULL", False)
    before = prepared.cpu_seconds()
    text = "import time\nwhile time.process_time() < 0.3: pass"
    prepared.run("torch", [sys.executable, "-c", text], check=True)
    assert prepared.cpu_seconds() - before > 0.1


def test_where_a_copy_hangs_a_python_of_its_own_runs_the_program(monkeypatch, capfd):
    """A copy that has no limit of its own may wait for a lock that a thread held when it was made."""
    monkeypatch.setattr(prepared, "FULL", False)
    monkeypatch.setattr(prepared, "LIMIT_S", 5)
    text = "import sys, time\nprint('here')\nif 'socket' in sys.modules: time.sleep(60)"
    found = prepared.run("json", [sys.executable, "-c", text])
    assert found.stdout == "here\n" and "hung" in capfd.readouterr().err
