# SPDX-License-Identifier: Apache-2.0
"""A new operator is new files in one folder: from outside the tree to NumPy, torch, tvm-ffi and the registry."""

import os
import re
import subprocess
import sys
from pathlib import Path

import anyop
import prepared
import pytest

SCHEMA = """\
# SPDX-License-Identifier: Apache-2.0
schema = "acme::scaled_add(Tensor x, Tensor y, *, float alpha=1) -> Tensor"
brief = "Add alpha times y to x."
math = "out = x + alpha * y"
source = "the tests"

[arguments]
x = "first term"
y = "second term"
alpha = "factor of y"

[shapes]
x = "*X"
y = "*Y"
out = "broadcast(*X, *Y)"

[dtypes]
x = ["float32"]
y = "x"
out = "x"

[layouts]
x = "strided"
y = "strided"

[kernels]
cpu = "scaled_add.cc"

[tangent]
x = "add(tangent_x, zeros_y)"
y = "acme.scaled_add(zeros_x, tangent_y, alpha=alpha)"

[tolerance]
float32 = 1e-6
"""

KERNEL = """\
// SPDX-License-Identifier: Apache-2.0
#include "acme/ops/scaled_add.h"

int32_t acme_scaled_add_cpu(const ScaledAddArgs* args, AnyopCall*) {
  auto *x = (const float*)args->x->data, *y = (const float*)args->y->data;
  auto* out = (float*)args->out->data;
  for (int64_t i = 0; i < args->numel_XY; ++i) {
    int64_t rest = i, at_x = 0, at_y = 0;
    for (int d = args->out->ndim; d--;) {
      const int64_t k = rest % args->out->shape[d];
      rest /= args->out->shape[d];
      at_x += k * args->x->strides[d];
      at_y += k * args->y->strides[d];
    }
    out[i] = x[at_x] + (float)args->alpha * y[at_y];
  }
  return kAnyopOk;
}
"""

PROJECT = """\
cmake_minimum_required(VERSION 3.20)
project(outside LANGUAGES C CXX)
find_package(anyop REQUIRED)
anyop_add_operators(acme operators)
"""

