# SPDX-License-Identifier: Apache-2.0
"""anyop.jit.load: operators from a snippet, by its functions or by schemas; the second time from the cache."""

from __future__ import annotations

import itertools
import re
import shutil
from pathlib import Path

import anyop
import anyop.jit
import numpy as np
import pytest
import small_builds as sb

cache_folder = sb.cache_folder
pytestmark = sb.needs_compiler
NVCC = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
_count = itertools.count()
SAXPY = """\
void saxpy(double a, const float* x, float* y, AnyopCall* call) {
  for (int64_t i = 0; i < 4; ++i) y[i] += a * x[i];
}
"""
SCALE = """\
#include "{name}/ops/scale.h"
int32_t {name}_scale_cpu(const ScaleArgs* args, AnyopCall* call) {{
  auto x = (const float*)args->x->data;
  auto out = (float*)args->out->data;
  for (int64_t r = 0; r < args->rows; ++r) out[r] = {factor} * x[r];
  return args->rows < 9 ? kAnyopOk : call->fail(call, kAnyopValueError, "too many");
}}
"""
SCHEMA = {
    "schema": "scale(Tensor x) -> Tensor",
    "shapes": {"x": "*", "out": "*"},
    "dtypes": {"x": ["float32"], "out": "x"},
}


@pytest.fixture
def name() -> str:
    """One that no other test of this process has."""
    return f"snippet{next(_count)}"


@pytest.fixture
def log(cache_folder, tmp_path, monkeypatch) -> Path:
    """Of the compiler."""
    log = tmp_path / "log"
    monkeypatch.setenv("CXX", str(sb.write_compiler(tmp_path / "bin" / "g++", log)))
    return log


def test_a_function_on_raw_pointers(name, log):
    made = anyop.jit.load(name, source=SAXPY, functions=["saxpy"])
    x, y = np.arange(4, dtype=np.float32), np.ones(4, np.float32)
    made.saxpy(2.0, x, y)
    assert y.tolist() == [1, 3, 5, 7]
    assert (
        made.namespace == name and f"{name}.saxpy" in anyop.list_ops() and Path(made.path).exists()
    )
    with pytest.raises(TypeError, match="x has dtype float64, expected float32"):
        made.saxpy(2.0, x.astype(np.float64), y)
    with pytest.raises(ValueError, match="contiguous"):
        made.saxpy(2.0, np.zeros((4, 2), np.float32)[:, 0], y)


PARAMETERS = """\
void elements(const double* d, const int8_t* i8, const uint8_t* u8, const int16_t* i16, const int* i32,
              const int64_t* i64, const bool* b, float* __restrict__ out) {
  out[0] = d[0]; out[1] = i8[0]; out[2] = u8[0]; out[3] = i16[0]; out[4] = i32[0]; out[5] = i64[0]; out[6] = b[0];
}
int32_t values(const AnyopTensor* view, const int32_t* i32, AnyopTensor* filled, float* out, int64_t n, int32_t n32,
               int plain, double x, float x32, bool flag, const char* text, void* stream, AnyopCall* call) {
  out[0] = i32[0]; out[1] = n; out[2] = n32; out[3] = plain; out[4] = x; out[5] = x32; out[6] = flag;
  out[7] = text[1]; out[8] = view->shape[0] * 10 + view->ndim; out[9] = stream == nullptr;
  ((float*)filled->data)[0] = 5;
  return n == 77 ? call->fail(call, kAnyopValueError, "n is 77") : kAnyopOk;
}
"""


def test_every_kind_of_parameter(name, cache_folder):
    made = anyop.jit.load(name, source=PARAMETERS, functions=["elements", "values"])
    dtypes = ("float64", "int8", "uint8", "int16", "int32", "int64", "bool")
    out = np.zeros(7, np.float32)
    made.elements(*(np.array([n], dtype) for n, dtype in enumerate(dtypes, start=1)), out)
    assert out.tolist() == [1, 2, 3, 4, 5, 6, 1]
    view, filled, out = (
        np.zeros((3, 4), np.float16).T,
        np.zeros(1, np.float32),
        np.zeros(10, np.float32),
    )
    made.values(view, np.int32([8]), filled, out, 9, 10, 11, 12.5, 13.5, True, "hey")
    assert out.tolist() == [8, 9, 10, 11, 12.5, 13.5, 1, ord("e"), 42, 1] and filled[0] == 5
    with pytest.raises(ValueError, match="n is 77"):
        made.values(view, np.int32([8]), filled, out, 77, 10, 11, 12.5, 13.5, True, "hey")


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (
            "void f(std::vector<float> x) {}",
            "f: parameter 'std::vector<float> x', expected AnyopTensor*, a pointer to float",
        ),
        ("void f(const float** x) {}", "f: parameter 'const float** x'"),
        ("void f(unsigned long n, const float* x) {}", "f: parameter 'unsigned long n'"),
        ("void f(const float*) {}", "f: parameter 'const float*'"),
        ("void f(char* text, float* x) {}", "f: parameter 'char* text'"),
        ("void f(int64_t n) {}", "f has no tensor among its parameters"),
        ("void f() {}", "f has no tensor among its parameters"),
        (
            f"void f({', '.join(f'float* x{i}' for i in range(9))}) {{}}",
            "f has 9 tensors, at most 8 can be called so",
        ),
        ("void g(float* x) {}", "no function f in the source"),
        ("float f(float* x) { return 0; }", "no function f in the source"),
        ("// void f(float* x) {\nint a;", "no function f in the source"),
        ("void f(float* x);", "no function f in the source"),
    ],
)
def test_functions_that_cannot_be_called_are_refused(source, says, name, cache_folder):
    with pytest.raises(ValueError, match=re.escape(says)):
        anyop.jit.load(name, source=source, functions=["f"])
    assert f"{name}.f" not in anyop.list_ops()


