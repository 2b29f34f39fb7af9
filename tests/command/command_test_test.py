# SPDX-License-Identifier: Apache-2.0
"""`anyop test` and `anyop bench` on operators that are right, wrong, careless with memory, that crash or never end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyop
import pytest
from anyop import command
from anyop.codegen.schema.fields import camel

# What each kernel does for n elements of x.
KERNELS = {
    "is_right": "out[i] = 2 * x[i];",
    "is_wrong": "out[i] = i == 7 ? 0 : 2 * x[i];",
    "is_spills": "out[i] = 2 * x[i]; if (n == 9) out[n] = 1;",
    "is_changes": "out[i] = 2 * x[i]; if (n == 9) const_cast<float*>(x)[0] = 7;",
    "crashes": "out[i] = 2 * x[i]; if (n == 65) __builtin_trap();",
    "hangs": "out[i] = 2 * x[i]; volatile bool on = n == 65; while (on) {}",
    "is_unknown": "out[i] = 2 * x[i];",  # without a reference
    "is_vague": "out[i] = 2 * x[i];",  # its schema does not say what a list may hold
}
SCHEMA = """\
schema = "odd::{name}(Tensor x) -> Tensor"
[shapes]
x = "*"
out = "*"
[bench]
small = "N=4096"
"""
KERNEL = """\
#include "odd/ops/{name}.h"
extern "C" int32_t odd_{name}_cpu(const {struct}Args* args, AnyopCall*) {{
  auto* x = (const float*)args->x->data;
  auto* out = (float*)args->out->data;
  const int64_t n = args->rows;
  for (int64_t i = 0; i < n; ++i) {{ {body} }}
  return kAnyopOk;
}}
"""
TEST = """\
import numpy as np
import anyop

def reference(x):
    return 2 * x

def test_own():
    assert anyop.ops.odd.{name}(np.ones(1, np.float32)) == {expected}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("odd kernels")
    for name, body in KERNELS.items():
        text = KERNEL.format(name=name, struct=camel(name), body=body)
        schema = SCHEMA.format(name=name)
        if name == "is_vague":
            schema = schema.replace("Tensor x", "Tensor x, int[] sizes")
        (made / f"{name}.toml").write_text(schema)
        (made / f"{name}.cc").write_text(text)
        expected = 3 if name == "is_changes" else 2  # its own test fails too
        if name not in ("is_unknown", "is_vague"):
            (made / f"{name}_test.py").write_text(TEST.format(name=name, expected=expected))
    return made


@pytest.fixture(scope="module")
def library(folder, tmp_path_factory) -> str:
    return anyop.build(folder, out=tmp_path_factory.mktemp("built"))


def arguments(what: str, folder: Path, library: str, *words: str) -> list[str]:
    return [sys.executable, "-m", "anyop", what, str(folder), "--library", library, *words]


def run_test(folder: Path, library: str, *words: str) -> tuple[int, str]:
    words = arguments("test", folder, library, *words)
    done = subprocess.run(words, capture_output=True, text=True, timeout=200)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout


@pytest.fixture(scope="module")
def tested(folder, library) -> str:
    """What `anyop test` prints of all but the two that end it."""
    code, text = run_test(folder, library, "-k", "is_", "--framework", "numpy")
    assert code == 1 and text.endswith("\nfailed\n"), text
    return text


def row(text: str, name: str) -> list[str]:
    return next(line.split() for line in text.splitlines() if line.startswith(f"{name} "))


def numbers(words: list[str]) -> list[int]:
    return [int(word.replace(",", "")) for word in words]


def test_right(tested):
    dtypes, cases, values, guard_bytes, refusals, gradients = numbers(
        row(tested, "odd.is_right")[4:]
    )
    assert (dtypes, gradients) == (1, 0) and "FAILED odd.is_right" not in tested
    assert cases > 50 and values > 100_000 and guard_bytes > 10_000 and refusals > 60


@pytest.mark.parametrize(
    "says",
    [
        r"FAILED odd\.is_wrong \[float32\] \*=\(8,\): out\[7\] is 0\.0, expected .*1 of 8 are off",
        r"FAILED odd\.is_spills \[float32\] .*bytes outside of out were written",
        r"FAILED odd\.is_changes \[float32\] .*x was changed, and the schema does not say so",
        r"FAILED odd\.is_vague: \[test\] must list values of sizes",
        r"FAILED the folder's own tests:\n(.*\n)+.*1 failed, 3 passed",
    ],
)
def test_what_is_wrong_is_said(tested, says):
    assert re.search(says, tested), tested


