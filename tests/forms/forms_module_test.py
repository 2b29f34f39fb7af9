# SPDX-License-Identifier: Apache-2.0
"""A function of a tvm-ffi library as the kernel of an operator: every framework calls it, no edit to the library."""

import contextlib
import importlib.util
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import anyop
import numpy as np
import pytest
from anyop.builder.build import build
from anyop.codegen.generate import generate
from anyop.codegen.schema.source import SchemaErrors

tvm_ffi = importlib.util.find_spec("tvm_ffi")
if tvm_ffi is None or shutil.which("g++") is None:
    pytest.skip("tvm-ffi or g++ is not installed", allow_module_level=True)
RUNTIME = Path(tvm_ffi.submodule_search_locations[0])

SOURCE = """\
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>
using tvm::ffi::Optional;
using tvm::ffi::TensorView;

void AddTo(TensorView x, double amount, TensorView out) {
  if (amount < 0) TVM_FFI_THROW(ValueError) << "amount is " << amount;
  if (amount > 1e6) TVM_FFI_THROW(RuntimeError) << "amount is large";
  const float* from = static_cast<const float*>(x.data_ptr());
  for (int64_t i = 0; i < x.numel(); ++i) static_cast<float*>(out.data_ptr())[i] = from[i] + amount;
}
// Writes what it was given, one number each.
tvm::ffi::String Describe(TensorView out, Optional<TensorView> y, int64_t k, Optional<int64_t> n,
                          Optional<double> f, bool flag, tvm::ffi::String mode, Optional<tvm::ffi::String> tag,
                          DLDataType dtype, int64_t double_k) {
  double* to = static_cast<double*>(out.data_ptr());
  const double found[] = {y.has_value() ? double(y.value().shape()[1]) : -1, double(k), n.has_value() ? double(*n) : -1,
                          f.has_value() ? *f : -1, double(flag), double(mode.size()),
                          tag.has_value() ? double(tag.value().size()) : -1,
                          dtype.code * 1000.0 + dtype.bits, double(double_k)};
  for (int i = 0; i < 9; ++i) to[i] = found[i];
  return "an object that the caller lets go of";
}
void Stream(TensorView x, TensorView out) {
  (void)x;
  static_cast<int64_t*>(out.data_ptr())[0] = reinterpret_cast<int64_t>(TVMFFIEnvGetStream(2, 1));
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(add_to, AddTo);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(describe, Describe);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(stream, Stream);
"""
ADD_TO = """\
schema = "modules::add_to(Tensor x, float amount=1.0) -> Tensor"
shapes = { x = "*", out = "*" }
kernels = { cpu = { file = "ready.so", function = "add_to" } }
"""
DESCRIBE = """\
schema = "modules::describe(Tensor? y, int k, int? n=None, float? f=None, bool flag=False, str mode='none', \
str? tag=None, ScalarType dtype=bfloat16) -> Tensor"
shapes = { y = "A B", out = "9" }
dtypes = { out = ["float64"] }
[kernels.cpu]
file = "ready.so"
function = "describe"
arguments = ["out", "y", "k", "n", "f", "flag", "mode", "tag", "dtype", "2*k"]
"""
STREAM = """\
schema = "modules::stream(Tensor x) -> Tensor"
shapes = { x = "*", out = "1" }
dtypes = { out = ["int64"] }
kernels = { cuda = { file = "ready.so", function = "stream" } }
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The operators and the library, whose file's name is odd."""
    folder = tmp_path_factory.mktemp("modules") / "ops"
    folder.mkdir()
    (folder / "ready.cc").write_text(SOURCE)
    command = [
        "g++",
        "-std=c++17",
        "-O1",
        "-shared",
        "-fPIC",
        "-fvisibility=hidden",
        "ready.cc",
        "-o",
        "ready.so",
    ]
    paths = ["-I", RUNTIME / "include", "-L", RUNTIME / "lib", "-ltvm_ffi"]
    subprocess.run([*command, *map(str, paths)], cwd=folder, check=True)
    for name, text in (("add_to", ADD_TO), ("describe", DESCRIBE), ("stream", STREAM)):
        (folder / f"{name}.toml").write_text(text)
    return folder


