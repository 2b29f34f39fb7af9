# SPDX-License-Identifier: Apache-2.0
"""Any function of tvm-ffi as a backend: every kind of argument, every caller, and what is said where one is missing."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import threading
import types
from pathlib import Path

import anyop
import numpy as np
import pytest
from anyop.backend.tvm_ffi import register_tvm_ffi
from anyop.builder.build import build

if importlib.util.find_spec("tvm_ffi") is None or shutil.which("g++") is None:
    pytest.skip("tvm-ffi or g++ is not installed", allow_module_level=True)
import tvm_ffi

RUNTIME = Path(tvm_ffi.__file__).parent

SOURCE = """\
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>
using tvm::ffi::Array;
using tvm::ffi::Optional;
using tvm::ffi::Tensor;
using tvm::ffi::TensorView;

// Rows of two dimensions, as kernels' bindings have them.
void Scale(TensorView out, TensorView x, double factor) {
  if (x.ndim() != 2 || out.ndim() != 2) TVM_FFI_THROW(ValueError) << "x has " << x.ndim() << " dimensions";
  if (factor < 0) TVM_FFI_THROW(ValueError) << "factor is " << factor;
  if (factor > 1e6) TVM_FFI_THROW(RuntimeError) << "factor is large";
  for (int64_t i = 0; i < x.size(0); ++i)
    for (int64_t j = 0; j < x.size(1); ++j)
      static_cast<float*>(out.data_ptr())[i * out.stride(0) + j] =
          static_cast<const float*>(x.data_ptr())[i * x.stride(0) + j * x.stride(1)] * factor;
}
// Writes what it was given, one number each.
tvm::ffi::String Kinds(Tensor out, Optional<Tensor> y, int64_t k, Optional<int64_t> n, Optional<double> f, bool flag,
                       tvm::ffi::String mode, Optional<tvm::ffi::String> tag, DLDataType dtype, int64_t size,
                       double number, bool constant, Optional<double> none, tvm::ffi::String text, Array<int64_t> ints,
                       Array<int64_t> list, TensorView scratch, DLTensor* flat, Array<Tensor> tensors) {
  double* to = static_cast<double*>(out.data_ptr());
  for (int64_t i = 0; i < scratch.size(0); ++i) static_cast<char*>(scratch.data_ptr())[i] = 1;
  const double found[] = {y.has_value() ? double(y.value().shape()[1]) : -1, double(k), n.has_value() ? double(*n) : -1,
                          f.has_value() ? *f : -1, double(flag), double(mode.size()),
                          tag.has_value() ? double(tag.value().size()) : -1, dtype.code * 1000.0 + dtype.bits,
                          double(size), number, double(constant), none.has_value() ? *none : -1, double(text.size()),
                          double(ints.size()), double(list[0] * 100 + list[1]), double(scratch.size(0)),
                          double(flat->ndim * 1000 + flat->shape[0]), double(tensors.size()),
                          static_cast<const float*>(tensors[1].data_ptr())[0]};
  for (int i = 0; i < 19; ++i) to[i] = found[i];
  return "an object that the caller lets go of";
}
void Keep(Tensor x, TensorView out) { static Tensor kept = x; }
void Stream(TensorView x, TensorView out) {
  static_cast<int64_t*>(out.data_ptr())[0] = reinterpret_cast<int64_t>(TVMFFIEnvGetStream(2, 1));
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(scale, Scale);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(kinds, Kinds);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(keep, Keep);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(stream, Stream);
"""
SCALE = """\
schema = "foreign::scale(Tensor x, float factor=2.0) -> Tensor"
shapes = { x = "* D", out = "* D" }
layouts = { x = "strided" }
[kernels.acme]
call = "scale(rows(out), rows(x), factor)"
library = "@LIBRARY@"
device = "cpu"
[kernels.python_made]
call = "scale(rows(out), rows(x), factor)"
module = "foreign_module:make"
[kernels.absent]
call = "scale(out, x, factor)"
library = "libabsent.so"
needs = ["absent"]
[kernels.nowhere]
call = "nowhere.scale(out, x, factor)"
[kernels.no_function]
call = "rescale(out, x, factor)"
library = "@LIBRARY@"
[kernels.no_module]
call = "scale(out, x, factor)"
module = "foreign_module_that_is_not_there:make"
"""
KINDS = """\
schema = "foreign::kinds(Tensor[] xs, Tensor? y, int k, int? n=None, float? f=None, bool flag=False, str mode='none', \
str? tag=None, ScalarType dtype=bfloat16, int[] ints=[]) -> Tensor"
shapes = { y = "A B", xs = "[N] *", out = "19" }
dtypes = { out = ["float64"], xs = ["float32"] }
kernels = { }
"""
CALL = (
    "kinds(out, y, k, n, f, flag, mode, tag, dtype, ceil(A*B/4) + max(k, 2)*-1 - (B//2)%2, -2.5e-1, True, None, "
    "'a, b', ints, [B, A - 1], workspace(16*numel(out)), flat(y), xs)"
)
C_CALLER = """\
#include <stdio.h>
#include "anyop/anyop.h"
int main(int argc, char** argv) {
  int64_t shape[] = {2, 3}, strides[] = {3, 1};
  float data[] = {1, 2, 3, 4, 5, 6};
  AnyopTensor x = {data, 1, 0, 2, 2, 32, 1, shape, strides, 0};
  AnyopValue values[3] = {{kAnyopTensorValue, 0, {&x}}};
  AnyopInvokeOptions options = {sizeof options, 0, NULL, argv[2]};
  if (AnyopLoadLibrary(argv[1]) ||
      AnyopInvoke(AnyopFindOperator("foreign.scale"), values, 3, &options))
    return puts(AnyopLastError()), 1;
  printf("%g\\n", ((float*)values[2].as.tensor->data)[5]);
  AnyopDeleteTensor(values[2].as.tensor);
  return 0;
}
"""
STREAM = """\
schema = "foreign::stream(Tensor x) -> Tensor"
shapes = { x = "*", out = "1" }
dtypes = { out = ["int64"] }
kernels = { }
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory) -> Path:
    """The library of functions, and operators that name it."""
    folder = tmp_path_factory.mktemp("foreign")
    (folder / "foreign.cc").write_text(SOURCE)
    flags = ["-std=c++17", "-O1", "-shared", "-fPIC", "-fvisibility=hidden"]
    paths = ["-I", RUNTIME / "include", "-L", RUNTIME / "lib", "-ltvm_ffi"]
    command = ["g++", *flags, "foreign.cc", "-o", "libforeign.so", *map(str, paths)]
    subprocess.run(command, cwd=folder, check=True)
    (folder / "ops").mkdir()
    for name, text in (("scale", SCALE), ("kinds", KINDS), ("stream", STREAM)):
        text = text.replace("@LIBRARY@", str(folder / "libforeign.so"))
        (folder / "ops" / f"{name}.toml").write_text(text)
    loaded = tvm_ffi.load_module(str(folder / "libforeign.so"))
    made = types.ModuleType("foreign_module")
    made.make = lambda: loaded
    sys.modules["foreign_module"] = made
    anyop.load(build(folder / "ops", out=folder / "out", name="foreign"))
    return folder / "libforeign.so"


