# SPDX-License-Identifier: Apache-2.0
"""--device opencl, from NumPy and from torch's device, gives the CPU's answers by the device's own kernels: on PoCL.

ANYOP_TEST_OPENCL names another platform.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest

from . import InputError, cache
from .command_test import TEXTS, hits, refusal, search
from .folder import packaged_model
from .on_device import DeviceArray

OPERATORS = {
    *("embedding", "add", "layer_norm", "linear", "attention", "gelu"),
    *("masked_mean", "l2_normalize", "topk"),
}
PLATFORM = os.environ.get("ANYOP_TEST_OPENCL", "Portable Computing Language")
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
POCL = {
    "ANYOP_OPENCL_DEVICE": PLATFORM,
    # The indexes have a home of their own; what is built once is kept where it always is.
    "ANYOP_CACHE_DIR": os.environ.get("ANYOP_CACHE_DIR", str(CACHE / "anyop")),
    "POCL_CACHE_DIR": os.environ.get("POCL_CACHE_DIR", str(CACHE / "pocl" / "kcache")),
}
needs_pocl = pytest.mark.skipif(
    PLATFORM.startswith("Portable") and not Path("/etc/OpenCL/vendors/pocl.icd").exists(),
    reason="PoCL is not installed (Debian: pocl-opencl-icd)",
)


@pytest.fixture
def home(tmp_path) -> Path:
    """A corpus, and the real model."""
    try:
        (tmp_path / "model").symlink_to(packaged_model().path)
    except InputError as error:
        pytest.skip(str(error))
    (tmp_path / "corpus").mkdir()
    for name, text in TEXTS.items():
        (tmp_path / "corpus" / name).write_text(text)
    return tmp_path


def answers(home: Path, monkeypatch, *words: str, **environment: str):
    """The hits, the index's vectors, the backend of each operator, and the log of what ran."""
    strict = {"ANYOP_FALLBACK": "error", "ANYOP_LOG_DISPATCH": "1"} | environment
    indexes = home / "cache" / "anyop" / "sentence_search"
    before = {*indexes.rglob("*")}
    found = search(home, "--query", "find the time", *words, env=strict, timeout=300)
    rows = hits(found)
    (kept,) = {*indexes.iterdir()} - before
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    ran = dict(re.findall(r"^(\w+) +(\w+) +[\d,]+ +[\d,.]+ +[\d.]+%$", found.stdout, re.M))
    return rows, cache.load(kept.name).vectors, ran, found.stderr


@needs_pocl
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_answers_and_vectors_are_the_cpus(home, monkeypatch, framework):
    pytest.importorskip(framework, reason=f"{framework} is not installed")
    rows, vectors, ran, _ = answers(home, monkeypatch)
    assert set(ran.values()) == {"cpu"}
    words = ("--framework", framework, "--device", "opencl")
    found, others, ran, log = answers(home, monkeypatch, *words, **POCL)
    assert [row[2] for row in found] == [row[2] for row in rows] and len(rows) == 3
    scores = [[row[1] for row in each] for each in (found, rows)]
    assert np.abs(np.subtract(*scores)).max() < 1.1e-3  # printed with three digits
    assert np.abs(others - vectors).max() <= 1e-5
    assert ran == dict.fromkeys(OPERATORS, "opencl")
    assert set(re.findall(r"(\w+) on anyop:0: opencl", log)) == OPERATORS
    assert not re.search(r"on anyop:0: (?!opencl)", log)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--device", "nowhere"], "there is no device 'nowhere'"),
        (["--device", "opencl", "--framework", "jax"], "--device needs --framework numpy or torch"),
        (["--device", "opencl", "--framework", "torch", "--compile"], "and no --compile"),
    ],
)
def test_what_is_no_device_is_one_clear_line(home, words, message):
    assert message in refusal(search(home, *words))


@needs_pocl
def test_a_platform_that_is_not_there_is_one_clear_line(home):
    nvidia = {"ANYOP_OPENCL_DEVICE": "no such vendor"}
    assert "no such platform" in refusal(search(home, "--device", "opencl", env=nvidia))


def test_elements_of_a_device_are_never_copied_by_numpy():
    """Their addresses hold nothing that the CPU could read."""

    class Memory:
        device = type("Device", (), {"table": type("Table", (), {"device_type": 12})})

    array = DeviceArray(np.zeros((2, 3, 4)), Memory())
    assert len(array[:1]) == 1 and len(array.reshape(6, 4)) == 6
    with pytest.raises(ValueError, match="would have to be copied"):
        array.transpose(2, 1, 0).reshape(24)
