# SPDX-License-Identifier: Apache-2.0
"""Rules about ATen's overloads: from files, variables and code, in the log, at a fallback and in `anyop routes`."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import anyop
import pytest
from anyop._load import core

pytestmark = pytest.mark.cpu
LIBRARY = str(Path(anyop._anyop.__file__).parent / "lib" / "libanyop.so")
# What programs below begin with: as the device's library asks, by the C ABI.
BEGIN = f"""
import anyop, ctypes
from anyop._load import core
library = ctypes.CDLL({LIBRARY!r})
library.AnyopLastError.restype = ctypes.c_char_p
def fallback(name, backend="cpu_fallback", why="boxed has no kernel"):
    status = library.AnyopAtenFallback(*[t.encode() for t in (name, backend, "anyop:0", why)])
    return library.AnyopLastError().decode() if status else "may run"
"""


@pytest.fixture
def load(tmp_path):
    """Loads a text as a route file; afterwards there are no rules."""

    def load(text: str) -> None:
        (tmp_path / "a.routes").write_text(text)
        anyop.load_routes(tmp_path / "a.routes")

    yield load
    anyop.load_routes(None)


def run(program: str, **variables: str) -> tuple[str, str]:
    """What a program says on stdout and stderr."""
    environment = {**os.environ, **variables}
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + program], env=environment, capture_output=True, text=True, timeout=200
    )  # fmt: skip
    return done.stdout, done.stderr


def refused(program: str, **variables: str) -> str:
    """The last line of the error with which a program ends."""
    return run(program, **variables)[1].strip().splitlines()[-1]


# ---- files and code ----


def test_files_hold_rules_of_both_kinds(load):
    load("* = cpu\naten.* = aten\n[when device=cuda]\naten.add = native, aten\nrms_norm = aten\n")
    assert core.aten_route("add.Tensor", "anyop")[::2] == ("aten", _reason("a.routes:2"))
    assert core.aten_route("add.Tensor", "cuda")[::2] == ("native,aten", _reason("a.routes:4"))
    state = json.loads(core.routes())
    assert [r["pattern"] for r in state["rules"]] == ["*", "rms_norm"]
    assert [r["pattern"] for r in state["aten_rules"]] == ["aten.*", "aten.add"]
    with pytest.raises(ValueError, match=r"a.routes:2:11: unknown backend 'boxd' of ATen's"):
        load("* = aten\naten.mm = boxd\n")
    assert json.loads(core.routes()) == state  # all or nothing
    anyop.load_routes(None)
    assert core.aten_route("add.Tensor", "cuda") == ("", "", "default")


class _reason(str):  # noqa: N801
    """A path that ends so."""

    def __eq__(self, other: object) -> bool:
        return str(other).endswith(str(self))

    __hash__ = str.__hash__


def test_scopes_do_not_reach_aten():
    said = "'aten.mm' is ATen's, which anyop.use does not reach: route it by a rule in a route file"
    for patterns in ("aten.mm", ["rms_norm", "aten.mm"]):
        with pytest.raises(ValueError, match=re.escape(said)):
            anyop.use("native", ops=patterns)


def test_names_are_checked_when_they_are_told(tmp_path):
    (tmp_path / "a.routes").write_text("aten.mm = aten\naten.ad.Tensor = native\n")
    program = f"""
anyop.load_routes({str(tmp_path / "a.routes")!r})
for names in (["mm", "add.Tensor"], ["mm", "ad.Tensor"]):
    try:
        print(core.set_aten_overloads(names))
    except ValueError as error:
        print(error)
"""
    first, second = run(program)[0].splitlines()
    assert first.endswith(
        "a.routes:2:1: no overload of ATen's that can be routed is named 'aten.ad.Tensor'; "
        "did you mean 'aten.add.Tensor'?"
    )
    assert second == "None"


def test_backends_of_a_program_can_be_routed_to(tmp_path):
    (tmp_path / "a.routes").write_text("aten.mm = mine, aten\n")
    out, _ = run(f"""
try:
    anyop.load_routes({str(tmp_path / "a.routes")!r})
except ValueError as error:
    print(error)
core.add_aten_backend("mine")
anyop.load_routes({str(tmp_path / "a.routes")!r})
print(core.aten_route("mm.out", "anyop")[0])
""")
    assert "1:11: unknown backend 'mine' of ATen's overloads" in out and out.endswith(
        "\nmine,aten\n"
    )


def test_routes_of_all_overloads_are_found_at_once(tmp_path):
    """4,000 overloads against 100 rules, as at registration and at a reload."""
    rules = "".join(f"aten.op_{i}* = native\n" for i in range(100))
    (tmp_path / "a.routes").write_text(rules)
    program = """
