# SPDX-License-Identifier: Apache-2.0
"""The moved operator: few lines, right values from NumPy, torch, JAX; the tvm-ffi export beside it gives the same."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
MOST_LINES = 12
# A process of its own: a library that is loaded stays.
BUILD = """
import sys
import anyop, numpy as np
from anyop import testing

assert anyop.load(anyop.build(sys.argv[1], name="moved")) == ["moved.bias_gelu"]
bias_gelu = anyop.ops.moved.bias_gelu
(subject,) = testing.find_subjects(sys.argv[1])
x = np.random.default_rng(0).standard_normal((4, 3, 65)).astype(np.float32)
bias = np.linspace(-2, 2, 65, dtype=np.float32)
expected = subject.reference(x.astype(np.float64), bias.astype(np.float64))

def check(found):
    np.testing.assert_allclose(np.asarray(found), expected, rtol=2e-6, atol=2e-6)
"""
STANDARD = """
(choice,) = testing.dtype_choices(subject.metadata)
cases = [testing.check_case(subject, case) for case in testing.standard_cases(subject, choice)]
good = testing.Good(subject)
refusals = [testing.check_refusal(good, refusal) for refusal in testing.refusals(good)]
print(len(cases), sum(case.values for case in cases), len(refusals))
"""
TORCH = """
import anyop.torch, torch

x, bias = torch.from_numpy(x), torch.from_numpy(bias)
check(bias_gelu(x, bias))
check(torch.ops.moved.bias_gelu(x, bias))
check(torch.nn.functional.gelu(x + bias))  # the reference itself
"""
JAX = """
import jax

check(bias_gelu(jax.numpy.asarray(x), jax.numpy.asarray(bias)))
check(jax.jit(bias_gelu)(x, bias))
"""
# The same refusals in both worlds: shape, dtype, layout.
TVM_FFI = """
import torch, tvm_ffi

exported = tvm_ffi.load_module(sys.argv[2]).bias_gelu
x, bias = torch.from_numpy(x), torch.from_numpy(bias)
check(exported(x, bias))
for wrong in ((x, bias[1:]), (x.double(), bias), (x, bias.double()), (x, bias[None]), (x[..., ::2], bias[:33])):
    for function in (exported, bias_gelu):
        try:
            function(*wrong)
        except (ValueError, TypeError):
            continue
        raise AssertionError((function, [part.shape for part in wrong]))
"""


FROM_PYBIND11 = pytest.mark.drawn(5, together="examples/from_pybind11")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Runs a program behind BUILD, with a cache for these tests."""
    environment = os.environ | {"ANYOP_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))}

    def start(program: str, *arguments: str) -> str:
        command = [sys.executable, "-c", BUILD + program, str(HERE / "ops"), *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return start


def test_lines():
    """And the page says the same numbers."""
    program = [sys.executable, str(HERE / "lines.py")]
    said = subprocess.run(program, capture_output=True, text=True, check=True).stdout
    found = {line.split()[0]: int(line.split()[1]) for line in said.splitlines()}
    assert 0 < found["anyop"] <= MOST_LINES
    page = (HERE / "README.md").read_text()
    row = re.search(r"^\| lines of binding \| (\d+) \| (\d+) \| (\d+) \|$", page, re.M)
    assert list(map(int, row.groups())) == [found["pybind11"], found["tvm-ffi"], found["anyop"]]


def test_the_page_shows_the_files():
    page = (HERE / "README.md").read_text()
    blocks = re.findall(r"^`(\S+)`\n```\w+\n(.*?)^```", page, re.S | re.M)
    assert len(blocks) == 2
    for path, block in blocks:
        assert block in (HERE / path).read_text(), path


@FROM_PYBIND11
def test_standard_cases(run):
    cases, values, refusals = map(int, run(STANDARD).split())
    assert cases > 10 and values > 1000 and refusals > 10


@FROM_PYBIND11
def test_from_torch(run):
    pytest.importorskip("torch", reason="torch is not installed")
    run(TORCH)


@FROM_PYBIND11
def test_from_jax(run):
    pytest.importorskip("jax", reason="JAX is not installed")
    run(JAX)


@FROM_PYBIND11
def test_the_export_of_tvm_ffi(run, tmp_path):
    pytest.importorskip("torch", reason="torch is not installed")
    tvm_ffi = pytest.importorskip("tvm_ffi", reason="tvm-ffi is not installed")
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        pytest.skip("there is no g++")
    library = tmp_path / "bias_gelu.so"
    command = [
        compiler,
        "-O2",
        "-std=c++17",
        "-fPIC",
        "-shared",
        f"-I{tvm_ffi.libinfo.find_include_path()}",
    ]
    command += [f"-I{tvm_ffi.libinfo.find_dlpack_include_path()}"]
    command += [str(HERE / "before" / "bias_gelu_tvm_ffi.cc"), "-o", str(library)]
    subprocess.run(command, check=True)
    run(TVM_FFI, str(library))