PROGRAM = """
import sys
import anyop, numpy as np
assert anyop.load(sys.argv[1]) == ["acme.scaled_add"]
f = anyop.ops.acme.scaled_add
x, y = np.arange(12, dtype=np.float32).reshape(3, 4), np.arange(4, dtype=np.float32)
assert np.array_equal(f(x, y, alpha=2), x + 2 * y) and np.array_equal(f(x.T, y[:3]), x.T + y[:3])
assert anyop.schema("acme.scaled_add").startswith("acme::scaled_add(") and "factor of y" in f.__doc__
assert "acme.scaled_add" in anyop.list_ops() and not hasattr(anyop, "scaled_add")
import torch
assert torch.equal(f(torch.from_numpy(x), torch.from_numpy(y)), torch.from_numpy(x + y))
import anyop.torch
tensors = tuple(map(torch.from_numpy, (x, y)))
moved = torch.func.jvp(lambda x, y: f(x, y, alpha=3), tensors, (tensors[0] + 1, tensors[1] + 2))
assert torch.equal(moved[1], tensors[0] + 1 + 3 * (tensors[1] + 2))
import tvm_ffi
out = np.empty_like(x)
tvm_ffi.get_global_func("acme.scaled_add")(x, y, 3.0, out)
assert np.array_equal(out, x + 3 * y)
print("right")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "operators" / "terms"
    folder.mkdir(parents=True)
    (folder / "scaled_add.toml").write_text(SCHEMA)
    (folder / "scaled_add.cc").write_text(KERNEL)
    (tmp_path / "CMakeLists.txt").write_text(PROJECT)
    return tmp_path


def cmake(project: Path, *words: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return subprocess.run(
        ["cmake", *words], cwd=project, env=environment, capture_output=True, text=True
    )


def configure(project: Path) -> subprocess.CompletedProcess:
    return cmake(
        project,
        "-S",
        ".",
        "-B",
        "build",
        f"-Danyop_DIR={anyop.cmake_dir()}",
        f"-DPython_EXECUTABLE={sys.executable}",
    )


def test_a_kernel_of_another_name_is_named_with_its_file(project):
    """A linker says no more than that a reference of the table is undefined."""
    kernel = project / "operators" / "terms" / "scaled_add.cc"
    kernel.write_text(KERNEL.replace("scaled_add_cpu", "scaledadd_cpu"))
    configured = configure(project)
    assert configured.returncode == 0, configured.stderr
    built = cmake(project, "--build", "build")
    said = built.stdout + built.stderr
    expected = (
        "scaled_add.toml: scaled_add.cc defines no acme_scaled_add_cpu, expected "
        'extern "C" int32_t acme_scaled_add_cpu(const ScaledAddArgs* args, AnyopCall* call)\n'
    )
    assert built.returncode and said.count(expected) == 1, said
    kernel.write_text(KERNEL)
    built = cmake(project, "--build", "build")
    assert built.returncode == 0 and "defines no" not in built.stdout + built.stderr


def test_a_cpp_program_reaches_its_own_operators(project):
    """The lines of docs/cpp.md, as they stand there."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "cpp.md").read_text()
    section = page.split("## Operators of your own\n")[1].split("\n## ")[0]
    lists, program = re.findall(r"```(?:cmake|cpp)\n(.*?)```", section, re.DOTALL)
    head = "cmake_minimum_required(VERSION 3.20)\nproject(outside LANGUAGES C CXX)\n"
    (project / "CMakeLists.txt").write_text(head + lists)
    (project / "program.cc").write_text(program)
    configured = configure(project)
    assert configured.returncode == 0, configured.stderr
    built = cmake(
        project, "--build", "build", "--target", "program"
    )  # which builds the library, too
    assert built.returncode == 0, built.stdout + built.stderr
    run = subprocess.run([project / "build" / "program"], capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (0, re.search(r"// prints (.*)", program)[1] + "\n"), (
        run.stderr
    )
    (project / "build" / "libacme.so").write_bytes(b"cut")
    run = subprocess.run([project / "build" / "program"], capture_output=True, text=True)
    assert run.returncode == 1 and "libacme.so is cut off" in run.stderr


@pytest.mark.parametrize("there", ["C", "CXX"])
def test_a_project_of_one_language_is_refused(project, there):
    """CMake would leave out what is in the other: a library without operators, and not a word."""
    text = PROJECT.replace("LANGUAGES C CXX", f"LANGUAGES {there}")
    (project / "CMakeLists.txt").write_text(text)
    found = configure(project)
    cure = {"C": "enable_language(CXX)", "CXX": "enable_language(C)"}[there]
    assert found.returncode != 0 and cure in " ".join(found.stderr.split()), found.stderr


def test_one_folder_is_all_it_takes(project):
    configured = configure(project)
    assert configured.returncode == 0, configured.stderr
    built = cmake(project, "--build", "build")
    assert built.returncode == 0, built.stdout + built.stderr
    library = project / "build" / "libacme.so"
    run = prepared.run(
        "torch",
        [sys.executable, "-c", PROGRAM, str(library)],
    )
    assert run.stdout == "right\n", run.stderr
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True
    ).stdout
    assert [line.split()[-1] for line in symbols.splitlines()] == ["AnyopLibraryEntry"]


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('brief = "Add', 'breif = "Add', "breif"),
        ('y = "*Y"', 'y = "*Y Q"\nz = "Q"', "z"),
        ('out = "broadcast(*X, *Y)"', 'out = "broadcast(*X, *Z)"', "Z"),
        ('cpu = "scaled_add.cc"', 'cpu = "missing.cc"', "missing.cc"),
        ("float alpha=1", "float alpha='a'", "alpha"),
        ("acme::scaled_add(", "acme::lambda(", "lambda"),
        ("acme.scaled_add(zeros_x", "scaled_add(zeros_x", "did you mean 'acme.scaled_add'?"),
    ],
)
def test_mistakes_stop_the_build_with_file_and_line(project, old, new, says):
    schema = project / "operators" / "terms" / "scaled_add.toml"
    assert old in SCHEMA
    schema.write_text(SCHEMA.replace(old, new))
    configured = configure(project)
    assert configured.returncode != 0
    line = next(
        line
        for line in configured.stderr.splitlines() + configured.stdout.splitlines()
        if "scaled_add.toml:" in line
    )
    assert says in line and line.split("scaled_add.toml:")[1].split(":")[0].isdigit(), line
