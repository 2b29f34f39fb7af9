# SPDX-License-Identifier: Apache-2.0
"""The command `anyop` itself: help, versions, wrong words, mistakes in one line; and `anyop list`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import anyop
import pytest
from anyop import command
from anyop.command import list as list_command

FOLDER = Path(__file__).parents[1] / "third_party" / "odd"


def run(*words: str, **more) -> subprocess.CompletedProcess:
    """A process of its own: a library that is loaded stays."""
    arguments = [sys.executable, "-m", "anyop", *words]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=120, **more)


def test_help_shows_every_command(capsys):
    assert command.main(["--help"]) == 0
    shown = capsys.readouterr().out
    files = {f.stem for f in Path(command.__file__).parent.glob("[a-z]*.py")}
    assert {name.replace("-", "_") for name in command.commands()} == files
    assert files >= {"bench", "doctor", "list", "new", "test"}
    for name in command.commands():
        line = next(line for line in shown.splitlines() if line.startswith(f"  {name} "))
        assert len(line.split(name, 1)[1].strip()) > 15, f"{name} has no help: {line}"


@pytest.mark.parametrize("name", command.commands())
def test_every_command_has_help_of_its_own(name, capsys):
    assert command.main([name, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: anyop {name} ")


def test_version(capsys):
    assert command.main(["--version"]) == 0
    assert capsys.readouterr().out == f"anyop {anyop.__version__}\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["tset"], "did you mean 'test'?"),
        (["frobnicate"], "there are aten, bench,"),
        (["--bogus"], "unknown option '--bogus'"),
        (["list", "--bogus"], "unknown option '--bogus' (see anyop list --help)"),
        (["list", "--name", "anyop"], "unknown option '--name'; did you mean '--namespace'?"),
        (["new"], "one of the arguments OP --device --schema is required"),
        (["bench", ".", "--rounds", "none"], "expected a number above 0"),
    ],
)
def test_wrong_usage(words, says, capsys):
    assert command.main(words) == 2
    shown = capsys.readouterr()
    assert says in shown.err and len(shown.err.splitlines()) == 1 and not shown.out


def test_no_command_is_wrong_usage(capsys):
    assert command.main([]) == 2
    assert "usage: anyop COMMAND" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ValueError("the value is wrong"), "anyop list: the value is wrong"),
        (FileNotFoundError(2, "No such file", "x.toml"), "anyop list: No such file: x.toml"),
        (TimeoutError("waited for 10 s"), "anyop list: waited for 10 s"),
        (RuntimeError("broken"), "anyop list: broken"),
        (KeyboardInterrupt(), "anyop list: interrupted"),
    ],
)
def test_mistakes_are_one_message(monkeypatch, capsys, error, says):
    def fail(options):
        raise error

    monkeypatch.setattr(list_command, "run", fail)
    assert command.main(["list"]) == (130 if isinstance(error, KeyboardInterrupt) else 1)
    assert capsys.readouterr().err.strip() == says


@pytest.mark.parametrize("error", [TypeError("a bug"), AssertionError("a bug"), KeyError("x")])
def test_bugs_are_not_hidden(monkeypatch, error):
    def fail(options):
        raise error

    monkeypatch.setattr(list_command, "run", fail)
    with pytest.raises(type(error)):
        command.main(["list"])


def test_list(capsys):
    assert command.main(["list", "--namespace", "anyop"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(anyop.list_ops("anyop"))
    schema = anyop.metadata("rms_norm")["schema"]
    assert [line for line in lines if line.endswith(f"  {schema}") and line.startswith("cpu")]


def test_list_marks_what_cannot_run_here(monkeypatch, capsys):
    monkeypatch.setattr(list_command, "_devices", lambda: {"cpu"})
    monkeypatch.delenv("FLAGGEMS_DIR", raising=False)
    assert command.main(["list", "--namespace", "anyop"]) == 0
    shown = capsys.readouterr()
    (line,) = [line for line in shown.out.splitlines() if "  rms_norm(" in line]
    assert line.startswith("cpu, ") and "(triton), " in line and "(flaggems)" in line
    assert "there is no cuda device: " in shown.err
    monkeypatch.setattr(list_command, "_devices", lambda: {"cpu", "cuda"})
    assert command.main(["list", "--namespace", "anyop"]) == 0
    shown = capsys.readouterr()
    assert "(flaggems_c)" in shown.out and "needs FLAGGEMS_DIR, which is not set" in shown.err


def test_list_as_json(capsys):
    assert command.main(["list", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert set(rows) == set(anyop.list_ops())
    row = rows["rms_norm"]
    assert row["backends"] == anyop.backends("rms_norm") and row["namespace"] == "anyop"
    assert row["schema"] == anyop.schema("rms_norm") and "root mean square" in row["brief"]


def test_list_of_an_unknown_namespace():
    done = run("list", "--namespace", "nobodys")
    assert done.returncode == 1
    assert "no operator of namespace 'nobodys'; there are those of anyop" in done.stderr


def test_list_of_a_folder_is_only_its_operators():
    done = run("list", str(FOLDER), "--json")
    assert done.returncode == 0, done.stderr
    names = [
        "affine", "count_into", "gain", "gain_backward", "scale_all", "stats", "sum_parts", "windows"
    ]  # fmt: skip
    assert [row["name"] for row in json.loads(done.stdout)] == [f"odd.{name}" for name in names]


def test_list_of_nothing_that_is_there(tmp_path):
    done = run("list", str(tmp_path / "none"))
    assert done.returncode == 1 and not done.stdout
    assert done.stderr.startswith("anyop list: no library of operators at ")
    assert len(done.stderr.splitlines()) == 1


def test_a_reader_that_has_enough_is_no_error():
    arguments = [sys.executable, "-m", "anyop", "list", "--json"]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(arguments, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert "Traceback" not in done.stderr and "BrokenPipe" not in done.stderr
