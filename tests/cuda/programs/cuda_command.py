# SPDX-License-Identifier: Apache-2.0
"""`anyop new --cuda`, `anyop test`, `anyop bench` and `anyop doctor` on a machine with a CUDA device."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from anyop import command

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.cuda.is_available():
    pytest.skip("there is no CUDA device that torch can use", allow_module_level=True)


def run(*words: str) -> subprocess.CompletedProcess:
    arguments = [sys.executable, "-m", "anyop", *words]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("new")
    assert command.main(["new", "halve", "--cuda", "--backward", "--dir", str(made)]) == 0
    return made / "halve"


def test_it_passes_unedited(folder):
    done = run("test", str(folder), "--framework", "numpy", "--framework", "torch")
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("my.halve", "my.halve_backward"):
        (row,) = re.findall(rf"^{name} +cuda +torch \S+ +(.*)$", done.stdout, re.MULTILINE)
        dtypes, cases, values, guard_bytes, _, gradients = (
            int(word.replace(",", "")) for word in row.split()
        )
        assert dtypes == 2 and cases > 80 and values > 100_000 and guard_bytes > 10_000
        assert gradients == (1 if name == "my.halve" else 0)


def test_a_wrong_kernel_is_found(folder, tmp_path):
    """The CPU's is right; the device's leaves out the last element."""
    wrong = tmp_path / "wrong"
    wrong.mkdir()
    for file in folder.iterdir():
        if file.is_file():
            text = file.read_text().replace("if (i < count) out", "if (i < count - 1) out")
            (wrong / file.name).write_text(text)
    done = run("test", str(wrong), "-k", "halve", "--framework", "numpy", "--framework", "torch")
    assert done.returncode == 1 and "FAILED my.halve [float32]" in done.stdout, done.stdout
    assert not re.search(r"^my.halve +cpu .* FAILED", done.stdout, re.MULTILINE)
    assert re.search(r"^my.halve +cuda .* FAILED", done.stdout, re.MULTILINE)
    done = run("bench", str(wrong), "--op", "halve", "--rounds", "2")
    assert done.returncode == 1 and "it was not timed" in done.stdout


def test_bench(folder, tmp_path):
    file = tmp_path / "rows.jsonl"
    done = run("bench", str(folder), "--json", str(file), "--rounds", "5")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {
        (row["operator"], row["case"], row["backend"]): row
        for row in map(json.loads, file.read_text().splitlines())
    }
    assert len(rows) == 8
    large = rows["my.halve", "large", "cuda"]
    assert large["checked"] == "checked" and large["gpu"] == torch.cuda.get_device_name()
    # Faster than this CPU could, slower than any memory is: the clock is the device's.
    assert 50e9 < large["bytes_per_s"] < 100e12 and 0.2 < large["share_of_copy"] < 5


def test_doctor():
    done = run("doctor", "--json")
    found = {finding["name"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert (
        found["cuda:0"]["state"] == "ok" and torch.cuda.get_device_name() in found["cuda:0"]["text"]
    )
    major, minor = torch.cuda.get_device_capability()
    assert f"compute capability {major}.{minor}" in found["cuda:0"]["text"]
    assert "cuda:" + str(torch.cuda.device_count() - 1) in found
