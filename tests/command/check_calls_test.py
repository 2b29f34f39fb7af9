# SPDX-License-Identifier: Apache-2.0
"""ANYOP_CHECK=cpu: what a device's kernels get wrong on purpose is named, and what they get right is let through.

On PoCL with kernels in OpenCL C, and on a false runtime with compiled ones; each in a process of its own.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import anyop
import pytest
from anyop.builder.build import build

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "runtimes"))
import false_runtimes  # noqa: E402

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler")

# Tensors on the device, and back.
PROGRAM = """
import sys
from functools import partial
import numpy as np
import anyop
from anyop.conformance import device_array
from anyop.conformance.device_table import Device, use

device = Device(sys.argv[1])
use(device)
there, back = partial(device_array.there, device), partial(device_array.back, device)

def attempt(function, *arguments, **named):
    try:
        function(*arguments, **named)
        print("right")
    except Exception as error:
        print(type(error).__name__, error)
"""


def run(environment: dict[str, str], program: str, *words: object) -> list[str]:
    """The lines that a program prints; all else it says is an error's text."""
    code, text = false_runtimes.run(environment, "-c", PROGRAM + program, *map(str, words))
    assert code == 0, text
    return text.splitlines()


# ---- OpenCL C ----

TWICE = """\
schema = "wrong::twice(Tensor x) -> Tensor"
shapes = { x = "B D", out = "B D" }
dtypes = { x = ["float32", "int32"], out = "x" }
tolerance = { float32 = 1e-6 }
[kernels]
cpu = "twice.cc"
opencl = { file = "twice.cl", entry = "twice", grid = ["B"], block = ["D"], arguments = ["x", "out"] }
"""
GROW = """\
schema = "wrong::grow(Tensor(a!) x) -> ()"
shapes = { x = "B" }
dtypes = { x = ["float32"] }
[kernels]
cpu = "grow.cc"
opencl = { file = "grow.cl", entry = "grow", grid = ["B"], block = [1], arguments = ["x"] }
"""
ONLY = """\
schema = "wrong::only(Tensor x) -> Tensor"
shapes = { x = "B", out = "B" }
dtypes = { x = ["float32"], out = "x" }
[kernels]
opencl = { file = "only.cl", entry = "only", grid = ["B"], block = [1], arguments = ["x", "out"] }
"""
TWICE_CC = """\
#include "wrong/ops/twice.h"
template <typename T>
static void Run(const TwiceArgs* args) {
  for (int64_t i = 0; i < args->B * args->D; ++i)
    static_cast<T*>(args->out->data)[i] = 2 * static_cast<const T*>(args->x->data)[i];
}
extern "C" int32_t wrong_twice_cpu(const TwiceArgs* args, AnyopCall* call) {
  if (args->B == 13) return call->fail(call, kAnyopValueError, "13 rows are too many");
  args->x->dtype_code == 2 ? Run<float>(args) : Run<int32_t>(args);
  return kAnyopOk;
}
"""
GROW_CC = """\
#include "wrong/ops/grow.h"
extern "C" int32_t wrong_grow_cpu(const GrowArgs* args, AnyopCall*) {
  for (int64_t i = 0; i < args->B; ++i) static_cast<float*>(args->x->data)[i] += 1;
  return kAnyopOk;
}
"""
TWICE_CL = """\
__kernel void twice(TENSOR(x), TENSOR(out)) {
  BEGIN(x);
  BEGIN(out);
  const long i = (long)get_global_id(0);
  const REAL v = LOAD(x, i);
  STORE(out, i, v == 5 ? 11 : 2 * v);  // wrong on purpose
}
"""
GROW_CL = """\
__kernel void grow(TENSOR(x)) {
  BEGIN(x);
  const long i = (long)get_global_id(0);
  STORE(x, i, LOAD(x, i) + 1);
}
"""
ONLY_CL = GROW_CL.replace("grow(TENSOR(x))", "only(TENSOR(x), TENSOR(out))").replace(
    "BEGIN(x);", "BEGIN(x); BEGIN(out);").replace("STORE(x", "STORE(out")  # fmt: skip
