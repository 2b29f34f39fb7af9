# SPDX-License-Identifier: Apache-2.0
"""anyop routes: what it shows is what runs, mistakes have their place, rules without effect are found."""

from __future__ import annotations

import re

import anyop
import numpy as np
import pytest
from anyop import command
from anyop._routes import fitting_preset
from anyop.command._probe import about, ask, calls, compared


@pytest.fixture(autouse=True)
def no_routes():
    yield
    anyop.load_routes(None)


@pytest.fixture
def routes(tmp_path, monkeypatch):
    """Writes a route file into the current folder."""
    monkeypatch.chdir(tmp_path)

    def write(text: str, name: str = "a.routes") -> str:
        (tmp_path / name).write_text(text)
        return name

    return write


def run(capsys, *words: str) -> tuple[int, str, str]:
    code = command.main(["routes", *words])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


# ---- show ----


def test_show_says_rules_where_they_stand_and_what_runs(routes, capsys):
    file = routes("# rules\nrms_norm = aten, cpu\n[when device=cuda]\n*norm* = aten\n")
    code, out, _ = run(capsys, "show", file, "--op", "*norm")
    assert code == 0
    assert re.search(r"rms_norm = aten, cpu +\[always\] +a.routes:2", out)
    assert re.search(r"\*norm\* = aten +\[device=cuda\] +a.routes:4", out)
    assert f"the preset that fits this machine: {fitting_preset()}" in out
    assert re.search(r"layer_norm +cpu +cpu +of cpu, .*aten.* default$", out, re.MULTILINE)
    assert "topk" not in out


def test_show_without_rules_says_priorities(capsys):
    code, out, _ = run(capsys, "show", "--op", "topk")
    assert code == 0 and "no rules: priorities alone" in out and "files: none" in out


def test_show_tells_calls_of_one_operator_apart(routes, capsys):
    file = routes("[when dtype=float64 D>100]\nsilu_and_mul = aten\nrms_norm = aten\n")
    _, out, _ = run(capsys, "show", file, "--op", "rms_norm", "--device", "cpu")
    (line,) = [line for line in out.splitlines() if "a.routes:3  " in line and "float64 at" in line]
    assert "D=101" in line and "D=100" not in line and "float32" not in line


def test_what_is_shown_is_what_runs(routes):
    anyop.load_routes(routes("*norm = aten\n[when dtype=float32 D>=128]\nrms_norm = cpu\n"))
    answers = ask(calls(["rms_norm"], ["cpu"], compared(about("*")["rules"])))
    for D in (127, 128, 129):
        x = np.ones((2, 3, D), np.float32)
        (answer,) = [
            a for call, a in answers.items() if (call.dtype, call.sizes) == ("float32", f"D={D}")
        ]
        explained = anyop.explain("rms_norm", x, x[0, 0])
        assert (answer.chosen, answer.reason) == (explained.chosen, explained.reason)
    assert {a.reason for a in answers.values()} == {"a.routes:1", "a.routes:3"}


def test_every_operator_has_an_answer():
    answers = ask(calls(anyop.list_ops("anyop"), ["cpu"], []))
    assert {call.operator for call in answers} == set(anyop.list_ops("anyop"))
    assert all(answer.chosen for answer in answers.values())


# ---- check ----


def test_check_says_good_files(routes, capsys):
    assert run(capsys, "check", routes("rms_norm = cpu\n")) == (0, "a.routes: 1 rule, good\n", "")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rms_norm = cpv\n", "a.routes:1:12: unknown backend 'cpv'"),
        ("\nrmsnorm = cpu\n", "a.routes:2:1: unknown operator 'rmsnorm'"),
        ("[when Q>3]\nrms_norm = cpu\n", "a.routes:1:7: rms_norm has no size Q"),
    ],
)
def test_check_says_mistakes_with_their_place(text, says, routes, capsys):
    good = routes("topk = cpu\n", "good.routes")
    code, out, _ = run(capsys, "check", routes(text), good)
    assert code == 1 and says in out and "good.routes: 1 rule, good" in out


def test_check_says_all_mistakes(routes, capsys):
    """Those of the text, of included files, and of names, each with its place."""
    routes("relu = cpu cpu\ntopkk = cpu\n", "b.routes")
    text = "rms_norm =\nrelu = cpv\n[wen D>3]\ninclude b.routes\nsofmax = aten\n[when Q>3]\nrelu = cpu\n"
    code, out, _ = run(capsys, "check", routes(text))
    assert code == 1
    found = [line.partition(": ")[0] for line in out.splitlines()]
    assert found == [
        "a.routes:1:11", "a.routes:3:2", "b.routes:1:12", "a.routes:2:8", "b.routes:2:1",
        "a.routes:5:1", "a.routes:6:7",
    ]  # fmt: skip
    assert "did you mean 'softmax'?" in out


def test_check_says_no_more_than_helps(routes, capsys):
    code, out, _ = run(capsys, "check", routes("rms_norm cpu\n" * 1000))
    assert code == 1 and len(out.splitlines()) == 20


