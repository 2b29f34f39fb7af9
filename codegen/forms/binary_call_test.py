# SPDX-License-Identifier: Apache-2.0
"""Kernels that are there as binaries: the C that is written for them, and what is read of the files."""

from __future__ import annotations

import ctypes
import itertools
import struct
from pathlib import Path

import pytest

from ..__main__ import main
from ..conftest import compile_c
from ..generate import generate
from ..schema.expressions import _FOLD
from . import binaries
from .binary_call import MOST_TENSORS, MOST_VALUES

SCHEMA = """\
schema = "acme::mixed(Tensor x, Tensor? y, int k, float factor, double_flag) -> (Tensor out, Tensor? more)"
[shapes]
x = "* D"
y = "B *Y"
out = "* D"
more = "*"
[kernels]
"""
IMAGE = """\
cuda = { file = ["a.ptx", "b.fatbin"], entry = "run", grid = ["ceil(numel(*)*D/64)", "k", 1], \
block = [32, "min(D, 4)"], shared_bytes = "D%7*8", arguments = ["x", "y", "out", "more", "k:int32", "D", \
"numel_Y", "D//2:int32", "factor:double", "flag", "flag:int32"] }
"""
MODULE = """\
cpu = { file = "m.so", function = "run", arguments = ["out", "x", "more", "y", "k", "factor", "flag", \
"numel(Y)+k", "7"] }
"""


@pytest.fixture
def folder(tmp_path):
    schema = SCHEMA.replace("double_flag", "bool flag=True")
    (tmp_path / "mixed.toml").write_text(schema + IMAGE + MODULE)
    (tmp_path / "a.ptx").write_text(".target sm_80\n.visible .entry run()\n{ ret; }\n")
    (tmp_path / "b.fatbin").write_bytes(b"\x50\xed\x55\xba")
    (tmp_path / "m.so").write_bytes(b"\0__tvm_ffi_run\0")
    return tmp_path


def test_adapters_compile_without_a_warning(folder, tmp_path):
    made = generate([folder], "mixed")
    for name, text in made.files.items():
        path = tmp_path / "gen" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    flags = ["-std=c11", "-O1", "-fPIC", "-Wshadow", "-Wconversion", "-Wno-sign-conversion", "-c"]
    for name in ("acme/ops/mixed_cuda.c", "acme/ops/mixed_cpu.c"):
        assert name in made.sources
        compile_c(*flags, "-I", tmp_path / "gen", tmp_path / "gen" / name, "-o", tmp_path / "a.o")
    assert [path.name for path in made.embedded] == ["b.fatbin", "a.ptx"], "PTX is the last resort"
    assert {name: path.name for name, path in made.bundled.items()} == {
        "modules/mixed/m.so": "m.so"
    }
    assert made.linked == [] and "#ifdef" not in made.files["acme/ops/mixed_table.c"]


NAMES = {
    "+": "Add", "-": "Subtract", "*": "Multiply", "//": "Divide", "ceildiv": "CeilDivide",
    "%": "Remainder", "min": "Min", "max": "Max",
}  # fmt: skip
LIMIT = 2**63


def expected(name: str, a: int, b: int) -> int:
    """Python's value; -2**63 where there is none, or an operand is that."""
    if -LIMIT in (a, b) or (b == 0 and name in ("//", "%", "ceildiv")):
        return -LIMIT
    value = _FOLD[name](a, b)
    return value if -LIMIT < value < LIMIT else -LIMIT


def test_arithmetic_is_pythons(tmp_path):
    lines = ['#include "anyop/forms/size_math.h"']
    for function in NAMES.values():
        head = f"int64_t {function}(int64_t a, int64_t b)"
        lines.append(f"{head};\n{head} {{ return AnyopSize{function}(a, b); }}")
    (tmp_path / "math.c").write_text("\n".join(lines) + "\n")
    compile_c("-std=c11", "-shared", "-fPIC", tmp_path / "math.c", "-o", tmp_path / "math.so")
    library = ctypes.CDLL(str(tmp_path / "math.so"))
    near = [0, 1, 2, 3, 7, 256, 2**31, 2**62, LIMIT - 1]
    values = sorted({*near, *(-value for value in near), -LIMIT})
    for name, function in NAMES.items():
        call = getattr(library, function)
        call.restype, call.argtypes = ctypes.c_int64, [ctypes.c_int64] * 2
        for a, b in itertools.product(values, repeat=2):
            assert call(a, b) == expected(name, a, b), (name, a, b)


