# SPDX-License-Identifier: Apache-2.0
"""Kernels that are texts, and what a kernel says of itself: the table's rows, and every class of mistake."""

from __future__ import annotations

import json

import pytest

from ..c.c_table import load_tables
from ..conftest import compile_c
from ..generate import generate
from ..operators.operator_file import read_operator
from ..python.metadata import metadata
from ..schema.source import SchemaError

SCHEMA = """\
schema = "acme::scale(Tensor x, Tensor? weight, int k, float eps=1e-6) -> (Tensor out, Tensor? sums)"
conditions = ["k <= D"]
{deterministic}
[shapes]
x = "*X T D"
weight = "D"
out = "* k"
sums = "T"
[kernels]
{kernels}
"""
PYTHON = (
    "import numpy as np\nTABLE = 3\ndef scale(x, weight, k, eps, out=None): ...\ndef few(x): ...\n"
)


def write(folder, kernels: str, deterministic: str = ""):
    path = folder / "scale.toml"
    text = SCHEMA.format(kernels=kernels, deterministic=deterministic)
    path.write_text(text.replace('out = "* k"', 'out = "*X k"'))
    for name in ("scale.cc", "scale.cu", "fast.cc"):
        (folder / name).touch()
    (folder / "scale.py").write_text(PYTHON)
    (folder / "broken.py").write_text("def scale(:\n")
    return path


GOOD = """\
cpu = { file = "scale.cc", when = "dtype=float32  D<=1024 k%8=0" }
cuda = { file = "scale.cu", deterministic = true }
fast = { file = "fast.cc", device = "cpu", name = "fast.cpu", priority = 3 }
aten = "(mul.Tensor(x, D), sum.dim_IntList(opmath(x), [0]) if weight is None else x)"
reference = { file = "scale.py", when = "rows=1" }
triton = { file = "scale.py", priority = 7 }
vendor = { call = "lib.scale(out, sums, rows(x), weight, D, -1.5, None)", library = "libvendor.so" }
"""


def test_rows_of_the_table(tmp_path):
    good = GOOD.replace("rows=1", "numel(X)=1")
    write(tmp_path, good, 'deterministic = ["cpu", "aten"]')
    tables = {defines: compiled(tmp_path, *defines) for defines in ((), ("-DANYOP_WITH_CUDA=1",))}
    without, table = [
        {kernel.backend.decode(): kernel for kernel in table.kernels[: table.num_kernels]}
        for table in tables.values()
    ]
    assert list(without) == ["cpu", "fast", "aten", "reference", "triton", "vendor"]
    assert list(table) == ["cpu", "cuda", "fast", "aten", "reference", "triton", "vendor"]
    rows = {name: (k.source, k.device_type, k.priority, k.flags) for name, k in table.items()}
    assert rows == {
        "cpu": (b"scale.cc", 1, 0, 1),
        "cuda": (b"scale.cu", 2, 0, 1),
        "fast": (b"fast.cc", 1, 3, 0),
        "aten": (b"scale.toml", 0, -100, 1),
        "reference": (b"scale.py", 1, -200, 0),
        "triton": (b"scale.py", 2, 7, 0),
        "vendor": (b"scale.toml", 0, -50, 0),
    }
    assert {name for name, kernel in table.items() if kernel.run} == {"cpu", "cuda", "fast"}
    assert (table["fast"].name, table["cpu"].name) == (b"fast.cpu", None)
    assert table["cpu"].when == b"dtype=float32 D<=1024 k%8=0" and table["aten"].when is None
    forms = {name: kernel.form for name, kernel in table.items() if kernel.form}
    assert forms == {
        "aten": b"aten", "reference": b"python", "triton": b"python", "vendor": b"tvm_ffi",
    }  # fmt: skip
    texts = {name: json.loads(table[name].text) for name in forms}
    assert texts["aten"]["sizes"] == {"D": ["x", -1]} and texts["aten"]["call"].startswith("(mul.")
    assert texts["reference"] == {
        "file": "scale.py", "function": "scale", "framework": "numpy", "needs": [], "source": PYTHON,
    }  # fmt: skip
    assert (texts["triton"]["framework"], texts["triton"]["needs"]) == ("torch", ["triton"])
    assert texts["vendor"] == {
        "call": "lib.scale(out, sums, rows(x), weight, D, -1.5, None)",
        "module": "", "library": "libvendor.so", "needs": [],
    }  # fmt: skip


