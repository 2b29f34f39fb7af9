# SPDX-License-Identifier: Apache-2.0
"""FlagGems' real package as the backend flaggems on a CUDA device: standard cases of every operator with a text that it
can compute, and its name as a program's first word.

It needs flag_gems (installed --no-deps: it pins NumPy), sqlalchemy, PyYAML and packaging beside torch and Triton.
ANYOP_TEST_FULL=1: four times the cases.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import anyop
import pytest
from anyop import testing
from anyop.testing.torch_memory import fits_torch, on_device

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy is ml_dtypes'")
if importlib.util.find_spec("flag_gems") is None:
    pytest.skip("flag_gems is not installed", allow_module_level=True)
if not torch.cuda.is_available():
    pytest.skip("there is no CUDA device that torch can use", allow_module_level=True)
from anyop.backend import flaggems  # noqa: E402

SUBJECTS = {s.name: s for s in testing.find_subjects(Path(__file__).parents[3] / "ops")}
FLOATS = {"float32", "float16", "bfloat16"}  # FlagGems' kernels are for these
STEP = 6 if os.environ.get("ANYOP_TEST_FULL") else 24  # one case in so many: each compiles kernels


@cache
def what_is_missing(name: str) -> str:
    """Why FlagGems does not compute an operator; empty where it does."""
    for kernel in SUBJECTS[name].metadata["kernels"]:
        if kernel["form"] == "aten":
            found = flaggems.resolve(name, kernel, flaggems.python_functions)
            return found if isinstance(found, str) else ""
    return "has no text of ATen's"


def routed(function):
    def call(*positional, **named):
        with anyop.use("flaggems"):
            return function(*positional, **named)

    return call


def calls_of(name: str) -> dict[str, int]:
    return {kernel.backend: kernel.calls for kernel in testing.kernel_calls(name)}


def choices_of(subject):
    """One for each dtype of FlagGems' kernels."""
    found = {}
    for choice in testing.dtype_choices(subject.metadata):
        floats = {n for n in choice.names.values() if n and "float" in n}
        if len(floats) == 1 and floats <= FLOATS:
            found.setdefault(floats.pop(), choice)
    return found.values()


def test_the_package_is_there():
    """A package that cannot be imported would skip everything below."""
    assert not what_is_missing("silu")
    there = [name for name in SUBJECTS if not what_is_missing(name)]
    assert len(there) >= 17, {name: what_is_missing(name) for name in SUBJECTS}


@pytest.mark.parametrize("name", SUBJECTS)
def test_standard_cases(name, report):
    why = what_is_missing(name)
    if why:
        pytest.skip(f"{name}: {why}")
    subject = SUBJECTS[name]
    tolerance = {dtype: 2 * value for dtype, value in subject.metadata["tolerance"].items()}
    there = replace(
        subject,
        function=on_device(routed(subject.function), "cuda"),
        metadata={**subject.metadata, "tolerance": tolerance},  # they are FlagGems' kernels
    )
    testing.observe(name)
    before, failures, cases = calls_of(name), [], 0
    for choice in choices_of(subject):
        for case in filter(fits_torch, testing.standard_cases(subject, choice)[::STEP]):
            if case.special:  # what FlagGems makes of infinities and NaN is its own
                continue
            cases += 1
            try:
                testing.check_case(there, case)
            except testing.CheckError as error:
                if "got other bits" not in str(error):  # it does not promise the same ones
                    failures.append(str(error))
    ran = {backend: n - before.get(backend, 0) for backend, n in calls_of(name).items()}
    report.append(f"flaggems {name}: {cases} cases, calls {ran}")
    if not cases:
        pytest.skip(f"{name}: torch has no tensors of any of these cases")
    assert set(filter(ran.get, ran)) == {"flaggems"}
    if failures:
        text = f"{len(failures)} of {cases} cases fail:\n" + "\n".join(failures[:8])
        pytest.fail(text, pytrace=False)


FIRST = """
import torch, anyop
x = torch.randn(64, 33, device="cuda")
with anyop.use("flaggems"):
    found, chosen = anyop.relu(x), anyop.explain("relu", x).chosen
assert chosen == "flaggems", anyop.explain("relu", x)
assert torch.equal(found, x.clamp(min=0))
"""
WAYS = {"use": {}, "variable": {"ANYOP_OP_RELU": "flaggems"}, "file": {"ANYOP_ROUTES": "routes"}}


@pytest.mark.parametrize("way", WAYS)
def test_it_runs_from_the_first_word_on(way, tmp_path):
    """By each way of choosing it, in a process of its own, where a fallback is an error."""
    (tmp_path / "a.routes").write_text("relu = flaggems\n")
    environment = {
        k: str(tmp_path / "a.routes") if v == "routes" else v for k, v in WAYS[way].items()
    }
    code = FIRST if way == "use" else FIRST.replace('with anyop.use("flaggems"):', "if True:")
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, env={**os.environ, "ANYOP_FALLBACK": "error", **environment},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