def test_check_takes_names_as_files_not_presets(routes, capsys):
    code, out, _ = run(capsys, "check", "cpu")
    assert code == 1 and "cpu:1:1: " in out
    routes("topk = cpu\n", "cpu")
    assert run(capsys, "check", "cpu")[0] == 0


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        (
            "silu = aten\n[when dtype=float16]\ntopk = cpu\n[always]\nsilu = cpu\n",
            1,
            "a.routes:5 says",
        ),
        ("[when D>8]\nrms_norm = aten\n[always]\n*norm = cpu\n", 2, "a.routes:4 says"),
        (
            "[when D>8 dtype=float16]\nrms_norm = aten\n[when dtype=float16]\nrms_norm = cpu\n",
            2,
            ":4 says",
        ),
        ("[when D>8 D<=8]\nrms_norm = aten\n", 2, "no D fits"),
        ("[when D=7 D>=8]\nrms_norm = aten\n", 2, "no D fits"),
        ("[when dtype=float16 dtype=float32|float64]\nrms_norm = aten\n", 2, "no dtype fits"),
    ],
)
def test_check_warns_of_rules_that_never_apply(text, line, why, routes, capsys):
    code, out, _ = run(capsys, "check", routes(text))
    (warning,) = [shown for shown in out.splitlines() if "warning" in shown]
    assert code == 0 and warning.startswith(f"a.routes:{line}: ") and why in warning


@pytest.mark.parametrize(
    "text",
    [
        "*norm = aten\n[when device=cpu]\nrms_norm = cpu\n",  # others of the pattern are left
        "[when D>8]\nrms_norm = aten\n[when D>9]\nrms_norm = cpu\n",
        "rms_norm = aten\n[when D%8=0 D%16=8]\nrms_norm = cpu\n",
        "[when D>=8 D<=8]\nrms_norm = aten\n",
        "[when device=cpu|cuda device=cuda]\nrms_norm = aten\n",
        "[when capability>=9.0]\nrms_norm = aten\n",
        "namespace acme\nacme.scale = cpu\nacme.scale2 = cpu\n",
    ],
)
def test_check_does_not_warn_of_rules_that_may_apply(text, routes, capsys):
    code, out, _ = run(capsys, "check", routes(text))
    assert code == 0 and "warning" not in out


# ---- diff ----


def test_diff_names_what_changes(routes, capsys):
    file = routes("[when dtype=float64]\nrms_norm = aten\n[when rows>64]\ntopk = aten\n")
    code, out, _ = run(capsys, "diff", "default", file, "--device", "cpu")
    lines = [line.split(None, 2) for line in out.splitlines()]
    assert code == 0 and [line[0] for line in lines] == ["rms_norm", "topk"]
    assert lines[0][2] == "cpu -> aten  float64"
    assert lines[1][2].startswith("cpu -> aten  all dtypes at ") and "rows=65" in lines[1][2]
    assert run(capsys, "diff", "default", file, "--op", "topk", "--exit-code")[0] == 1


def test_diff_of_the_same(routes, capsys):
    file = routes("rms_norm = cpu\n")
    code, out, _ = run(capsys, "diff", "default", file, "--op", "*norm*", "--exit-code")
    assert (code, out) == (0, "default and a.routes choose the same\n")


def test_diff_of_presets_for_a_device_that_is_not_here(capsys):
    code, out, _ = run(capsys, "diff", "cpu", "reference", "--device", "cuda", "--op", "rms_norm")
    assert code == 0 and out


# ---- mistakes ----


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ([], 2, "show|check|diff"),
        (["frob"], 2, "frob"),
        (["check"], 2, "FILE"),
        (["show", "no/file"], 1, "no/file:1:1"),
        (["show", "--op", "zz"], 1, "no operator fits 'zz'"),
        (["diff", "default", "nope"], 1, "nope"),
        (["show", "--device", "tpu"], 2, "tpu"),
    ],
)
def test_mistakes_are_said_in_one_line(words, code, says, capsys):
    found, _, err = run(capsys, *words)
    assert found == code and says in err and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("pattern", "fits"),
    [
        ("rm?_*norm", ["rms_norm"]),
        ("anyop.rms_norm", ["rms_norm"]),
        ("anyop::rms_*m", ["rms_norm"]),
        ("rms.norm", []),
        ("[r]ms_norm", []),
        ("aten.rms_norm", []),
    ],
)
def test_the_router_says_what_a_pattern_fits(pattern, fits):
    assert about(pattern)["operators"] == fits


def test_the_router_says_which_numbers_are_compared(routes):
    anyop.load_routes(routes("[when D>8 rows%4=0 capability>=9.0 dtype=float32]\n*norm = cpu\n"))
    assert compared(about("rms_norm")["rules"]) == {("D", 8), ("rows", 0), ("capability", 90)}
    assert about("topk")["rules"] == []
