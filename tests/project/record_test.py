# SPDX-License-Identifier: Apache-2.0
"""Records of runs: what is noted, that counts are right in every kind of end and process, what a broken one says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import anyop
import numpy as np
import pytest
from anyop.tune import Spec, merged, read_record

X = np.ones((4, 8), np.float32)
CALLS = """
import os, sys
import numpy as np
import anyop
x = np.ones((4, 8), np.float32)
def call(times):
    for _ in range(times):
        anyop.rms_norm(x, x[0])
"""


@pytest.fixture
def record(tmp_path):
    path = tmp_path / "run.jsonl"
    anyop.record(path)
    yield path
    anyop.record(None)


def kinds_of(path: Path) -> list:
    anyop.record(None)
    kinds, notes = read_record(path)
    assert not notes
    return kinds


def run(code: str, path: Path | str, **more) -> subprocess.CompletedProcess:
    environment = {**os.environ, "ANYOP_RECORD": str(path)}
    return subprocess.run(
        [sys.executable, "-c", CALLS + code], capture_output=True, text=True, timeout=60, env=environment
    )  # fmt: skip


def test_a_kind_is_noted_once_with_its_count(record):
    for _ in range(5):
        anyop.rms_norm(X, X[0])
    anyop.rms_norm(X, X[0], eps=0.5)
    anyop.topk(X, 2)
    first, other, topk = kinds_of(record)
    assert (first.operator, first.device, first.count) == ("rms_norm", "cpu", 5)
    assert first.inputs["x"] == Spec("float32", (4, 8), (8, 1)) and first.inputs["eps"] == 1e-6
    assert (other.count, other.inputs["eps"]) == (1, 0.5)
    assert topk.inputs["k"] == 2 and topk.results["indices"] == Spec("int64", (4, 2), (2, 1))
    assert len(record.read_text().splitlines()) == 4


def test_views_absent_tensors_and_places_are_noted(record):
    wide = np.ones((4, 16), np.float32)
    anyop.rms_norm(wide[:, ::-1][:, 8:][:, ::-1], X[0])
    anyop.linear(X, np.ones((3, 8), np.float32))
    anyop.add(X, X[:1], out=X.copy())
    into = X.copy()
    anyop.add(into, X[:1], out=into)
    anyop.rms_norm_backward(X, X, X[0], grad_weight=False)
    view, linear, own, over, backward = kinds_of(record)
    assert view.inputs["x"].strides == (16, 1) and linear.inputs["bias"] is None
    assert own.inputs["y"].shape == (1, 8) and own.results["out"].inplace is None
    assert over.results["out"].inplace == "x"
    assert backward.results["grad_weight"] is None and backward.results["grad_x"]


def test_after_the_end_nothing_is_noted(record):
    anyop.rms_norm(X, X[0])
    anyop.record(None)
    anyop.rms_norm(X, X[0])
    assert [kind.count for kind in kinds_of(record)] == [1]


def test_a_record_is_kept_until_a_call_replaces_it(record):
    anyop.rms_norm(X, X[0])
    anyop.record(record)
    assert [kind.count for kind in kinds_of(record)] == [1]
    anyop.record(record)
    anyop.topk(X, 2)
    assert [kind.operator for kind in kinds_of(record)] == ["topk"]


def test_equal_kinds_of_two_records_are_added(record, tmp_path):
    anyop.rms_norm(X, X[0])
    kinds = kinds_of(record)
    (one,) = merged(kinds + kinds)
    assert one.count == 2


def test_counts_are_written_after_an_exception(tmp_path):
    path = tmp_path / "run.jsonl"
    done = run("call(1000)\nraise SystemError('broken')", path)
    assert done.returncode == 1 and "broken" in done.stderr
    assert [kind.count for kind in kinds_of(path)] == [1000]


def test_a_killed_process_loses_at_most_half(tmp_path):
    path = tmp_path / "run.jsonl"
    assert run("call(1000)\nos._exit(3)", path).returncode == 3
    assert [kind.count for kind in kinds_of(path)] == [512]


def test_a_process_killed_at_once_counts_each_kind_once(tmp_path):
    path = tmp_path / "run.jsonl"
    run("call(3)\nos._exit(3)", path)
    kinds, (note,) = read_record(path)
    assert [kind.count for kind in kinds] == [1] and "killed" in note


FORK = """
call(100)
child = os.fork()
if not child:
    call(7)
    sys.exit()