OPENCL = """
anyop.load(sys.argv[2])
ops = anyop.ops.wrong
x = np.arange(12, dtype=np.float32).reshape(3, 4)
ready = [there(x[:1] + 0.25), there(x[:1].copy())]
attempt(ops.twice, ready[0], out=ready[1])
print(back(ready[1]).tolist())
attempt(ops.twice, there(x), out=there(x))
attempt(ops.twice, there(x.astype(np.int32)), out=there(x.astype(np.int32)))
attempt(ops.twice, there(np.zeros((13, 2), np.float32)), out=there(np.zeros((13, 2), np.float32)))
attempt(ops.twice, there(x[:0]), out=there(x[:0]))
grown = there(x[0].copy())
attempt(ops.grow, grown)
print(back(grown).tolist())
for _ in range(2):
    attempt(ops.only, there(x[0].copy()), out=there(x[0].copy()))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("wrong")
    files = {"twice": (TWICE, TWICE_CC, TWICE_CL), "grow": (GROW, GROW_CC, GROW_CL)}
    files["only"] = (ONLY, "", ONLY_CL)
    for name, texts in files.items():
        for suffix, text in zip(("toml", "cc", "cl"), texts):
            if text:
                (folder / f"{name}.{suffix}").write_text(text)
    return build(folder, name="wrong", out=folder.parent / "wrong-built")


POCL = {"ANYOP_OPENCL_DEVICE": "Portable Computing Language"}


@pytest.mark.skipif(
    not Path("/etc/OpenCL/vendors/pocl.icd").exists(),
    reason="PoCL is not installed (Debian: pocl-opencl-icd)",
)
@pytest.mark.parametrize("checks", [True, False], ids=["checked", "not"])
def test_kernels_in_opencl_c(library, checks, tmp_path):
    own = {"ANYOP_CACHE_DIR": str(tmp_path), "POCL_CACHE_DIR": str(tmp_path / "pocl")}
    environment = POCL | own | {"ANYOP_CHECK": "cpu" if checks else "off"}
    lines = run(environment, OPENCL, "opencl", library)
    grown, right = "[1.0, 2.0, 3.0, 4.0]", "[[0.5, 2.5, 4.5, 6.5]]"
    if not checks:
        assert lines == ["right", right, *["right"] * 4, "right", grown, "right", "right"]
        return
    off = "wrong.twice: call {}: opencl differs from the CPU's kernel: out[1, 1] is 11, expected 10"
    shapes = "; x {0} (3, 4), out {0} (3, 4)"
    within = " within 2e-06 * (1 + |expected|)"
    assert lines == [
        "right",
        right,
        f"InternalError {off.format(2)}{within}; 1 of 12 are off{shapes.format('float32')}",
        f"InternalError {off.format(3)}; 1 of 12 are off{shapes.format('int32')}",
        "ValueError wrong.twice: call 4: the CPU's kernel refuses what opencl took: 13 rows are "
        "too many; x float32 (13, 2), out float32 (13, 2)",
        "right",
        "right",
        grown,
        "anyop: wrong.only: ANYOP_CHECK=cpu does not check it: no kernel of its for the CPU takes "
        "every call",
        "right",
        "right",
    ]


# ---- a compiled kernel on a false runtime ----

WRONG_C = """\
#include "anyop/anyop.h"
#include "anyop/ops/relu.h"
static int32_t Relu(const void* arguments, AnyopCall* call) {
  const ReluArgs* args = arguments;
  float* out = args->out->data;
  (void)call;
  for (int64_t i = 0; i < args->rows; ++i) {
    const float v = ((const float*)args->x->data)[i];
    out[i] = v < -3 ? v : v < 0 ? 0 : v;  /* wrong on purpose */
  }
  return kAnyopOk;
}
__attribute__((visibility("default"))) int32_t Add(void) {
  AnyopImplementation made = {sizeof made, 12, "maca", "maca", "wrong.c", "dtype=float32", 0, 0, Relu, 0};
  return AnyopRegisterImplementation(AnyopFindOperator("relu"), &made);
}
"""
FALSE = """
import ctypes
assert ctypes.CDLL(sys.argv[2]).Add() == 0
x = np.array([-1, 2, -3, 4], np.float32)
attempt(anyop.relu, there(x), out=there(x))
x[0] = -9
attempt(anyop.relu, there(x), out=there(x))
same = there(x)
attempt(anyop.relu, same, out=same)
"""


def test_a_compiled_kernel_on_a_false_runtime(tmp_path):
    made = false_runtimes.make("maca", tmp_path / "maca")
    (tmp_path / "wrong.c").write_text(WRONG_C)
    library = tmp_path / "libwrong.so"
    words = ["gcc", "-shared", "-fPIC", "-Werror", f"-I{anyop.include_dir()}", tmp_path / "wrong.c"]
    subprocess.run([*words, "-o", library, false_runtimes.LIBANYOP], check=True, timeout=300)
    off = (
        "InternalError relu: call {}: maca differs from the CPU's kernel: out[0] is -9, expected 0"
    )
    lines = run(made.environment | {"ANYOP_CHECK": "cpu"}, FALSE, "maca", library)
    assert lines[0] == "right" and len(lines) == 3, lines
    for number, line in enumerate(lines[1:], 2):
        assert line.startswith(off.format(number)), line


# ---- what is not checked ----


def test_an_unknown_value_is_refused():
    code, text = false_runtimes.run({"ANYOP_CHECK": "gpu"}, "-c", "import anyop")
    assert code == 1 and "ANYOP_CHECK is 'gpu', expected off, cpu" in text


def test_calls_on_the_cpu_stay_as_they_are():
    program = "import anyop, numpy; print(anyop.relu(numpy.float32([-1, 2])).tolist())"
    code, text = false_runtimes.run({"ANYOP_CHECK": "cpu"}, "-c", program)
    assert (code, text) == (0, "[0.0, 2.0]\n")