@pytest.mark.parametrize("form", ["dict", "text"])
def test_a_schema_checks_and_allocates(form, name, cache_folder):
    text = 'schema = "scale(Tensor x) -> Tensor"\nshapes = {x = "*", out = "*"}\n'
    text += 'dtypes = {x = ["float32"], out = "x"}\n'
    schema = SCHEMA if form == "dict" else text
    made = anyop.jit.load(name, source=SCALE.format(name=name, factor=3), schemas=[schema])
    assert made.scale(np.float32([1, 2])).tolist() == [3, 6]
    with pytest.raises(ValueError, match="too many"):
        made.scale(np.zeros(9, np.float32))
    with pytest.raises(TypeError, match="x has dtype int64"):
        made.scale(np.zeros(2, np.int64))


def test_the_second_time_comes_from_the_cache(name, log):
    source = SCALE.format(name=name, factor=3)
    first = anyop.jit.load(name, source=source, schemas=[SCHEMA])
    second = anyop.jit.load(name, source=source, schemas=[SCHEMA])
    assert (first.path, first.namespace) == (second.path, second.namespace) and sb.links(log) == 1
    program = (
        "import sys, anyop.jit, numpy as np\n"
        f"made = anyop.jit.load({name!r}, source=sys.argv[1], schemas=[{SCHEMA!r}])\n"
        "print(made.scale(np.float32([2]))[0], made.path)"
    )
    process = sb.python(
        program, source, env=sb.environment(log.parent / "cache", CXX="", PATH="/nowhere")
    )
    assert process.communicate(timeout=60) == (f"6.0 {first.path}\n", "")


def test_a_cell_of_a_notebook_that_is_run_again(name, log):
    """Another text is another operator; the earlier one stays what it was."""
    cells = [
        anyop.jit.load(name, source=SCALE.format(name=name, factor=n), schemas=[SCHEMA])
        for n in (2, 3, 2, 3, 4)
    ]
    assert [cell.scale(np.float32([1]))[0] for cell in cells] == [2, 3, 2, 3, 4]
    assert sb.links(log) == 3 and len({cell.namespace for cell in cells}) == 3
    assert cells[0].namespace == cells[2].namespace == name


def test_a_header_that_changes_between_two_runs_of_a_cell(name, log, tmp_path):
    """The text is the same, what it includes is not."""
    found = []
    for factor in (2, 3):
        (tmp_path / "factor.h").write_text(f"#define FACTOR {factor}\n")
        source = f'#include "factor.h"\n{SCALE.format(name=name, factor="FACTOR")}'
        made = anyop.jit.load(name, source=source, schemas=[SCHEMA], flags=[f"-I{tmp_path}"])
        found.append(made.scale(np.float32([1]))[0])
    assert found == [2, 3] and sb.links(log) >= 2


def test_files_are_compiled_where_they_lie(name, log, tmp_path):
    (tmp_path / "saxpy.h").write_text("#define TWICE 2\n")
    file = tmp_path / "my saxpy.cc"
    file.write_text(
        '#include "anyop/kernel.h"\n#include "saxpy.h"\n' + SAXPY.replace("a * x", "TWICE * a * x")
    )
    made = anyop.jit.load(name, sources=[file], functions=["saxpy"])
    y = np.zeros(4, np.float32)
    made.saxpy(1.0, np.ones(4, np.float32), y)
    assert y.tolist() == [2, 2, 2, 2]
    file.write_text(file.read_text().replace("y[i] +=", "y[i] ="))
    again = anyop.jit.load(name, sources=[file], functions=["saxpy"])
    again.saxpy(1.0, np.ones(4, np.float32), y)
    assert y.tolist() == [2, 2, 2, 2] and again.path != made.path