found = [core.aten_route(f"some_name_{i}.Tensor", "anyop")[0] for i in range(4000)]
print(len(found), set(found), core.aten_route("op_7.out", "anyop")[0])
"""
    out, err = run(program, ANYOP_ROUTES=str(tmp_path / "a.routes"))
    assert out == "4000 {''} native\n" and err == ""


# ---- variables ----


def test_variables_route_and_come_before_files(tmp_path):
    (tmp_path / "a.routes").write_text("aten.* = aten\n")
    program = """
for name in ("mm", "mm.out", "add.Tensor", "add.Scalar"):
    print(*core.aten_route(name, "anyop")[::2])
"""
    out, err = run(program, ANYOP_ROUTES=str(tmp_path / "a.routes"), ANYOP_OP_ATEN__MM="native,none",
                   ANYOP_OP_aten__add__Tensor="triton")  # fmt: skip
    assert [line.split()[0] for line in out.splitlines()] == ["native,none"] * 2 + [
        "triton",
        "aten",
    ]
    assert "ANYOP_OP_aten__add__Tensor" in out and err == ""


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("ANYOP_OP_ATEN__MM", "nativ", "unknown backend 'nativ' of ATen's overloads"),
        ("ANYOP_OP_ATEN__MM", "none,aten", "ANYOP_OP_ATEN__MM: found 'aten' behind none"),
        ("ANYOP_OP_ATEN__MM", "", "ANYOP_OP_ATEN__MM is empty, expected a backend"),
        ("ANYOP_DISABLE", "nativ", "ANYOP_DISABLE: unknown backend 'nativ'"),
        ("ANYOP_ROUTES", "/dev/null/x", "ANYOP_ROUTES: /dev/null/x:1:1: found an error"),
    ],
)
def test_variables_that_mean_nothing_are_errors(variable, value, said):
    assert said in refused("", **{variable: value})


def test_a_variable_without_an_overload_is_an_error_once_names_are_told():
    told = 'core.set_aten_overloads(["mm", "add_.Tensor"])'
    assert run(f"{told}\nprint('good')", ANYOP_OP_ATEN__ADD___TENSOR="aten")[0] == "good\n"
    said = refused(told, ANYOP_OP_ATEN__ADD__TENSOR="aten")
    assert said.endswith(
        "ANYOP_OP_ATEN__ADD__TENSOR names no overload of ATen's that can be routed; "
        "did you mean 'ANYOP_OP_ATEN__ADD___TENSOR'?"
    )


def test_disable_is_about_the_kind_of_backend_that_it_names():
    program = """
import numpy as np
print(*[library.AnyopAtenIsDisabled(b) for b in (b"native", b"aten", b"boxed", b"triton")])
anyop.softmax(np.ones((2, 4), np.float32))
"""
    for disabled, said in {
        "!native": "0 1 1 1\n",
        "!cpu": "0 0 0 0\n",
        "boxed,triton": "0 1 1 1\n",
        "aten,triton": "0 0 0 1\n",  # of operators
        "!triton,!boxed,!cpu": "1 0 0 0\n",
    }.items():
        found = run(program, ANYOP_DISABLE=disabled, ANYOP_LOG_DISPATCH="1")
        assert found == (said, "anyop: softmax on cpu:0: cpu (default)\n")
    assert "NotImplementedError" in refused(program, ANYOP_DISABLE="!triton")


# ---- what is said ----

SAY = """
def say(name, backend="native", reason="default", fallback=0):
    texts = [t.encode() for t in (name, backend, "anyop:0", reason)]
    assert library.AnyopLogAtenDispatch(*texts, fallback) == 0
for _ in range(3):
    say("mm")
say("mm", "cpu_fallback", fallback=1)
"""


def test_choices_are_in_the_log_of_all_choices(tmp_path):
    file = tmp_path / "log.jsonl"
    _, err = run(SAY, ANYOP_LOG_FILE=str(file))
    lines = [
        "anyop: aten.mm on anyop:0: native (default)",
        "anyop: aten.mm on anyop:0: cpu_fallback (default, fallback)",
    ]
    assert err.splitlines() == lines
    said = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(said) == 2 and said[0] == {
        "operator": "aten.mm", "backend": "native", "name": "native", "device": "anyop:0",
        "reason": "default", "fallback": False,
    }  # fmt: skip
    assert run(SAY, ANYOP_LOG_DISPATCH="2")[1].splitlines() == [lines[0]] * 3 + [lines[1]]
    assert run(SAY)[1] == ""


def test_whether_somebody_listens_is_one_number():
    out, _ = run("""