@pytest.fixture(scope="module")
def library(folder) -> str:
    library = build(folder, out=folder.parent / "out", name="modules")
    assert anyop.load(library) == ["modules.add_to", "modules.describe", "modules.stream"]
    return library


X = np.linspace(-1, 1, 7, dtype=np.float32)


def test_from_numpy(library):
    np.testing.assert_array_equal(anyop.ops.modules.add_to(X, 0.5), X + np.float32(0.5))
    assert anyop.ops.modules.add_to(X[:0]).shape == (0,)
    assert anyop.metadata("modules.add_to")["kernels"][0]["form"] == "module"


def test_from_torch(library):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("anyop.torch", reason="anyop.torch is not there")
    x = torch.from_numpy(X.copy())
    assert torch.equal(anyop.ops.modules.add_to(x, 2), x + 2)
    assert torch.equal(torch.ops.modules.add_to(x, 2.0), x + 2)


def test_from_jax(library):
    jax = pytest.importorskip("jax", reason="jax is not installed")
    found = jax.jit(lambda x: anyop.ops.modules.add_to(x, 2))(jax.numpy.asarray(X))
    np.testing.assert_array_equal(np.asarray(found), X + 2)


def describe(*arguments, **named) -> list[float]:
    return anyop.ops.modules.describe(*arguments, **named, out=np.empty(9)).tolist()


def test_every_kind_of_value(library):
    y = np.zeros((2, 3), np.float32)
    assert describe(None, 5) == [-1, 5, -1, -1, 0, 4, -1, 4016, 10]
    named = {"n": -4, "f": 0.25, "flag": True, "mode": "", "tag": "ab c", "dtype": "int8"}
    assert describe(y, -7, **named) == [3, -7, -4, 0.25, 1, 0, 4, 8, -14]
    assert describe(y[:, 1:2].copy(), 0, dtype="float8_e5m2")[7] == 12008


def test_errors(library):
    with pytest.raises(ValueError, match=r"^modules.add_to: amount is -1$"):
        anyop.ops.modules.add_to(X, -1)
    with pytest.raises(
        anyop.InternalError, match=r"^modules.add_to: RuntimeError: amount is large$"
    ):
        anyop.ops.modules.add_to(X, 1e7)
    with pytest.raises(ValueError, match="2\\*k is too large"):
        describe(None, 2**62)


def kibibytes_after(function, count: int) -> int:
    """The most memory that this process ever had, behind so many calls."""
    for _ in range(count):
        function()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def failing():
    with contextlib.suppress(ValueError):
        anyop.ops.modules.add_to(X, -1)


@pytest.mark.parametrize("function", [lambda: describe(None, 1), failing], ids=["result", "error"])
def test_memory_does_not_grow(function, library):
    """The text that describe returns, and each error, is let go of: 30,000 would be 3 MB and more."""
    before = kibibytes_after(function, 3000)
    assert kibibytes_after(function, 30000) - before < 1024


def test_the_callers_stream(library):
    """By an array that says it lies on device 1 of CUDA; the function asks tvm-ffi for the stream there."""
    from anyop.testing.dlpack import DlpackArray

    core = pytest.importorskip("tvm_ffi.core")
    if not hasattr(core, "_env_set_current_stream"):
        pytest.skip("this tvm-ffi has no way to set a stream from Python")
    out = np.full(1, 7, np.int64)
    x = DlpackArray(X.copy(), device=(2, 1))
    core._env_set_current_stream(2, 1, 4660)
    try:
        anyop.ops.modules.stream(x, out=DlpackArray(out, device=(2, 1)))
        assert out[0] == 0, "the array names no stream"
        assert core._env_set_current_stream(2, 1, 0) == 4660, "put back"
    finally:
        core._env_set_current_stream(2, 1, 0)