def test_several_functions_of_several_files(name, cache_folder, tmp_path):
    for op, number in (("one", 1), ("two", 2)):
        (tmp_path / f"{op}.cc").write_text(f"void {op}(float* x) {{ x[0] = {number}; }}\n")
    made = anyop.jit.load(
        name, sources=[tmp_path / "one.cc", tmp_path / "two.cc"], functions=["one", "two"]
    )
    x = np.zeros(1, np.float32)
    for op, number in (("one", 1), ("two", 2)):
        getattr(made, op)(x)
        assert x[0] == number


def test_flags_count(name, cache_folder):
    source = "void f(float* x) { x[0] = FACTOR; }"
    x = np.zeros(1, np.float32)
    for factor in (4, 6):
        anyop.jit.load(name, source=source, functions=["f"], flags=[f"-DFACTOR={factor}"]).f(x)
        assert x[0] == factor


def test_a_compile_error_names_the_line_of_the_text(name, cache_folder):
    with pytest.raises(anyop.BuildError) as caught:
        anyop.jit.load(
            name, source="int fine;\nvoid f(float* x) {\n  x[0] = wrong;\n}", functions=["f"]
        )
    first = str(caught.value).splitlines()[0]
    assert re.match(
        rf"{name} could not be built: {name}\.cc:3:10: error: .wrong. was not declared", first
    ), first


def test_a_mistake_in_a_schema_is_named(name, cache_folder):
    with pytest.raises(ValueError, match=r"scale\.toml:\d+: .*dtipes"):
        anyop.jit.load(name, source="int x;", schemas=[{**SCHEMA, "dtipes": {}}])


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"functions": ["f"]}, ValueError, "give either source, a text, or sources, a list of files"),
        ({"source": "", "sources": ["x.cc"], "functions": ["f"]}, ValueError, "give either source"),
        ({"source": "int x;"}, ValueError, "give either functions, names in the source, or schemas"),
        ({"source": "int x;", "functions": ["f"], "schemas": [SCHEMA]}, ValueError, "give either functions"),
        ({"source": "int x;", "functions": ["F;x"]}, ValueError, "function 'F;x': expected a name of lower"),
        ({"source": "int x;", "functions": [3]}, ValueError, r"functions is \(3,\), expected a list of str"),
        ({"source": "int x;", "functions": "f"}, ValueError, "functions is 'f', expected a list"),
        ({"source": 3, "functions": ["f"]}, ValueError, "source is 3, expected a text"),
        ({"sources": "x.cc", "functions": ["f"]}, ValueError, "sources is 'x.cc', expected a list"),
        ({"sources": ["nowhere.cc"], "functions": ["f"]}, FileNotFoundError, "no source file at .*nowhere.cc"),
        ({"source": "int x;", "schemas": [{}]}, ValueError, "schema = None, expected 'op"),
        ({"source": "int x;", "schemas": [3]}, ValueError, r"schemas is \(3,\), expected a list of str or Mapping"),
        ({"source": "int x;", "schemas": SCHEMA}, ValueError, r"schemas is \{.*, expected a list"),
        ({"source": "int x;", "schemas": ["no toml"]}, ValueError, "a schema's text is no TOML"),
        ({"source": "int x;", "schemas": [{**SCHEMA, "shapes": {"x": b""}}]}, ValueError, "a schema has the value"),
        ({"source": "int x;", "functions": ["f"], "backend": "metal"}, ValueError, "backend 'metal', expected one of"),
        ({"source": "int x;", "functions": ["f"], "flags": "-O3"}, ValueError, "flags is '-O3', expected a list"),
        ({"source": "int x;", "functions": ["f"], "arch": "x", "backend": "cuda"}, ValueError, "architecture 'x'"),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused(options, error, says, name, cache_folder):
    with pytest.raises(error, match=says):
        anyop.jit.load(name, **options)
    assert not cache_folder.exists() or sb.entries(cache_folder) == []


@pytest.mark.parametrize("bad", ["../../x", "x;touch pwn", "", "a b", "ä", "x" * 65])
def test_bad_names_are_refused(bad, cache_folder):
    with pytest.raises(ValueError, match="the name of the library is"):
        anyop.jit.load(bad, source=SAXPY, functions=["saxpy"])
    assert not cache_folder.exists()


def test_a_source_for_cuda_compiles(name, cache_folder):
    """Without a GPU it is built and loaded, and says what is missing when it is called."""
    if not NVCC:
        pytest.skip("there is no nvcc")
    source = """\
__global__ void twice_kernel(float* x) { x[threadIdx.x] *= 2; }
void twice(float* x, void* stream) { twice_kernel<<<1, 4, 0, static_cast<cudaStream_t>(stream)>>>(x); }
"""
    made = anyop.jit.load(name, source=source, functions=["twice"], arch=["80"])
    assert b"twice_kernel" in Path(made.path).read_bytes()
    with pytest.raises((NotImplementedError, ValueError), match="has no kernel for cpu"):
        made.twice(np.ones(4, np.float32))