def compiled(folder, *defines):
    """The operator's table as the compiler made it."""
    made = generate([folder], "acme")
    for name, text in made.files.items():
        path = folder / "gen" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    kernels = "".join(
        f"int {name}(void);\nint {name}(void) {{ return 0; }}\n"
        for name in ("acme_scale_cpu", "acme_scale_cuda", "acme_scale_fast")
    )
    (folder / "gen" / "kernels.c").write_text(kernels)
    library = folder / f"acme{len(defines)}.so"
    sources = [folder / "gen" / name for name in (*made.sources, "kernels.c")]
    flags = ["-std=c11", "-shared", "-fPIC", *defines, "-I", folder / "gen"]
    compile_c(*flags, *sources, "-o", library)
    return load_tables(str(library))[1]["scale"]


def test_metadata_and_headers(tmp_path):
    op = read_operator(write(tmp_path, GOOD.replace("rows=1", "numel(X)=1")))
    found = {kernel["backend"]: kernel for kernel in metadata(op)["kernels"]}
    assert found["fast"] == {
        "backend": "fast", "name": "fast.cpu", "device": "cpu", "form": "source", "file": "fast.cc",
        "arch": None, "priority": 3, "when": None, "deterministic": False, "choices": 0,
    }  # fmt: skip
    assert found["aten"]["sizes"] == {"D": ("x", -1)} and found["aten"]["file"] is None
    assert "source" not in found["reference"] and found["triton"]["device"] == "cuda"
    header = next(
        text
        for name, text in generate([tmp_path], "a").files.items()
        if name.endswith("ops/scale.h")
    )
    assert "acme_scale_fast(" in header and "acme_scale_aten" not in header


def test_only_foreign_kernels_need_no_sources(tmp_path):
    write(tmp_path, 'aten = "(x, None)"')
    made = generate([tmp_path], "acme")
    assert made.sources == ["acme/ops/scale_table.c", "acme_library.c"]
    assert compiled(tmp_path).num_kernels == 1


def test_a_triton_file_beside_is_found(tmp_path):
    path = write(tmp_path, "")
    path.write_text(path.read_text().replace("[kernels]\n", ""))
    (tmp_path / "scale_triton.py").write_text(PYTHON)
    assert [kernel.backend for kernel in read_operator(path).kernels] == ["cpu", "cuda", "triton"]