X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 3, 4)


@pytest.mark.parametrize("backend", ["acme", "python_made"])
def test_numpy(module, backend):
    scale = anyop.ops.foreign.scale
    with anyop.use(backend):
        assert anyop.explain("foreign.scale", X, 3.0).chosen == backend
        np.testing.assert_array_equal(scale(X, 3.0), X * np.float32(3))
        np.testing.assert_array_equal(scale(X[..., ::2], 3.0), X[..., ::2] * np.float32(3))
        out = np.zeros_like(X)
        assert scale(X, out=out) is out
        np.testing.assert_array_equal(out, X * np.float32(2))
        assert scale(X[:0]).shape == (0, 3, 4)
        np.testing.assert_array_equal(scale(X[0, 0]), X[0, 0] * np.float32(2))
        one = X[:1, :1, ::3]
        np.testing.assert_array_equal(scale(one), one * np.float32(2))
        with pytest.raises(NotImplementedError, match=r"scale: rows\(x\): .* without a copy"):
            scale(X.transpose(1, 0, 2))


def test_torch_and_jax(module):
    torch = pytest.importorskip("torch")
    pytest.importorskip("anyop.torch")
    with anyop.use("acme", ops=["foreign.scale"]):
        found = anyop.ops.foreign.scale(torch.from_numpy(X), 3.0)
        assert torch.equal(found, torch.from_numpy(X) * 3)
        assert torch.equal(torch.ops.foreign.scale(torch.from_numpy(X), 3.0), found)
        jax = pytest.importorskip("jax")
        jitted = jax.jit(lambda x: anyop.ops.foreign.scale(x, 3.0) + 1)
        np.testing.assert_array_equal(jitted(X), X * np.float32(3) + 1)


def kinds(name, call=CALL, **given):
    """What the function saw, by way of an implementation of that name."""
    library = str(name) if name else ""
    register_tvm_ffi("foreign.kinds", call, backend="kinds", library=library)
    arguments = {"xs": [X, X[1]], "y": X[0], "k": 1} | given
    with anyop.use("kinds"):
        return anyop.ops.foreign.kinds(**arguments).tolist()