library.AnyopDispatchLogLevel.restype = ctypes.POINTER(ctypes.c_int32)
level = library.AnyopDispatchLogLevel()
print(level[0])
anyop.log_dispatch(2)
print(level[0])
anyop.log_dispatch(0)
print(level[0])
""")
    assert out.split() == ["0", "2", "0"]


def test_a_fallback_is_said_once_or_forbidden():
    program = "print(fallback('mm'), fallback('mm'), fallback('add.Tensor'), sep='; ')"
    text = "aten.{} on anyop:0: boxed has no kernel; cpu_fallback {}"
    out, err = run(program)
    assert out == "may run; may run; may run\n"
    assert err.splitlines() == [
        "anyop: " + text.format(name, "runs instead") for name in ("mm", "add.Tensor")
    ]
    assert run(program, ANYOP_FALLBACK="silent") == (out, "")
    out, err = run(program, ANYOP_FALLBACK="error")
    forbidden = "would run instead, which ANYOP_FALLBACK=error forbids"
    assert out.strip().split("; ", 1)[0] == "aten.mm on anyop:0: boxed has no kernel"
    assert out.count(forbidden) == 3 and text.format("add.Tensor", forbidden) in out and err == ""


def test_a_fork_while_routes_change_does_not_hang():
    out, _ = run("""
import os, threading, warnings
warnings.simplefilter("ignore")
# Who is told asks the router, as the device's library does.
backend = ctypes.create_string_buffer(b"native")
asks = ctypes.cast(library.AnyopAtenIsDisabled, ctypes.c_void_p)
assert library.AnyopWatchAtenRoutes(asks, backend) == 0
load = anyop.load_routes  # imported before: a fork within an import is Python's own trouble
ended = threading.Event()
def reload():
    while not ended.is_set():
        load("native")
thread = threading.Thread(target=reload)
thread.start()
codes = set()
for _ in range(30):
    child = os.fork()
    if child == 0:
        load("flaggems")
        os._exit(core.aten_route("mm", "anyop")[0] != "triton,flaggems,aten,cpu_fallback")
    codes.add(os.waitpid(child, 0)[1])
ended.set()
thread.join()
print(codes)
""")
    assert out == "{0}\n"


# ---- the command ----


@pytest.fixture
def routes(tmp_path):
    """Runs `anyop routes` in a folder with a.routes of this text: its exit code and all that it says."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")

    def routes(text: str, *words: str) -> tuple[int, str]:
        (tmp_path / "a.routes").write_text(text)
        command = [sys.executable, "-m", "anyop", "routes", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
        return done.returncode, done.stdout + done.stderr

    return routes


TEXT = "aten.add = native, aten\n[when device=cuda]\naten.mm = triton\naten.add.Tensor = aten\n"


def test_the_command_shows_rules_and_who_is_asked(routes):
    code, said = routes(TEXT, "show", "a.routes", "--op", "aten.add")
    assert code == 0 and "softmax" not in said and "aten.mm" not in said
    assert re.search(r"aten.add = native, aten +\[always\] +a.routes:1", said)
    assert re.search(r"\n  aten.add.Tensor +anyop, cpu +native, aten +a.routes:1\n", said)
    assert re.search(r"\n  aten.add.Tensor +cuda +aten +a.routes:4\n", said)
    code, said = routes(TEXT, "show", "a.routes", "--op", "aten.nothing")
    assert code == 1 and "no overload of ATen's fits 'aten.nothing'" in said


def test_the_command_checks_names_and_finds_rules_without_effect(routes):
    code, said = routes(TEXT + "[always]\naten.mm = aten\nrms_norm = cpu\n", "check", "a.routes")
    assert (code, said.splitlines()) == (
        0,
        [
            "a.routes:3: warning: aten.mm never applies: a.routes:6 says the same later",
            "a.routes: 5 rules, good",
        ],
    )
    code, said = routes("aten.mm = aten\naten.foreach_add = aten\n", "check", "a.routes")
    assert code == 1 and said == (
        "a.routes:2:1: no overload of ATen's that can be routed is named 'aten.foreach_add'; "
        "did you mean 'aten._foreach_add'?\n"
    )


def test_the_command_compares(routes):
    code, said = routes(TEXT, "diff", "default", "./a.routes", "--op", "aten.*", "--exit-code")
    assert code == 1
    assert re.search(r"\n +aten.mm +cuda +default -> triton\n", said)
    assert re.search(r"aten.add.Tensor +cuda +default -> aten\n", said)
    code, said = routes(TEXT, "diff", "./a.routes", "a.routes", "--op", "aten.*", "--exit-code")
    assert code == 0 and said == "./a.routes and a.routes choose the same\n"