def test_the_library_can_be_moved(library, tmp_path):
    """The opened library is found beside the built one, whatever the current folder is."""
    shutil.copytree(Path(library).parent, tmp_path / "moved")
    program = (
        "import os, sys, anyop, numpy as np; anyop.load(sys.argv[1]); os.chdir('/');"
        "print(anyop.ops.modules.add_to(np.ones(2, np.float32)).tolist())"
    )
    command = [sys.executable, "-c", program, f"moved/{Path(library).name}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "[2.0, 2.0]\n", done.stderr
    (opened,) = (tmp_path / "moved").rglob("ready.so")
    whole = opened.read_bytes()
    for length in (0, 100, len(whole) // 2, len(whole) - 1, None):  # cut off, then gone
        opened.write_bytes(whole[:length]) if length is not None else opened.unlink()
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert "NotImplementedError: modules.add_to: its library cannot be used: " in done.stderr
        assert str(opened.name) in done.stderr.splitlines()[-1]
        assert length is None or "ready.so is cut off" in done.stderr


def test_cmake_does_the_same(folder, tmp_path):
    if shutil.which("cmake") is None:
        pytest.skip("no cmake on this machine")
    project = "cmake_minimum_required(VERSION 3.20)\nproject(t LANGUAGES C CXX)\nfind_package(anyop REQUIRED)\n"
    (tmp_path / "ops").mkdir()
    for name in ("ready.so", "add_to.toml"):
        shutil.copy(folder / name, tmp_path / "ops")
    (tmp_path / "CMakeLists.txt").write_text(project + "anyop_add_operators(by_cmake ops)\n")
    path = f"-Danyop_DIR={anyop.cmake_dir()}"
    python = f"-DPython_EXECUTABLE={sys.executable}"
    subprocess.run(
        ["cmake", "-S", tmp_path, "-B", tmp_path / "b", path, python],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    subprocess.run(["cmake", "--build", tmp_path / "b"], check=True, stdout=subprocess.DEVNULL)
    program = (
        "import sys, anyop, numpy as np; anyop.load(sys.argv[1]);"
        "print(anyop.ops.modules.add_to(np.ones(2, np.float32)).tolist())"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "b" / "libby_cmake.so")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "[2.0, 2.0]\n", done.stderr


@pytest.mark.parametrize(
    "text, message",
    [
        (ADD_TO.replace('"add_to" }', '"add_two" }'), "function 'add_two', which ready.so does not export"),
        (ADD_TO.replace(', function = "add_to"', ""), "ready.so without function, expected one that it exports "
         "(add_to, describe or stream)"),
        (ADD_TO.replace('"add_to" }', '"add_to", arguments = ["x", "amount"] }'), "arguments without 'out'"),
        (ADD_TO.replace('"add_to" }', '"add_to", arguments = ["out", "s"] }'), "'s' in arguments 's'"),
        (ADD_TO.replace('"add_to" }', '"add_to", entry = "x" }'), "unknown key of a kernel in the form of module"),
        (ADD_TO.replace("float amount=1.0", "int[] amount"), "'amount', which is a list, expected tensors"),
        (ADD_TO.replace('file = "ready.so"', 'file = ["ready.so", "ready.cc"]'), "kernel files ready.so and ready.cc"),
    ],
)  # fmt: skip
def test_mistakes(text, message, folder, tmp_path):
    shutil.copy(folder / "ready.so", tmp_path)
    shutil.copy(folder / "ready.cc", tmp_path)
    (tmp_path / "add_to.toml").write_text(text)
    with pytest.raises(SchemaErrors) as error:
        generate([tmp_path], "modules")
    assert str(error.value).startswith(f"{tmp_path}/add_to.toml:3: ") and message in str(
        error.value
    )


def test_two_libraries_of_one_name(folder, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        shutil.copy(folder / "ready.so", tmp_path / name)
        text = ADD_TO.replace("add_to(", f"add_{name}(")
        (tmp_path / name / f"add_{name}.toml").write_text(text)
    with pytest.raises(SchemaErrors, match=r"two libraries called ready.so, the other in"):
        generate([tmp_path], "modules")


def test_another_machine(folder, tmp_path):
    data = bytearray((folder / "ready.so").read_bytes())
    data[18] = 22  # s390x
    (tmp_path / "ready.so").write_bytes(data)
    (tmp_path / "add_to.toml").write_text(ADD_TO)
    with pytest.raises(SchemaErrors, match=f"ready.so is for s390x, expected {os.uname().machine}"):
        build(tmp_path)