os.waitpid(child, 0)
call(100)
"""


def test_a_child_does_not_write_into_its_parents_record(tmp_path):
    path = tmp_path / "run.jsonl"
    assert run(FORK, path).returncode == 0
    assert [kind.count for kind in kinds_of(path)] == [200]


def test_each_process_has_its_own_record_by_its_number(tmp_path):
    assert run(FORK, tmp_path / "run.%p.jsonl").returncode == 0
    files = list(tmp_path.iterdir())
    assert sorted(kind.count for file in files for kind in kinds_of(file)) == [7, 200]
    assert all(file.name.split(".")[1].isdecimal() for file in files)


def test_another_process_leaves_the_record_alone(tmp_path):
    path = tmp_path / "run.jsonl"
    code = (
        "call(3)\nimport subprocess\nsubprocess.run([sys.executable, '-c', sys.argv[1]])\ncall(2)"
    )
    environment = {**os.environ, "ANYOP_RECORD": str(path)}
    done = subprocess.run(
        [sys.executable, "-c", CALLS + code, CALLS + "call(9)"],
        capture_output=True, text=True, timeout=60, env=environment,
    )  # fmt: skip
    assert "is being written by another process" in done.stderr and "%p" in done.stderr
    assert [kind.count for kind in kinds_of(path)] == [5]


def test_what_cannot_be_written_is_said_at_once(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in (fifo, tmp_path, tmp_path / "no" / "folder"):
        with pytest.raises(ValueError, match=r"the record .* cannot be written"):
            anyop.record(path)


def test_a_full_disk_stops_no_call(capfd):
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    anyop.record("/dev/full")
    anyop.rms_norm(X, X[0])
    assert "ends here, incomplete: No space left" in capfd.readouterr().err
    anyop.record(None)


def test_threads_are_counted_together(record):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: [anyop.rms_norm(X, X[0]) for _ in range(250)], range(4)))
    assert [kind.count for kind in kinds_of(record)] == [1000]


GOOD = {
    "id": 0,
    "operator": "rms_norm",
    "inputs": {
        "x": {"dtype": "float32", "shape": [4, 8], "strides": [8, 1]},
        "weight": {"dtype": "float32", "shape": [8], "strides": [1]},
        "eps": 1e-6,
        "weight_offset": 0.0,
        "dtype": None,
    },
    "results": {"out": {"dtype": "float32", "shape": [4, 8], "strides": [8, 1]}},
    "device": "cpu",
}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"id":1,"oper', "no line of a record"),
        ("[]", "expected a JSON object"),
        ("{}", "KeyError('inputs')"),
        ('{"counts":7}', "expected numbers of calls"),
        ('{"counts":{"0":-7}}', "expected numbers of calls"),
        (
            json.dumps({**GOOD, "inputs": {"y": 3}}),
            "has the inputs y there, and x, weight, eps, weight_offset, dtype here",
        ),
        (json.dumps(GOOD).replace("[4, 8]", "[4, 9]"), "takes no such shapes"),
        (json.dumps(GOOD).replace("[4, 8]", "[4]"), "with strides"),
        (json.dumps(GOOD).replace("[4, 8]", "[-4, 8]"), "shape"),
        (json.dumps(GOOD).replace("[4, 8]", '"48"'), "no call of an operator"),
        (json.dumps(GOOD).replace("float32", "flaot"), "dtype flaot"),
        (json.dumps(GOOD).replace('"strides"', '"inplace": "eps", "strides"'), "in place of eps"),
        ("\x00\xff", "no line of a record"),
    ],
)
def test_a_broken_record_is_an_error_with_its_line(line, says, tmp_path):
    path = tmp_path / "broken.jsonl"
    path.write_text(json.dumps(GOOD) + "\n" + line + "\n", encoding="latin-1")
    with pytest.raises(ValueError) as found:
        read_record(path)
    assert str(found.value).startswith("broken.jsonl:2: ") and says in str(found.value)


def test_a_record_without_calls_is_an_error(tmp_path):
    path = tmp_path / "empty.jsonl"
    path.touch()
    with pytest.raises(ValueError, match="no calls are recorded"):
        read_record(path)