def test_every_kind_of_argument(module):
    # y is (A, B) = (3, 4): ceil(12/4) - max(1, 2) - 2 % 2 = 1; 16 * 19 bytes; flat(y) has 12 elements.
    constants = [-0.25, 1, -1, 4, 0, 402, 304, 1012, 2, float(X[1, 0, 0])]
    assert kinds(module) == [4, 1, -1, -1, 0, 4, -1, 4016, 1, *constants]
    given = {
        "n": 7,
        "f": 0.5,
        "flag": True,
        "mode": "größe",
        "tag": "",
        "dtype": "int32",
        "ints": [1, 2],
    }
    found = kinds(module, k=4, **given)
    assert found == [4, 4, 7, 0.5, 1, 7, 0, 32, -1, *constants[:4], 2, *constants[5:]]


def test_absent_tensor(module):
    call = "testing.absent(out, y, numel(y))"

    def absent(out, y, numel):
        assert y is None
        np.from_dlpack(out)[:] = numel

    register_tvm_ffi("foreign.kinds", call, absent, backend="absent_y")
    with anyop.use("absent_y"):
        assert anyop.ops.foreign.kinds([X], None, 1).tolist() == [0] * 19


def test_errors_inside(module):
    with anyop.use("acme"):
        with pytest.raises(ValueError, match=r"^foreign.scale: scale: factor is -1"):
            anyop.ops.foreign.scale(X, -1.0)
        with pytest.raises(
            anyop.InternalError, match=r"^foreign.scale: scale: RuntimeError: factor is large"
        ):
            anyop.ops.foreign.scale(X, 1e7)
        np.testing.assert_array_equal(anyop.ops.foreign.scale(X), X * 2)  # and none stays behind


def test_wrong_number_of_arguments(module):
    register_tvm_ffi("foreign.scale", "scale(out, x)", backend="short", library=module)
    with anyop.use("short"), pytest.raises(TypeError, match="scale: "):
        anyop.ops.foreign.scale(X)


def test_python_functions(module):
    seen = []

    def half(out, x, factor):
        seen.append(threading.get_ident())
        if factor == 9:
            raise KeyError("nine")
        np.from_dlpack(out)[:] = np.from_dlpack(x) / 2

    tvm_ffi.register_global_func("testing.half", half)
    for function in (None, half, tvm_ffi.get_global_func("testing.half")):
        register_tvm_ffi("foreign.scale", "testing.half(out, x, factor)", function, backend="half")
        with anyop.use("half"):
            np.testing.assert_array_equal(anyop.ops.foreign.scale(X), X / 2)
            assert anyop.explain("foreign.scale", X).chosen == "half"
    with (
        anyop.use("half"),
        pytest.raises(anyop.InternalError, match=r"testing\.half: KeyError: .*nine"),
    ):
        anyop.ops.foreign.scale(X, 9.0)
    assert len(seen) == 4


def test_a_tensor_that_is_kept_is_an_error(module):
    register_tvm_ffi("foreign.stream", "keep(x, out)", backend="keeps", library=module)
    with (
        anyop.use("keeps"),
        pytest.raises(anyop.InternalError, match="keep: keeps a tensor beyond the call"),
    ):
        anyop.ops.foreign.stream(X)


def test_stream_on_the_cpu_is_left_alone(module):
    register_tvm_ffi("foreign.stream", "stream(x, out)", backend="streams", library=module)
    with anyop.use("streams"), tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 1), 4711):
        assert anyop.ops.foreign.stream(X).tolist() == [4711]


@pytest.mark.parametrize(
    ("backend", "why"),
    [
        ("absent", r"libabsent\.so.* \(needs absent\)"),
        ("nowhere", r"tvm-ffi has no global function 'nowhere\.scale'"),
        ("no_function", r"libforeign\.so has no function 'rescale'"),
        ("no_module", r"needs foreign_module_that_is_not_there, which is not installed"),
    ],
)
def test_what_is_missing_explains_itself(module, backend, why):
    explained = anyop.explain("foreign.scale", X)
    assert explained.chosen == "acme"
    with anyop.use(backend):
        explained = anyop.explain("foreign.scale", X)
        reasons = {found["backend"]: found["why_not"] for found in explained.candidates}
        assert explained.chosen == "acme" and explained.fallback
        assert re.search(why, reasons[backend]), reasons[backend]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("", "is no JSON object with a call"),
        ("scale", r"column 6 .*found its end, expected \( and"),
        ("scale(out, x", r"found its end, expected , or \)"),
        ("scale(out, x))", "expected nothing behind the call"),
        ("scale(x, factor)", "expected out among the arguments, which the function must write"),
        (
            "scale(out, weight)",
            r"found 'weight\)', expected an argument, a result or a size of foreign::scale\(",
        ),
        ("scale(out, rows(factor))", r"found 'factor\)\)', expected a tensor of"),
        ("scale(out, rows(x, 2))", r"expected \)"),
        ("scale(out, 'x)", "expected a closing '"),
        ("scale(out, [None])", "expected a number"),
        ("scale(out, 99999999999999999999)", "expected a number of 64 bits"),
        ("scale(out, ceil(D))", "expected / as in ceil"),
        ("scale(out, 1.2.3)", "expected"),
        ("scale(out, factor + 1)", r"expected , or \)"),
        ("scale(out, " + "(" * 3000 + "1", "expected a simpler expression"),
        ("scale(out, " + "1+(" * 50 + "1" + ")" * 50 + ")", "expected a simpler expression"),
        ("scale(out, " + "1, " * 64 + "1)", "expected at most 64 arguments"),
        ("scale(out" + " " * 5000 + ")", "more than 4096 characters"),
    ],
)
def test_mistakes_in_a_call(module, call, message):
    with pytest.raises(ValueError, match=r"(?s)^foreign\.scale: .*" + message):
        register_tvm_ffi("foreign.scale", call, backend="mistake")
    assert "mistake" not in anyop.backends("foreign.scale")