MISTAKES = """\
aten = "(mul.Tensor(x, w), None)" | 'w' in the call | weight, k, eps, out
aten = "(mul.Tensor(x, weigt), None)" | 'weigt' in the call | did you mean 'weight'?
aten = "mul.Tensor(x" | call 'mul.Tensor(x' ('(' was never closed) | correct it
aten = "a = x" | call 'a = x' | write the result last
aten = "x = mul(x, 2); (x, x)" | 'x' given again | rename it
aten = "(a.b.c(x), x)" | a call of 'a.b.c' | an operator of ATen
aten = "(x.__class__(3), x)" | a call of 'x.__class__' | correct it
aten = "((lambda: x)(), x)" | a call of 'lambda: x' | correct it
aten = "(x[k], x)" | 'x[k]' in the call | write it with these
aten = "([x for x in y], x)" | '[x for x in y]' in the call | write it with these
aten = "(mul(*x), x)" | '*x' in the call | write it with these
aten = "(mul(**x), x)" | 'mul(**x)' in the call | write it with these
aten = "(x @ weight, x)" | 'x @ weight' in the call | write it with these
aten = "(x if weight == 3 else x, x)" | 'weight == 3' in the call | write it with these
aten = "(x, x, x)" | 3 results in the call | 2 (out or sums)
aten = "" | call is '' | write one sentence
aten = 3 | call is 3 | text in quotes
aten = { cal = "x" } | unknown key of a kernel 'cal' | did you mean 'call'?
aten = { call = "(x, x)", file = "scale.py" } | unknown key of a kernel in the form of aten 'file' | remove it
python = { file = "scal.py" } | kernel file 'scal.py' is missing | did you mean 'scale.py'?
python = { file = "scale.py", function = "scal" } | scale.py without the function 'scal' | did you mean 'scale'?
python = { file = "scale.py", function = "few" } | scale.py: few(x) | a function of x, weight, k and eps
python = { file = "scale.py", function = 3 } | without the function '3' | TABLE
python = "broken.py" | broken.py is no Python (line 1 | correct the file
python = { file = "scale.py", framework = "tourch" } | framework 'tourch' | did you mean 'torch'?
python = { file = "scale.py", needs = "numba" } | needs is 'numba' | write it like
python = ["scale.py", "broken.py"] | 2 Python files | import the others
python = ["scale.py", "scale.cc"] | kernel files scale.py and scale.cc | in a kernel of their own
python = { file = "scale.py", device = "gpu" } | unknown device 'gpu' | cpu, cuda, hip or any
p-y = "scale.py" | backend 'p-y' | rename it
fast = "fast.cc" | unknown backend 'fast' | or say what it runs on
fast = { file = "fast.cc", device = "any" } | unknown device 'any' | use one of these
cuda = { file = "scale.cu", device = "cpu" } | device 'cpu' of the backend cuda | remove it
a = { call = "f(out, sums, x)", library = "l", module = "m" } | module and library | remove the other
a = { call = "f(out, x)" } | call without 'sums' | pass sums
a = { call = "f(out, sums, y)" } | 'y' in the call | a size (x, weight, k, eps, out, sums, T or D)
a = { call = "f(out, sums, row(x))" } | 'row(x)' in the call | did you mean 'rows'?
a = { call = "f(out, sums, rows(k))" } | 'rows(k)' in the call | a tensor (x, weight, out or sums)
a = { call = "f(out, sums, x + 1)" } | 'x' in an expression of the call | sizes and int arguments
a = { call = "f(out, sums, -True)" } | 'True' in the call | a number
a = { call = "f(out, sums, workspace(x))" } | 'x' in an expression of the call | sizes and int arguments
a = { call = "f(out, sums, numel(D))" } | 'numel(D)' in the call | a tensor
a = { call = "f(out, sums=sums)" } | call 'f(out, sums=sums)' | arguments by place
a = { call = "f" } | call 'f' | write it like
a = { call = "f(out, sums)", name = "a b" } | name 'a b' | rename it
a = { call = "f(out, sums)", name = "b" }<b = { call = "f(out, sums)" } | two kernels called 'b' | rename one
a = { call = "f(out, sums)", deterministic = 1 } | deterministic 1 | correct it
cpu = { file = "scale.cc", choices = 1 } | choices 1 | correct it
cpu = { file = "scale.cc", choices = true } | choices True | correct it
cpu = { file = "scale.cc", choices = 1001 } | choices 1001 | correct it
aten = { call = "mul(x, x)", choices = 4 } | unknown key of a kernel in the form of aten 'choices' | remove it
cuda_sm90 = { file = "scale.cu", device = "cpu" } | device 'cpu' of the backend cuda_sm90 | remove it
cuda = { file = "scale.cu", arch = "sm_90" } | arch 'sm_90' | quote it
cuda = { file = "scale.cu", arch = "90a+" } | arch '90a+' | quote it
cuda = { file = "scale.cu", when = "capability>=9" } | 'capability>=9' in when | write it like
cuda = { file = "scale.cu", when = "capability(x)>=9.0" } | 'capability(x)>=9.0' in when | write it like
cpu = { file = "scale.cc", when = "D ~ 3" } | 'D' in when | a comparison
cpu = { file = "scale.cc", when = "E=3" } | 'E' in when | a size or an argument (T, D, k or eps)
cpu = { file = "scale.cc", when = "dtyp=float32" } | 'dtyp' in when | did you mean 'dtype'?
cpu = { file = "scale.cc", when = "dtype=float33" } | unknown dtype 'float33' | did you mean 'float32'?
cpu = { file = "scale.cc", when = "dtype(y)=float32" } | dtype(y) in when | a tensor (x, weight, out or sums)
cpu = { file = "scale.cc", when = "dtype<float32" } | 'dtype<float32' in when | dtype!=...
cpu = { file = "scale.cc", when = "device=gpu" } | device 'gpu' in when | cpu, cuda or hip
cpu = { file = "scale.cc", when = "rank(Y)=3" } | rank(Y) in when | a tensor or a group
cpu = { file = "scale.cc", when = "contiguous(x)=2" } | 'contiguous(x)=2' in when | contiguous(x)=1 or =0
cpu = { file = "scale.cc", when = "given(weights)=1" } | given(weights) in when | did you mean 'weight'?
cpu = { file = "scale.cc", when = "given(weight)>0" } | 'given(weight)>0' in when | given(weight)=1 or =0
cpu = { file = "scale.cc", when = "eps%2=0" } | 'eps' in when | a size or an argument (T, D or k)
cpu = { file = "scale.cc", when = "eps=0.5" } | 'eps=0.5' in when | a whole number of 64 bits
cpu = { file = "scale.cc", when = "D=9223372036854775808" } | in when | a whole number of 64 bits
cpu = { file = "scale.cc", when = "D%0=1" } | 'D%0=1' in when | a whole number of 64 bits
cpu = { file = "scale.cc", when = "D=many" } | 'D=many' in when | a whole number of 64 bits
cpu = { file = "scale.cc", when = "size(x)=3" } | 'size(x)=3' in when | dtype(...), rank(...)
cpu = { file = "scale.cc", when = "" } | when is '' | write one sentence
"""