def test_each_is_counted(tested):
    assert int(row(tested, "odd.is_wrong")[-2]) > 20 and row(tested, "odd.is_wrong")[-1] == "FAILED"
    assert len(re.findall(r"^FAILED odd\.is_wrong ", tested, re.MULTILINE)) == 8
    assert re.search(r"^FAILED odd\.is_wrong: \d+ more from numpy", tested, re.MULTILINE)


def test_without_a_reference_what_is_left_is_said(tested):
    assert "note: odd.is_unknown: no function `reference` in is_unknown_test.py" in tested
    values, guard_bytes, refusals = numbers(row(tested, "odd.is_unknown")[6:9])
    assert values == 0 and guard_bytes > 10_000 and refusals > 60


def test_all_is_well(folder, library):
    code, text = run_test(
        folder, library, "-k", "is_right", "--framework", "jax", "--framework", "paddle"
    )
    assert code == 0 and text.endswith("own tests: 1 passed in " + text.split("passed in ")[1]), (
        text
    )
    for name in ("jax", "paddle"):
        assert re.search(rf"odd\.is_right +cpu +{name} \d|{name} is not installed", text), text
    assert "numpy" not in text.splitlines()[1]


def test_a_crash_is_named(folder, library):
    code, text = run_test(folder, library, "-k", "crashes", "--framework", "numpy")
    says = r"FAILED odd\.crashes \[float32\] \*=\(65,\): the process died of SIG(ILL|TRAP)\nfailed"
    assert code == 1 and re.search(says, text), text


def test_an_endless_kernel_is_named_when_it_is_stopped(folder, library):
    words = arguments("test", folder, library, "-k", "hangs", "--framework", "numpy")
    # A shell's background job ignores SIGINT, and its children inherit that.
    reset = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
    words = [sys.executable, "-c", reset, *words]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    until, child = time.monotonic() + 60, None
    while time.monotonic() < until and not (child and cpu_seconds(child) > 4):  # all else takes one
        time.sleep(0.05)
        found = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        child = found[0] if found else None
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    assert "anyop test: interrupted at odd.hangs [float32] *=(65,)" in process.stderr.read()
    assert child and not Path(f"/proc/{child}").exists()


def cpu_seconds(process: str) -> float:
    try:
        words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return int(words[11]) / os.sysconf("SC_CLK_TCK")  # in its own code


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["-k", "nothing"], "has 'nothing' in its name"),
        (["--library", "/dev/null"], "/dev/null"),
    ],
)
def test_what_cannot_be_tested(folder, library, words, says):
    done = subprocess.run(
        arguments("test", folder, library, *words), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1 and says in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_that_is_not_there(capsys):
    assert command.main(["test", "/nowhere/at/all"]) == 1
    assert capsys.readouterr().err == "anyop test: no folder of operators at /nowhere/at/all\n"


def test_bench(folder, library, tmp_path):
    file = tmp_path / "rows.jsonl"
    words = arguments("bench", folder, library, "--json", str(file), "--rounds", "3")
    done = subprocess.run([*words, "--op", "is_right"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = map(json.loads, file.read_text().splitlines())
    assert (row["operator"], row["case"], row["dtype"]) == ("odd.is_right", "small", "float32")
    assert row["bytes"] == 2 * 4 * 4096 and row["checked"] == "checked"
    assert 0 < row["min_ns"] <= row["median_ns"] and row["copy_min_ns"] > 0
    assert row["bytes_per_s"] == pytest.approx(row["bytes"] / row["min_ns"] * 1e9, rel=0.01)
    assert row["versions"]["anyop"] == anyop.__version__ and row["cpus"] == os.cpu_count()
    assert "/" not in json.dumps(row).replace("GB/s", "")  # no path of this machine
    assert re.search(r"odd\.is_right +small +float32 +cpu .* of a copy +checked", done.stdout)


def test_bench_does_not_time_what_is_wrong(folder, library, tmp_path):
    file = tmp_path / "rows.jsonl"
    words = arguments("bench", folder, library, "--json", str(file), "--op", "odd.is_wrong")
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "it was not timed" in done.stdout
    assert "out[7] is 0.0" in done.stdout and file.read_text() == ""
