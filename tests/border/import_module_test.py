# SPDX-License-Identifier: Apache-2.0
"""`anyop import-module` drafts operators for a tvm-ffi library: they build, and run where they are right."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import anyop
import numpy as np
import pytest
from anyop.builder.build import build
from anyop.builder.import_module import import_module
from anyop.codegen.operators.folders import read_folders

tvm_ffi = importlib.util.find_spec("tvm_ffi")
if tvm_ffi is None or shutil.which("g++") is None:
    pytest.skip("tvm-ffi or g++ is not installed", allow_module_level=True)
RUNTIME = Path(tvm_ffi.submodule_search_locations[0])

SOURCE = """\
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>
using tvm::ffi::TensorView;

void Axpy(TensorView x, double a, TensorView y, TensorView out) {
  for (int64_t i = 0; i < x.numel(); ++i)
    static_cast<float*>(out.data_ptr())[i] =
        a * static_cast<float*>(x.data_ptr())[i] + static_cast<float*>(y.data_ptr())[i];
}
void Negate(TensorView x, bool really) {
  for (int64_t i = 0; i < x.numel(); ++i) static_cast<float*>(x.data_ptr())[i] *= really ? -1 : 1;
}
void Fill(TensorView out, tvm::ffi::Optional<int64_t> n, tvm::ffi::String mode, DLDataType dtype) {}
int64_t Count(TensorView x) { return x.numel(); }
void Numbers(tvm::ffi::Array<int64_t> sizes, TensorView out) {}
void Keep(tvm::ffi::Tensor x, TensorView out) {}
void Nothing(int64_t a) {}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(axpy, Axpy);
TVM_FFI_DLL_EXPORT_TYPED_FUNC_DOC(axpy, "Add \\"a\\" times x to y.\\n\\nMore of it.");
TVM_FFI_DLL_EXPORT_TYPED_FUNC(NegateAll, Negate);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(fill, Fill);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(count, Count);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(numbers, Numbers);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(keep, Keep);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(nothing, Nothing);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(lambda, Fill);
"""
PLAIN = 'extern "C" int {}(void*, const void*, int, void*) {{ return 0; }}\n'


def compile_library(folder: Path, name: str, source: str, *flags: object) -> Path:
    (folder / "library.cc").write_text(source)
    command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "library.cc", "-o", name, *flags]
    subprocess.run(list(map(str, command)), cwd=folder, check=True)
    return folder / name


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    """With metadata."""
    paths = ["-I", RUNTIME / "include", "-L", RUNTIME / "lib", "-ltvm_ffi", "-fvisibility=hidden"]
    source = "#define TVM_FFI_DLL_EXPORT_INCLUDE_METADATA 1\n" + SOURCE
    return compile_library(tmp_path_factory.mktemp("library"), "libvendor_ops.so", source, *paths)


def command(*arguments: object) -> subprocess.CompletedProcess:
    words = [sys.executable, "-m", "anyop", "import-module", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def test_the_command(library, tmp_path):
    out = tmp_path / "a folder"
    done = command(library, "--out", out)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        *(f"wrote {out}/{name}.toml" for name in ("negate_all", "axpy", "fill")),
        f"next: see to the lines CHECK, then: anyop build '{out}'",
    ]
    assert done.stderr.splitlines() == [
        "skipped count: returns int; an operator writes tensors that it is given",
        "skipped keep: takes ffi.Tensor, which it may keep; tensors are lent: write ffi::TensorView",
        "skipped lambda: operator 'lambda', a Python keyword, expected another name; rename the operator "
        "and its file",
        "skipped nothing: takes no tensor that it could write",
        "skipped numbers: takes ffi.Array, which no argument of an operator is",
    ]
    again = command(library, "--out", out)
    assert again.returncode == 1 and again.stdout == ""
    assert again.stderr.splitlines()[-1].endswith(
        "negate_all.toml is there already; nothing was written"
    )


def test_drafts_are_operators(library, tmp_path):
    drafts = import_module(library, tmp_path / "ops")
    operators, errors = read_folders([tmp_path / "ops"])
    assert not errors and len(drafts.written) == 3
    assert {op.name: op.schema for op in operators} == {
        "axpy": "vendor_ops::axpy(Tensor x0, float a1, Tensor x2) -> (Tensor x3)",
        "fill": "vendor_ops::fill(Tensor(a!) x0, int? a1, str a2, ScalarType a3) -> ()",
        "negate_all": "vendor_ops::negate_all(Tensor(a!) x0, bool a1) -> ()",
    }
    assert operators[0].brief == 'Add "a" times x to y.'
    text = (tmp_path / "ops" / "axpy.toml").read_text()
    assert [line[9:15] for line in text.splitlines() if line.startswith("# CHECK")] == [
        "is x3 ", "sizes;", "dtypes", "cpu is",
    ]  # fmt: skip


def test_drafts_serve_frameworks_as_they_are(library, tmp_path):
    import_module(library, tmp_path / "ops", namespace="imported")
    before = library.read_bytes()
    anyop.load(build(tmp_path / "ops", out=tmp_path / "out"))
    axpy, negate_all = anyop.ops.imported.axpy, anyop.ops.imported.negate_all
    x, y = np.arange(6, dtype=np.float32).reshape(2, 3), np.full((2, 3), 10, np.float32)
    np.testing.assert_array_equal(axpy(x, 2, y), 2 * x + y)
    negate_all(y, True)
    assert (y == -10).all()
    with pytest.raises(ValueError, match=r"imported.axpy: x2 has shape"):
        axpy(x, 2, y[0])
    torch = pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("anyop.torch", reason="anyop.torch is not there")
    tensors = torch.from_numpy(x), torch.from_numpy(y)
    assert torch.equal(torch.ops.imported.axpy(tensors[0], 2.0, tensors[1]), 2 * tensors[0] - 10)
    jax = pytest.importorskip("jax", reason="jax is not installed")
    found = jax.jit(lambda x, y: axpy(x, 2, y))(x, y)
    np.testing.assert_array_equal(np.asarray(found), 2 * x - 10)
    assert library.read_bytes() == before


def test_completed_by_hand(library, tmp_path):
    """What the comments ask for: sizes, and a default."""
    import_module(library, tmp_path / "ops", namespace="by_hand")
    path = tmp_path / "ops" / "axpy.toml"
    text = path.read_text().replace('x0 = "*", x2 = "*", x3 = "*"', 'x0 = "N", x2 = "N", x3 = "N"')
    path.write_text(text.replace("Tensor x2", "Tensor x2, float unused=1"))
    anyop.load(build(tmp_path / "ops", out=tmp_path / "out"))
    x = np.ones(3, np.float32)
    assert anyop.ops.by_hand.axpy(x, 2, x).tolist() == [3, 3, 3]
    with pytest.raises(ValueError, match="x0 has shape"):
        anyop.ops.by_hand.axpy(x[None], 2, x)


def test_a_library_that_tells_no_types(tmp_path):
    path = compile_library(tmp_path, "old.so", PLAIN.format("__tvm_ffi_twice"))
    assert import_module(path, tmp_path / "ops").skipped == {}
    text = (tmp_path / "ops" / "twice.toml").read_text()
    assert "# CHECK: the library does not tell types; two tensors are a guess." in text
    assert 'schema = "old::twice(Tensor x0) -> (Tensor x1)"' in text


def test_the_device_is_that_of_the_code(tmp_path):
    source = (
        PLAIN.format("__tvm_ffi_twice")
        + '__attribute__((section(".nv_fatbin"), used)) int code = 1;\n'
    )
    import_module(compile_library(tmp_path, "gpu.so", source), tmp_path / "ops")
    assert 'cuda = { file = "gpu.so"' in (tmp_path / "ops" / "twice.toml").read_text()


def failing(path: Path, tmp_path: Path) -> str:
    done = command(path, "--out", tmp_path / "ops")
    assert (
        done.returncode == 1 and not (tmp_path / "ops").exists() and "Traceback" not in done.stderr
    )
    return done.stderr


def test_errors(library, tmp_path):
    assert "No such file or directory" in failing(tmp_path / "gone.so", tmp_path)
    (tmp_path / "text.so").write_text("text\n")
    assert "text.so is no 64-bit ELF file" in failing(tmp_path / "text.so", tmp_path)
    assert "ELF type" in failing(
        compile_library(tmp_path, "a.o", "", "-r", "-nostdlib", "-no-pie"), tmp_path
    )
    path = compile_library(tmp_path, "other.so", "int f;\n")
    assert "other.so exports no function of tvm-ffi (__tvm_ffi_<name>)" in failing(path, tmp_path)
    data = bytearray(library.read_bytes())
    data[18] = 22
    (tmp_path / "s390x.so").write_bytes(data)
    assert "s390x.so is for s390x, and this machine is" in failing(tmp_path / "s390x.so", tmp_path)
    (tmp_path / "cut.so").write_bytes(library.read_bytes()[:5000])
    assert "cut.so" in failing(tmp_path / "cut.so", tmp_path)


def test_a_library_that_cannot_be_loaded(tmp_path):
    both = PLAIN.format("__tvm_ffi_f") + PLAIN.format("__tvm_ffi__metadata_f")
    path = compile_library(tmp_path, "lacks.so", "int Missing(); int value = Missing();\n" + both)
    assert "lacks.so cannot be loaded: " in failing(path, tmp_path)
    ends = "#include <stdlib.h>\n__attribute__((constructor)) void End() { abort(); }\n"
    path = compile_library(tmp_path, "ends.so", ends + both)
    assert "ends.so cannot be loaded: " in failing(path, tmp_path)


def test_only_functions_that_cannot_be_operators(tmp_path):
    path = compile_library(tmp_path, "none.so", PLAIN.format("__tvm_ffi_lambda"))
    assert failing(path, tmp_path).splitlines()[-1] == (
        f"anyop import-module: no function of {path} can be an operator"
    )
