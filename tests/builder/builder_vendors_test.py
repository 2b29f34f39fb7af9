# SPDX-License-Identifier: Apache-2.0
"""Two vendors' folders with an operator of the same name, and kernels whose C++ names are the same, in one process."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import anyop
import pytest
import small_builds as sb

pytestmark = [sb.needs_compiler, pytest.mark.drawn(2, group="the builder")]
# Names that would be one function for both, if the libraries exported them: plain, inline, template, in a namespace.
LINES = """\
struct Helper {{
  float factor;
  float run(float x) {{ return factor * x; }}
}};
float helper(float x) {{ return Helper{{{factor}}}.run(x); }}
inline float inline_helper(float x) {{ static float factor = {factor}; return factor * x; }}
template <typename T> T template_helper(T x) {{ static T factor = {factor}; return factor * x; }}
namespace detail {{ float shared_factor = {factor}; }}
"""
VALUE = "(helper(x[r]) + inline_helper(x[r]) + template_helper(x[r]) + detail::shared_factor * x[r]) / 4"
START = """
import sys
import numpy as np
import anyop
x = np.float32([1, 2, 3])
names = anyop.load(sys.argv[1]) + anyop.load(sys.argv[2])
assert names == ["acme.scale", "other.scale"], names
"""
PROGRAMS = {
    "NumPy": """
for _ in range(3):
    assert anyop.ops.acme.scale(x).tolist() == [2, 4, 6] and anyop.ops.other.scale(x).tolist() == [5, 10, 15]
try:
    anyop.load(sys.argv[3])
    sys.exit("an operator of the same full name was taken")
except ValueError as error:
    assert "acme" in str(error) and "scale" in str(error), error
assert anyop.ops.acme.scale(x).tolist() == [2, 4, 6]
""",
    "tvm_ffi": """
import tvm_ffi
for name, factor in (("acme.scale", 2), ("other.scale", 5)):
    out = np.empty_like(x)
    tvm_ffi.get_global_func(name)(x, out)
    assert out.tolist() == (factor * x).tolist()
""",
    "torch": """
import torch
import anyop.torch
t = torch.from_numpy(x)
for _ in range(2):
    assert torch.ops.acme.scale(t).tolist() == [2, 4, 6] and torch.ops.other.scale(t).tolist() == [5, 10, 15]
    assert anyop.ops.acme.scale(t).tolist() == [2, 4, 6] and anyop.ops.other.scale(t).tolist() == [5, 10, 15]
""",
    "jax": """
import jax
both = jax.jit(lambda x: (anyop.ops.acme.scale(x), anyop.ops.other.scale(x)))
one, two = both(jax.numpy.asarray(x))
assert one.tolist() == [2, 4, 6] and two.tolist() == [5, 10, 15]
""",
    "paddle": """
import paddle
t = paddle.to_tensor(x)
assert anyop.ops.acme.scale(t).tolist() == [2, 4, 6] and anyop.ops.other.scale(t).tolist() == [5, 10, 15]
""",
}
CPP = """\
#include <acme/ops.h>
#include <other/ops.h>

#include <cstdio>

int main(int, char** paths) {
  for (int i = 1; i <= 2; ++i)
    if (AnyopLoadLibrary(paths[i])) return std::puts(AnyopLastError()), 1;
  float data[3] = {1, 2, 3};
  const anyop::Tensor x = anyop::Tensor::View(data, {3});
  const anyop::Tensor one = acme::scale(x), two = other::scale(x);
  std::printf("%g %g\\n", one.data<float>()[2], two.data<float>()[2]);
}
"""


@pytest.fixture(scope="module")
def vendors(tmp_path_factory) -> dict[str, Path]:
    """Libraries of the same name, in folders of their own; "again" has the full name of the first."""
    root, libraries = tmp_path_factory.mktemp("vendors"), {}
    for vendor, namespace, factor in (
        ("acme", "acme", 2),
        ("other", "other", 5),
        ("again", "acme", 9),
    ):
        folder = root / vendor / "ops"
        sb.write_operator(folder, VALUE, namespace=namespace, lines=LINES.format(factor=factor))
        patch = pytest.MonkeyPatch()
        patch.setenv("ANYOP_CACHE_DIR", str(root / "cache"))
        libraries[vendor] = sb.build(folder, out=root / vendor / "out")
        patch.undo()
    return libraries


@pytest.mark.parametrize("framework", PROGRAMS)
def test_each_gives_its_own_results(framework, vendors, tmp_path):
    if framework != "NumPy" and not importlib.util.find_spec(framework):
        pytest.skip(f"{framework} is not installed")
    path = os.pathsep.join(
        filter(None, sys.path)
    )  # the cache of this process: it may have the glue
    env = {**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
    process = sb.python(START + PROGRAMS[framework], *vendors.values(), env=env)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, output + errors


def test_each_gives_its_own_results_in_cpp(vendors, tmp_path):
    source, program = tmp_path / "both.cc", tmp_path / "both"
    source.write_text(CPP)
    package = Path(anyop.cmake_dir()).parents[2]
    libraries = [path.parent for path in package.rglob("libanyop.so")]
    if not libraries:
        pytest.skip(f"there is no libanyop.so below {package}")
    includes = [
        f"-I{folder}"
        for folder in (
            anyop.include_dir(),
            *(vendors[v].parent / "include" for v in ("acme", "other")),
        )
    ]
    link = [
        f"-L{libraries[0]}",
        "-lanyop",
        f"-Wl,-rpath,{libraries[0]}",
        "-Wl,--allow-shlib-undefined",
    ]
    command = [sb.GXX, "-std=c++17", *includes, str(source), "-o", str(program), *link]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    command = [str(program), str(vendors["acme"]), str(vendors["other"])]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "6 15\n", done.stdout + done.stderr
