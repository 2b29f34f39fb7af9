# SPDX-License-Identifier: Apache-2.0
"""The ported operator of docs/porting.md: standard tests, gradients, torch.compile."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import anyop
import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy is an ml_dtypes array")

HERE = Path(__file__).parent
# A process of its own: a library that is loaded stays.
PROGRAM = """
import sys
import anyop, anyop.torch, torch
from anyop import testing

assert anyop.load(sys.argv[1]) == ["port.rotary", "port.rotary_backward"]
calls = 0
for subject in testing.find_subjects(sys.argv[2]):
    for choice in testing.dtype_choices(subject.metadata):
        for case in testing.standard_cases(subject, choice):
            testing.check_case(subject, case)
            calls += 1
    good = testing.Good(subject)
    for refusal in testing.refusals(good):
        testing.check_refusal(good, refusal)
assert calls > 100, calls

rotary = anyop.ops.port.rotary
angle = torch.randn(5, 4, dtype=torch.float64)
cos, sin = angle.cos(), angle.sin()
x = torch.randn(2, 3, 5, 8, dtype=torch.float64, requires_grad=True)
expected = torch.cat([x[..., :4] * cos - x[..., 4:] * sin, x[..., 4:] * cos + x[..., :4] * sin], -1)
torch.testing.assert_close(rotary(x, cos, sin), expected)
torch.testing.assert_close(torch.ops.port.rotary(x, cos, sin), expected)
assert torch.autograd.gradcheck(lambda x: rotary(x, cos, sin), x)

compiled = torch.compile(lambda x: rotary(x * 2, cos, sin).sum(), fullgraph=True)
(wanted,) = torch.autograd.grad((expected * 2).sum(), x)
(found,) = torch.autograd.grad(compiled(x), x)
torch.testing.assert_close(found, wanted)
torch.library.opcheck(torch.ops.port.rotary.default, (x, cos, sin))

try:
    rotary(x, cos[1:], sin)
except ValueError as error:
    print(error)
try:
    rotary(x, cos.requires_grad_(), sin)
except NotImplementedError as error:
    print(error)
"""


def test_the_page_shows_the_files():
    root = HERE.parents[1]
    page = (root / "docs" / "porting.md").read_text()
    blocks = re.findall(r"^`(examples/porting/\S+)`\n```\w+\n(.*?)^```", page, re.S | re.M)
    assert len(blocks) == 6
    for path, block in blocks:
        assert block in (root / path).read_text(), path


@pytest.mark.drawn(6, together="examples/porting")
def test_the_ported_operator(tmp_path):
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    if not shutil.which("cmake", path=environment["PATH"]):
        pytest.skip("cmake is not installed")
    build = tmp_path / "build"
    configure = ["cmake", "-S", str(HERE), "-B", str(build), f"-Danyop_DIR={anyop.cmake_dir()}"]
    configure += [f"-DPython_EXECUTABLE={sys.executable}"]
    program = [sys.executable, "-c", PROGRAM, str(build / "libport.so"), str(HERE / "ops")]
    loads = "import sys, anyop; print(anyop.load(sys.argv[1]))"
    folder = [sys.executable, "-c", loads, str(HERE / "ops")]
    done = subprocess.run(folder, capture_output=True, text=True, timeout=300)
    assert done.stdout == "['port.rotary', 'port.rotary_backward']\n", done.stderr
    for command in (configure, ["cmake", "--build", str(build)], program):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
    wrong_shape, no_gradient = done.stdout.splitlines()
    assert "port.rotary: cos has shape (4, 4)" in wrong_shape and "T=5" in wrong_shape
    assert "rotary" in no_gradient and "cos" in no_gradient
