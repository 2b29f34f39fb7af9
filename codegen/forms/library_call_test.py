# SPDX-License-Identifier: Apache-2.0
"""Calls of a vendor's library of operators: the C that is written for them, and mistakes in their texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..__main__ import main
from ..conftest import compile_c
from ..generate import generate
from .library_call import MOST_OBJECTS

SCHEMA = """\
schema = "acme::mixed(Tensor x, Tensor y, Tensor? z, int k, float factor, bool flag=True, str mode='a', int? n=None, \
float? scale=None) -> (Tensor out, Tensor sums)"
brief = "Mixes."
[shapes]
x = "* D"
y = "D D"
z = "D"
out = "* D"
sums = "*"
[dtypes]
x = ["float32"]
y = "x"
z = "x"
out = "x"
sums = "x"
[layouts]
z = "strided"
[kernels]
"""
CALL = """aclnnMixed(rows(x), transposed(y), z, [D, k], scalar(factor), scalar(-0.5), dtype(out), factor:double, \
1e-3:double, k, k:int8, D//2, -1, 0:int8, flag, flag:int64, true, \
mode == 'a', None, reduced(x, float16), reduced(x, float32, 8), 'BNSD', scale else 1/sqrt(D), out, sums)"""


def test_an_adapter_compiles_without_a_warning(tmp_path):
    (tmp_path / "mixed.toml").write_text(
        SCHEMA + f'ascend = {{ call = "{CALL}", within = ["k <= D"] }}\n'
    )
    made = generate([tmp_path], "mixed")
    for name, text in made.files.items():
        path = tmp_path / "gen" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    adapter = "acme/ops/mixed_ascend.c"
    assert adapter in made.sources
    flags = ["-std=c11", "-O1", "-fPIC", "-Wshadow", "-Wno-sign-conversion", "-c"]
    compile_c(*flags, "-I", tmp_path / "gen", tmp_path / "gen" / adapter, "-o", tmp_path / "a.o")
    pointers = ", ".join(6 * ["const void*"])
    numbers = "int32_t, double, double, int64_t, int8_t, int64_t, int64_t, int8_t, _Bool, int64_t, _Bool, int64_t"
    ends = ", ".join(
        [*(4 * ["const void*"]), "double", *(2 * ["const void*"]), "uint64_t*", "void**"]
    )
    assert f"int32_t (*prototype)({pointers}, {numbers}, {ends});" in made.files[adapter]


@pytest.mark.parametrize(
    ("call", "found"),
    [
        ("mixed(x, out, sums)", "call 'mixed(x, out, sums)'"),
        ("aclnnMixed(x, out, sums); abort(", "call 'aclnnMixed(x, out, sums); abort('"),
        ("aclnnMixed(x, out)", "call without 'sums'"),
        ("aclnnMixed(w, out, sums)", "'w' in the call"),
        ("aclnnMixed(rows(z), out, sums)", "'rows(z)', whose strides are free"),
        ("aclnnMixed(rows(k), out, sums)", "'k' in the call"),
        ("aclnnMixed(reduced(x), out, sums)", "'reduced(x)' in the call"),
        ("aclnnMixed(reduced(x, real), out, sums)", "unknown dtype 'real'"),
        ("aclnnMixed(factor, out, sums)", "'factor', of type float"),
        ("aclnnMixed(n, out, sums)", "'n' in the call"),
        ("aclnnMixed(k:double, out, sums)", "'k:double', of type int"),
        ("aclnnMixed(x:int64, out, sums)", "'x:int64' in the call"),
        ("aclnnMixed(scalar(k), out, sums)", "'k' in the call"),
        ("aclnnMixed(scalar(inf), out, sums)", "'inf' in the call"),
        ("aclnnMixed([], out, sums)", "'[]' in the call"),
        ("aclnnMixed(k == 'a', out, sums)", "'k' in the call"),
        ("aclnnMixed(factor else 1/sqrt(D), out, sums)", "'factor' in the call"),
        ("aclnnMixed(scale else 1/sqrt(Q), out, sums)", "'Q' in call"),
        ("aclnnMixed('a\\nb', out, sums)", "'a"),
    ],
)
def test_a_mistake_is_named(call, found, tmp_path, capsys):
    (tmp_path / "mixed.toml").write_text(SCHEMA + f'ascend = "{call}"\n')
    assert main(["--out", str(tmp_path / "gen"), "--library", "mixed", str(tmp_path)]) != 0
    said = capsys.readouterr().err
    assert "mixed.toml:18: " in said and found in said, said


def test_a_call_has_room_for_so_many_objects(tmp_path, capsys):
    header = (
        Path(__file__).parents[2] / "include" / "anyop" / "forms" / "aclnn_call.h"
    ).read_text()
    assert f"kAnyopAclnnObjects = {MOST_OBJECTS}," in header
    for more, code in ((MOST_OBJECTS - 2, 0), (MOST_OBJECTS - 1, 1)):
        call = f"aclnnA({more * 'scalar(1), '}out, sums)"
        (tmp_path / "mixed.toml").write_text(SCHEMA + f'ascend = "{call}"\n')
        assert main(["--out", str(tmp_path / "gen"), "--library", "mixed", str(tmp_path)]) == code
    assert "25 tensors, lists of sizes and scalars, expected at most 24" in capsys.readouterr().err


def test_a_key_or_a_device_that_is_another_forms(tmp_path, capsys):
    for entry, found in (
        ('{ call = "aclnnA(out, sums)", entry = "a" }', "key of a kernel in the form of library"),
        ('{ call = "aclnnA(out, sums)", device = "cuda" }', "device 'cuda' of ascend"),
        ('{ call = "aclnnA(out, sums)", same = ["k"] }', "'k' in the call"),
        ('{ call = "aclnnA(out, sums)", within = ["k < D"] }', "within 'k < D'"),
    ):
        (tmp_path / "mixed.toml").write_text(SCHEMA + f"ascend = {entry}\n")
        assert main(["--out", str(tmp_path / "gen"), "--library", "mixed", str(tmp_path)]) != 0
        assert found in capsys.readouterr().err