@pytest.mark.parametrize("case", MISTAKES.splitlines())
def test_mistakes(case, tmp_path):
    kernels, found, fix = (part.strip() for part in case.split(" | "))
    path = write(tmp_path, kernels.replace("<", "\n", 1) if kernels.count("}<") else kernels)
    with pytest.raises(SchemaError) as error:
        read_operator(path)
    before, behind = str(error.value).split(", expected ", 1)
    line = len(path.read_text().rstrip().splitlines())
    assert before.startswith(f"{path}:{line}: "), before
    assert found in before and fix in behind, str(error.value)


@pytest.mark.parametrize("value, found", [('["cpus"]', "did you mean 'cpu'?"), ('"cpu"', "a list")])
def test_mistakes_of_deterministic(value, found, tmp_path):
    path = write(tmp_path, 'cpu = "scale.cc"', f"deterministic = {value}")
    with pytest.raises(SchemaError, match=r"scale.toml:3: .*deterministic") as error:
        read_operator(path)
    assert found in str(error.value)


def test_several_kernels_of_a_device(tmp_path):
    """Each is an implementation, for the GPUs that its arch names."""
    write(
        tmp_path,
        """
cuda = { file = "scale.cu", arch = "80+", choices = 4 }
cuda_sm90 = { file = "scale.cu", arch = "90a" }
cuda_sm90_any = { file = "scale.cu", arch = "90", when = "T>4" }
cuda_new = { file = "scale.cu", arch = "100f", priority = -1, when = "capability>=10.3" }
""",
    )
    op = read_operator(tmp_path / "scale.toml")
    found = [(k.function, k.device, k.priority, k.when, k.choices) for k in op.kernels]
    assert found == [
        ("acme_scale_cuda", "cuda", 0, "capability>=8.0", 4),
        ("acme_scale_cuda_sm90", "cuda", 10, "capability=9.0", 0),
        ("acme_scale_cuda_sm90_any", "cuda", 10, "T>4 capability>=9.0 capability<10.0", 0),
        ("acme_scale_cuda_new", "cuda", -1, "capability>=10.3", 0),
    ]
