# SPDX-License-Identifier: Apache-2.0
"""A kernel with choices: who tells it which way to go, and what becomes of a choice that it has not."""

import os
import subprocess
import sys

import anyop
import numpy as np
import pytest
from anyop.tune.arguments import Draw
from anyop.tune.candidates import Candidate, Judge
from anyop.tune.choice import Measured, Rule
from anyop.tune.routes import text
from anyop.tune.stated_kinds import given_shapes

SCHEMA = """\
schema = "ways::way(Tensor x) -> Tensor"
brief = "The choice of the call in each element."
math = "out = choice"
source = "the tests"

[arguments]
x = "any"

[shapes]
x = "*X"
out = "*X"

[dtypes]
x = ["float32"]
out = "x"

[kernels]
cpu = { file = "way.cc", choices = 4 }

[tolerance]
float32 = 0
"""
KERNEL = """\
#include "ways/ops/way.h"

int32_t ways_way_cpu(const WayArgs* args, AnyopCall* call) {
  for (int64_t i = 0; i < args->numel_X; ++i) ((float*)args->out->data)[i] = AnyopChoice(call);
  return kAnyopOk;
}
"""
X = np.zeros(2, np.float32)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ways")
    (folder / "way.toml").write_text(SCHEMA)
    (folder / "way.cc").write_text(KERNEL)
    return anyop.build(folder, out=folder / "libways.so")


@pytest.fixture
def way(library):
    anyop.load(library)
    yield anyop.ops.ways.way
    anyop.load_routes(None)


def load(tmp_path, text):
    path = tmp_path / "a.routes"
    path.write_text(text)
    anyop.load_routes(path)


def test_the_kernel_decides_without_a_rule(way):
    assert way(X).tolist() == [-1, -1]
    assert anyop.explain("ways.way", X).runs == "cpu"
    assert anyop.explain("ways.way", X).choice is None


def test_a_scope_and_a_file_choose(way, tmp_path):
    with anyop.use("cpu:3", ops="ways.way"):
        assert way(X).tolist() == [3, 3]
        assert anyop.explain("ways.way", X).runs == "cpu:3"
    load(tmp_path, "[when numel(x)>1]\nways.way = cpu:2, cpu\n")
    assert way(X).tolist() == [2, 2]
    assert way(X[:1]).tolist() == [-1]


def test_a_variable_chooses(library):
    code = f"import anyop, numpy as np; anyop.load({library!r}); "
    code += "print(anyop.ops.ways.way(np.zeros(1, np.float32)))"
    environment = {**os.environ, "ANYOP_OP_WAYS__WAY": "cpu:1"}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    assert ran.stdout.split() == [b"[1.]"], ran.stderr


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ways.way = cpu:4\n", ":1:12: ways.way: cpu has 4 choices, 0 to 3; found 4"),
        ("rms_norm = cpu:0\n", ":1:12: rms_norm: cpu has no choices; found 0"),
        ("ways.way = cpu:\n", ":1:16: found the end of the line, expected a whole number"),
        ("ways.way = cpu:-1\n", ":1:16: found -1, expected a choice from 0 to 999"),
        ("ways.way = cpu:x\n", ":1:16: found 'x', expected a whole number"),
        ("measured by x\n", 'expected measured on "NVIDIA H200" by "0.1.0"'),
    ],
)
def test_a_file_that_chooses_what_there_is_not(way, tmp_path, text, says):
    with pytest.raises(ValueError) as error:
        load(tmp_path, text)
    assert says in str(error.value)


def test_a_scope_that_chooses_what_there_is_not(way, monkeypatch):
    with anyop.use("cpu:4", ops="ways.way"):
        found = anyop.explain("ways.way", X)
        assert found.fallback and "cpu has 4 choices, 0 to 3; found 4" in found.why_fallback
        assert way(X).tolist() == [-1, -1]
    with pytest.raises(ValueError, match="unknown backend 'cpu:a'"), anyop.use("cpu:a"):
        pass


def test_choices_of_another_version_are_not_used(way, tmp_path, capfd):
    rule = "ways.way = cpu:2\n"
    load(tmp_path, f'measured on "a GPU" by "0.0.1"\n{rule}')
    assert way(X).tolist() == [-1, -1]
    load(tmp_path, f'measured on "a GPU" by "0.0.1"\n{rule}')
    said = capfd.readouterr().err
    assert said.count("measured by anyop 0.0.1") == 1 and "run anyop tune again" in said
    load(tmp_path, f'measured on "a GPU" by "{anyop.__version__}"\n{rule}')
    assert way(X).tolist() == [2, 2]  # the GPU is nothing to the CPU


def test_tune_judges_each_choice(way):
    """The reference is what the kernel decides: here all others are wrong."""
    judge = Judge(Draw(given_shapes("ways.way: X=8 dtype=float32", "cpu")))
    found = {c.name: c.right for c in judge.candidates(["*"])}
    assert found == {"cpu": True, "cpu:0": False, "cpu:1": False, "cpu:2": False, "cpu:3": False}


def test_tune_says_for_which_machine_its_choices_are():
    measured = Measured(given_shapes("rms_norm: rows=8 D=8 dtype=float32", "cpu"), "cpu", [])
    measured.candidates = [
        Candidate("cpu", "cpu", takes=True),
        Candidate("cpu:1", "cpu", takes=True),
    ]
    group = ("rms_norm", "cpu")
    written = text({group: [measured]}, {group: [Rule((), "cpu:1")]}, [])
    assert f'by "{anyop.__version__}"' in written and "rms_norm = cpu:1, cpu" in written
    assert "measured" not in text({group: [measured]}, {group: [Rule((), "cpu")]}, [])