def test_broken_calls_are_refused_or_read(module):
    """Whatever the text, an answer."""
    random, bits = (
        np.random.default_rng(0),
        [*list("()[],'\"\\-*/+%. 19Deé\x00"), "rows(", "numel(", "ceil("],
    )
    answers = {True: 0, False: 0}
    for _ in range(1500):
        text = CALL.replace("kinds", "f", 1)
        for at in random.integers(0, len(text), random.integers(1, 3)):
            text = text[:at] + random.choice(bits) + text[at + random.integers(0, 3) :]
        try:
            register_tvm_ffi("foreign.kinds", text, backend="broken", library="libabsent.so")
            answers[True] += 1
        except ValueError:
            answers[False] += 1
    anyop.unregister("foreign.kinds", "broken")
    assert answers[True] > 20 and answers[False] > 1000


def test_mistakes_in_a_registration(module):
    for given, message in (
        ({"device": "gpu"}, "device 'gpu', expected one of any, cpu"),
        ({"module": "a", "library": "b"}, "more than one of function, module and library"),
        ({"when": "Q>3"}, "Q"),
    ):
        with pytest.raises(ValueError, match=message):
            register_tvm_ffi("foreign.scale", "f(out, x)", backend="mistake", **given)
    with pytest.raises(ValueError, match=r"foreign\.skale"):
        register_tvm_ffi("foreign.skale", "f(out, x)")
    with pytest.raises(TypeError, match="got int, expected a function"):
        register_tvm_ffi("foreign.scale", "f(out, x)", 3)


def test_overflow(module):
    register_tvm_ffi("foreign.kinds", f"f(out, {2**62} * k)", lambda out, k: None, backend="big")
    register_tvm_ffi("foreign.kinds", "f(out, workspace(-k))", lambda out, k: None, backend="small")
    with anyop.use("big"), pytest.raises(ValueError, match=r"f: \d+ \* k is too large"):
        anyop.ops.foreign.kinds([X], None, 2)
    with anyop.use("small"), pytest.raises(ValueError, match=r"f: workspace\(-k\) is negative"):
        anyop.ops.foreign.kinds([X], None, 2)


def test_from_c_without_python(module, tmp_path):
    (tmp_path / "caller.c").write_text(C_CALLER)
    where = Path(anyop.__file__).parent / "lib"
    paths = [f"-I{anyop.include_dir()}", f"-L{where}", "-lanyop", f"-Wl,-rpath,{where}"]
    subprocess.run(["gcc", "caller.c", "-o", "caller", *paths], cwd=tmp_path, check=True)
    library = next((module.parent / "out").rglob("libforeign.so"))

    def call(backend, **environment):
        environment = os.environ | {"ANYOP_FALLBACK": "error"} | environment
        command = [tmp_path / "caller", library, backend]
        return subprocess.run(command, env=environment, capture_output=True, text=True).stdout

    found = {"LD_LIBRARY_PATH": str(RUNTIME / "lib")}
    assert call("acme", **found) == "12\n"
    assert "is Python's, which does not run in this process" in call("python_made", **found)
    assert "cannot open libtvm_ffi" in call("acme", LD_LIBRARY_PATH="")


def test_two_threads(module):
    wrong = []

    def work(factor):
        for _ in range(2000):
            with anyop.use("acme"):
                if not np.array_equal(anyop.ops.foreign.scale(X, factor), X * np.float32(factor)):
                    wrong.append(factor)

    threads = [threading.Thread(target=work, args=(float(i),)) for i in (2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong and not any(thread.is_alive() for thread in threads)
