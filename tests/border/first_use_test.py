# SPDX-License-Identifier: Apache-2.0
"""The first calls of a process, made by eight threads at once: none raises, hangs, or gives wrong values.

In short one process with NumPy and one with torch; with ANYOP_TEST_FULL=1 fifty for each framework, and fifty with all
in one.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from drawn import FULL, seed

PROGRAM = Path(__file__).with_name("first_use_program.py")
FRAMEWORKS = ["numpy", "torch", *(["jax", "paddle", "tvm_ffi"] if FULL else [])]
ROUNDS = 50 if FULL else 1
BACKWARD = '\n[backward]\nname = "scale_backward"\nsaves = []\n'
FILES = {
    "scale.toml": 'schema = "acme::scale(Tensor x, float factor=2.0) -> Tensor"\n'
    'shapes = { x = "*", out = "*" }' + BACKWARD,
    "scale_backward.toml": 'schema = "acme::scale_backward(Tensor grad_out, float factor=2.0) -> Tensor grad_x"\n'
    'shapes = { grad_out = "*", grad_x = "*" }\n',
}
KERNEL = """\
#include "acme/ops/{name}.h"
// {text}
int32_t acme_{name}_cpu(const {struct}Args* args, AnyopCall*) {{
  const auto* x = (const float*)args->{x}->data;
  auto* out = (float*)args->{out}->data;
  for (int64_t i = 0; i < args->rows; ++i) out[i] = (float)args->factor * x[i];
  return kAnyopOk;
}}
"""
KERNELS = [
    ("scale", "Scale", "x", "out"),
    ("scale_backward", "ScaleBackward", "grad_out", "grad_x"),
]


def write_folder(folder: Path, text: str) -> None:
    """Operators that no cache holds yet, and what else the program reads."""
    (folder / "acme").mkdir(parents=True)
    for name, stated in FILES.items():
        (folder / "acme" / name).write_text(stated)
    for name, struct, x, out in KERNELS:
        kernel = KERNEL.format(name=name, struct=struct, x=x, out=out, text=text)
        (folder / "acme" / f"{name}.cc").write_text(kernel)
    (folder / "routes.txt").write_text("rms_norm = cpu\n*norm* = aten, cpu\n")


@pytest.mark.parametrize("framework", [*FRAMEWORKS, *(["all"] if FULL else [])])
def test_first_use(framework, tmp_path):
    wanted = FRAMEWORKS[1:] if framework == "all" else [framework]
    there = [name for name in wanted if importlib.util.find_spec(name)]
    if not there:
        pytest.skip(f"{framework} is not installed")
    for at in range(ROUNDS):
        drawn = f"{seed()} {framework} {at}"
        write_folder(tmp_path / str(at), f"{drawn} {tmp_path}")
        command = [sys.executable, str(PROGRAM), str(tmp_path / str(at)), drawn]
        command += [name for name in there if name != "numpy"]
        run = subprocess.run(command, capture_output=True, text=True, timeout=600, env=os.environ)
        assert (run.returncode, run.stdout) == (0, ""), f"{command}: {run.stdout}{run.stderr}"


def test_what_another_thread_has_read_since_is_found():
    """Python looks for an attribute in vain, another thread reads all of them, then __getattr__ is called."""
    from anyop.adapter.operators import Operator

    operator = Operator("relu", None)
    operator.read()
    assert operator.__getattr__("names") == ("x", "out")
    with pytest.raises(AttributeError, match="no attribute nothing"):
        _ = operator.nothing
