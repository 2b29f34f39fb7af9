# SPDX-License-Identifier: Apache-2.0
"""What is said about choices: logs, fallbacks, explanations; deterministic mode; errors of Python callables."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading

import anyop
import numpy as np
import pytest
from anyop import testing
from anyop._load import core
from anyop.testing.dlpack import DlpackArray

X, W = np.ones((2, 8), np.float32), np.ones(8, np.float32)


@pytest.fixture(autouse=True)
def quiet():
    yield
    anyop.log_dispatch(0)
    anyop.load_routes(None)
    anyop.use_deterministic(False)


def test_each_choice_is_said_once_and_every_call_at_level_2(tmp_path, capfd):
    file = tmp_path / "log.jsonl"
    anyop.log_dispatch(1, file)
    for _ in range(3):
        anyop.rms_norm(X, W)
    assert capfd.readouterr().err == "anyop: rms_norm on cpu:0: cpu (default)\n"
    anyop.log_dispatch(2, file)
    for _ in range(3):
        anyop.rms_norm(X, W)
    assert capfd.readouterr().err.splitlines() == ["anyop: rms_norm on cpu:0: cpu (default)"] * 3
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(lines) == 4 and lines[0] == lines[3] == {
        "operator": "rms_norm", "backend": "cpu", "name": "cpu", "device": "cpu:0",
        "reason": "default", "fallback": False,
    }  # fmt: skip
    anyop.log_dispatch(0)
    anyop.rms_norm(X, W)
    assert capfd.readouterr().err == "" and len(file.read_text().splitlines()) == 4


def test_pythons_logging_gets_the_choice(caplog, capfd):
    anyop.log_dispatch(1, stderr=False)
    with caplog.at_level(logging.INFO, logger="anyop.dispatch"):
        anyop.softmax(X)
        anyop.softmax(X)
    assert [record.getMessage() for record in caplog.records] == ["softmax on cpu:0: cpu (default)"]
    assert caplog.records[0].choice["backend"] == "cpu" and capfd.readouterr().err == ""


def test_lines_of_threads_are_whole(tmp_path):
    file = tmp_path / "log.jsonl"
    anyop.log_dispatch(2, file, stderr=False)
    threads = [
        threading.Thread(target=lambda: [anyop.rms_norm(X, W) for _ in range(200)])
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = file.read_text().splitlines()
    assert len(lines) == 1600 and len(set(lines)) == 1


def test_bad_logs_are_refused(tmp_path):
    with pytest.raises(ValueError, match="level is 3, expected 0, 1 or 2"):
        anyop.log_dispatch(3)
    with pytest.raises(ValueError, match=r"the log .*nowhere/log cannot be opened: No such file"):
        anyop.log_dispatch(1, tmp_path / "nowhere" / "log")


def run(program: str, **variables: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, **variables}
    return subprocess.run(
        [sys.executable, "-c", "import anyop, numpy as np\n" + program],
        capture_output=True, text=True, env=environment,
    )  # fmt: skip


CALL = "anyop.rms_norm(np.ones((2, 8), np.float32), np.ones(8, np.float32))\n"


def test_variables_switch_the_log_on(tmp_path):
    file = tmp_path / "log.jsonl"
    found = run(CALL * 2, ANYOP_LOG_DISPATCH="1", ANYOP_LOG_FILE=str(file))
    assert found.returncode == 0
    assert found.stderr == "anyop: rms_norm on cpu:0: cpu (default)\n"
    assert len(file.read_text().splitlines()) == 1
    logged = run(
        "import logging; logging.basicConfig(level=logging.INFO, format='%(name)s %(message)s')\n"
        + CALL,
        ANYOP_LOG_DISPATCH="1",
    )
    assert "anyop.dispatch rms_norm on cpu:0: cpu (default)" in logged.stderr
    assert "ANYOP_LOG_DISPATCH is '7', expected 0, 1, 2" in run(CALL, ANYOP_LOG_DISPATCH="7").stderr
    bad = run(CALL, ANYOP_LOG_FILE=str(tmp_path / "nowhere" / "log"))
    assert bad.returncode == 1 and "ANYOP_LOG_FILE: the log" in bad.stderr


def spy(name: str, **options) -> None:
    settings = {"when": None, "device": 1, "priority": -300, "deterministic": False, **options}
    core.register_python(
        "rms_norm", name, name, "test", *settings.values(), lambda: lambda *arguments: None
    )  # fmt: skip


def test_explanations_read_well():
    spy("spy", when="D>=1000")
    try:
        found = anyop.explain("rms_norm", X, weight=W)
        assert (found.operator, found.device, found.backend) == ("rms_norm", "cpu:0", "cpu")
        assert not found.fallback and found.reason == "default"
        rows = repr(found).splitlines()
        assert rows[0] == "rms_norm on cpu:0: cpu (default)" and rows[1].split() == ["cpu", "runs"]
        assert rows[-1].split(maxsplit=1) == ["spy", "takes D>=1000, and D is 8"]
        with anyop.use("spy"):
            found = anyop.explain("rms_norm", X, W)
        assert found.chosen == "cpu" and found.fallback
        assert "falls back: spy takes D>=1000, and D is 8" in repr(found)
        with pytest.raises(ValueError, match="weight has shape"):
            anyop.explain("rms_norm", X, W[:3])
        with pytest.raises(ValueError, match="no operator is named rmsnorm"):
            anyop.explain("rmsnorm", X, W)
    finally:
        anyop.unregister("rms_norm", "spy")


def test_explaining_runs_and_makes_nothing():
    testing.observe("rms_norm")
    place = np.full((2, 8), 7, np.float32)
    before = testing.kernel_calls("rms_norm")
    anyop.explain("rms_norm", X, W, out=place)
    assert testing.kernel_calls("rms_norm") == before and (place == 7).all()


def test_frameworks_are_explained():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x, w = torch.ones(2, 8, requires_grad=True), torch.ones(8)
    assert anyop.explain("rms_norm", x, w).chosen == "cpu"
    assert anyop.explain("anyop::rms_norm", x, w).operator == "rms_norm"
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    assert anyop.explain("rms_norm", jax.numpy.ones((2, 8)), jax.numpy.ones(8)).chosen == "cpu"


def test_fallbacks_are_said_once_and_may_be_forbidden():
    program = "anyop.load_routes('triton')\n" + "for _ in range(3): " + CALL
    routes = "with anyop.use('cuda'):\n  for _ in range(3): " + CALL
    said = run(routes)
    assert said.returncode == 0 and said.stderr.count("cpu runs instead") == 1, said.stderr
    assert run(routes, ANYOP_FALLBACK="silent").stderr == ""
    refused = run(routes, ANYOP_FALLBACK="error")
    assert refused.returncode == 1
    assert "NotImplementedError: rms_norm: cuda" in refused.stderr
    assert "cpu would run instead, which ANYOP_FALLBACK=error forbids" in refused.stderr
    assert run(program).returncode == 0  # the preset names the CPU for tensors that are there
    assert (
        "ANYOP_FALLBACK is 'yes', expected warn, silent, error"
        in run(CALL, ANYOP_FALLBACK="yes").stderr
    )


def test_deterministic_mode_takes_only_what_declares_it():
    spy("spy_sure", priority=5, deterministic=True)
    spy("spy_other", priority=9)
    try:
        assert anyop.explain("rms_norm", X, W).chosen == "spy_other"
        anyop.use_deterministic()
        assert anyop.is_deterministic()
        found = anyop.explain("rms_norm", X, W)
        assert found.chosen == "spy_sure"
        whys = {c["name"]: c["why_not"] for c in found.candidates}
        assert whys["spy_other"] == "does not declare determinism (anyop.use_deterministic)"
        with anyop.use("spy_other"):  # not even when it is asked for
            assert anyop.explain("rms_norm", X, W).chosen != "spy_other"
    finally:
        anyop.unregister("rms_norm", "spy_sure")
        anyop.unregister("rms_norm", "spy_other")


def test_a_function_that_keeps_its_tensors_is_refused():
    kept = []
    core.register_python(
        "relu", "keeper", "keeper", "test", None, 1, -300, False,
        lambda: lambda values, *where: kept.extend(values),
    )  # fmt: skip
    try:
        with (
            anyop.use("keeper"),
            pytest.raises(ValueError, match="relu: keeper keeps x, whose memory"),
        ):
            anyop.relu(X)
    finally:
        kept.clear()
        anyop.unregister("relu", "keeper")


@pytest.mark.parametrize(
    "error", [ValueError, TypeError, NotImplementedError, MemoryError, OSError]
)
def test_errors_of_functions_keep_their_kind(error):
    def run_it(values, *where):
        raise error("what it says")

    core.register_python("relu", "bad", "bad", "test", None, 1, -300, False, lambda: run_it)
    try:
        with anyop.use("bad"), pytest.raises(error, match="what it says") as caught:
            anyop.relu(X)
        if sys.version_info >= (3, 11):
            assert caught.value.__notes__ == ["relu: raised by its kernel bad"]
    finally:
        anyop.unregister("relu", "bad")


@pytest.mark.parametrize(("device", "chosen"), [(2, "aten"), (10, "aten"), (14, None)])
def test_torchs_kernels_are_for_the_devices_that_torch_has(device, chosen):
    pytest.importorskip("torch", reason="the backend aten is torch's kernels")
    x, place = (
        DlpackArray(np.ones(4, np.float32), device=(device, 0), dtype=(2, 32, 1)) for _ in "xy"
    )
    found = anyop.explain("relu", x, out=place)
    assert found.chosen == chosen
    assert [row["name"] for row in found.candidates if not row["why_not"]] == [chosen] * (
        chosen is not None
    )