def elf(machine: int, version: int = 0, flags: int = 0, order: str = "<") -> bytes:
    head = (
        b"\x7fELF\x02"
        + (b"\x01" if order == "<" else b"\x02")
        + b"\x01\0"
        + bytes([version, *[0] * 7])
    )
    return head + struct.pack(order + "HHIQQQI", 1, machine, 1, 0, 0, 0, flags) + bytes(12)


def archive(*members: bytes) -> bytes:
    data = b"!<arch>\n"
    for member in members:
        data += f"{'a.o/':<16}{'0':<12}{'0':<6}{'0':<6}{'644':<8}{len(member):<10}`\n".encode()
        data += member + b"\n" * (len(member) % 2)
    return data


@pytest.mark.parametrize(
    "data, machine",
    [
        (elf(62), "x86_64"),
        (elf(183), "aarch64"),
        (elf(22, order=">"), "s390x"),
        (elf(999), "machine 999"),
        (archive(b"odd", elf(183)), "aarch64"),
        (archive(), None),
        (archive(b"text"), None),
        (b"!<arch>\n" + b"x" * 100, None),
        (elf(62)[:19], None),
        (b"", None),
    ],
)
def test_machine(data, machine, tmp_path):
    (tmp_path / "f").write_bytes(data)
    assert binaries.machine(tmp_path / "f") == machine


@pytest.mark.parametrize(
    "name, data, arch",
    [
        ("a.cubin", elf(190, 8, 0x6005A04), 90),  # nvcc 13
        ("a.cubin", elf(190, 7, 0x560556), 86),  # nvcc 12
        ("a.cubin", elf(62), 0),
        ("a.cubin", b"", 0),
        ("a.ptx", b".version 8.0\n.target sm_90a, debug\n", 90),
        ("a.ptx", b"nothing", 0),
        ("a.fatbin", b"\x50\xed\x55\xba" + bytes(80), 0),
    ],
)
def test_cuda_arch(name, data, arch, tmp_path):
    (tmp_path / name).write_bytes(data)
    assert binaries.cuda_arch(tmp_path / name) == arch


@pytest.mark.parametrize(
    ("tensors", "numbers", "found"),
    [
        (10, 22, ""),
        (11, 0, "11 tensors, expected at most 10"),
        (1, 32, "33 arguments, expected at most 32"),
    ],
)
def test_an_image_of_a_device_takes_so_many_arguments(tensors, numbers, found, tmp_path, capsys):
    header = (
        Path(__file__).parents[2] / "include" / "anyop" / "forms" / "device_image.h"
    ).read_text()
    assert f"kAnyopImageValues = {MOST_VALUES}," in header
    assert f"kAnyopImageTensors = {MOST_TENSORS}," in header
    names = [f"x{i}" for i in range(tensors - 1)]
    inputs = ", ".join([*(f"Tensor {name}" for name in names), "int k"])
    shapes = ", ".join(f'{name} = "*"' for name in [*names, "out"])
    shapes = shapes if names else 'out = "k"'
    arguments = ", ".join([*(f'"{name}"' for name in [*names, "out"]), *(numbers * ['"k"'])])
    image = (
        f'{{ file = "m.cl", entry = "m", grid = ["k"], block = [1], arguments = [{arguments}] }}'
    )
    text = f'schema = "acme::m({inputs}) -> Tensor"\nshapes = {{ {shapes} }}\n'
    (tmp_path / "m.toml").write_text(f"{text}[kernels]\nopencl = {image}\n")
    (tmp_path / "m.cl").write_text("__kernel void m() {}")
    code = main(["--out", str(tmp_path / "gen"), "--library", "m", str(tmp_path)])
    said = capsys.readouterr().err
    assert (code == 0) == (found == "") and found in said, said
