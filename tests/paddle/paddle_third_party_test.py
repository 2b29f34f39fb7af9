# SPDX-License-Identifier: Apache-2.0
"""A folder of operators from outside, built and tested where there is Paddle and no torch, and under its proxy."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("paddle", reason="PaddlePaddle is not installed")
pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy is an ml_dtypes array")

import anyop

FOLDER = Path(__file__).parents[1] / "third_party"
pytestmark = pytest.mark.drawn(2, together="odd operators in Paddle")
# Runs in every Python of a build: torch cannot be imported, or is Paddle.
NO_TORCH = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
sys.meta_path.insert(0, Block())
"""
PROXY = """
import paddle
paddle.compat.enable_torch_proxy(silent=True)
"""
# The standard tests by Paddle's tensors, and one operator as a user of the proxy would call it.
PROGRAM = """
import json, sys, warnings
warnings.filterwarnings("ignore")
import paddle, anyop
from anyop import testing
from anyop.testing.paddle_cases import through_paddle
names = anyop.load(sys.argv[1])
import anyop.paddle
values, cases = {}, 0
for subject in map(through_paddle, testing.find_subjects(sys.argv[2])):
    values[subject.name] = 0
    for choice in testing.dtype_choices(subject.metadata):
        if "uint16" in choice.names.values():
            continue
        for case in testing.standard_cases(subject, choice)[::3]:
            if not {"back", "rows_back"} & set(case.layouts.values()):
                values[subject.name] += testing.check_case(subject, case).values
try:
    import torch
    torch_is = "paddle" if torch.Tensor is paddle.Tensor else "torch"
except ImportError:
    torch_is = None
x = paddle.ones([3])
x.stop_gradient = False
try:
    anyop.ops.odd.windows(x, 2)
    said = ""
except NotImplementedError as error:
    said = str(error)
# A result of an optional tensor's dtype; one tensor is the gradient of two inputs, which are used again elsewhere.
def gained(function, x, y, weight):
    out, total = function(x, y, weight)
    return (out * out).sum().astype("float64") + ((total * x).sum() + y.sum()).astype("float64")

def plain(x, y, weight):
    total = x + y
    return total if weight is None else total.astype(weight.dtype) * weight, total

def gradients(function, dtype, static):
    paddle.seed(0)
    given = [paddle.rand([3, 4]), paddle.rand([3, 4])]
    if dtype:
        given.append(paddle.rand([4], dtype))
    for value in given:
        value.stop_gradient = False
    def run(x, y, weight=None):
        return gained(function, x, y, weight)

    run = paddle.jit.to_static(run, full_graph=True) if static else run
    run(*given).backward()
    return [[str(value.grad.dtype), value.grad.tolist()] for value in given]

shared = [
    [gradients(anyop.ops.odd.gain, dtype, static), gradients(plain, dtype, False)]
    for dtype in (None, "float32", "float64") for static in (False, True)
]
x, endless = paddle.ones([3, 4]), paddle.full([4], float("inf"))
x.stop_gradient = False
anyop.ops.odd.gain(x, paddle.ones([3, 4]), endless)[1].sum().backward()
one = [["float32", x.grad.tolist()]], [["float32", [[1.0] * 4] * 3]]  # no gradient, not zeros: 0 * inf is NaN
found = {"names": names, "values": values, "torch": torch_is, "said": said, "shared": [*shared, one]}
print(json.dumps(found))
"""


@pytest.fixture(scope="module", params=["no torch", "proxy"])
def report(request, tmp_path_factory) -> tuple[str, dict]:
    folder = tmp_path_factory.mktemp("paddle_third_party")
    (folder / "start").mkdir()
    start = NO_TORCH + (PROXY if request.param == "proxy" else "")
    (folder / "start" / "sitecustomize.py").write_text(start)
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{folder / 'start'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    }
    if not shutil.which("cmake", path=environment["PATH"]):
        pytest.skip("cmake is not installed")
    build, program = folder / "build", folder / "program.py"
    program.write_text(PROGRAM)  # whose source paddle.jit.to_static reads
    configure = ["cmake", "-S", str(FOLDER), "-B", str(build), f"-Danyop_DIR={anyop.cmake_dir()}"]
    commands = [
        [*configure, f"-DPython_EXECUTABLE={sys.executable}"],
        ["cmake", "--build", str(build)],
        [sys.executable, str(program), str(build / "libodd.so"), str(FOLDER / "odd")],
    ]
    for command in commands:
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return request.param, json.loads(done.stdout.splitlines()[-1])


def test_all_pass(report):
    """check_case raises where a value is wrong."""
    how, found = report
    assert found["torch"] == ("paddle" if how == "proxy" else None)
    assert sorted(found["values"]) == found["names"] and len(found["names"]) >= 5
    assert all(count > 100 for count in found["values"].values())


def test_an_operator_without_gradient_says_so(report):
    assert report[1]["said"].startswith("odd.windows: has no gradient, and x wants one")


def test_one_tensor_is_the_gradient_of_two_inputs(report):
    for found, expected in report[1]["shared"]:
        assert [dtype for dtype, _ in found] == [dtype for dtype, _ in expected]
        for (_, ours), (_, theirs) in zip(found, expected, strict=True):
            assert np.allclose(ours, theirs, 1e-5, 1e-6)
