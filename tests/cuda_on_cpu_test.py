# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernels of operators, compiled by the host compiler and run by fibers: the standard tests without a GPU.

What tests/cuda_on_cpu/cuda_on_cpu.h says it is not, only a GPU shows (`make test-gpu`): races, Hopper's kernels, speed.
A part of the operators, drawn by the commit; all with ANYOP_TEST_FULL=1.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import anyop
import numpy as np
import pytest
from anyop import testing
from anyop.codegen.generate import generate
from anyop.codegen.operator_file import Operator, read_operator
from anyop.testing.draw import Drawer
from anyop.testing.good_cases import Case

sys.path.insert(0, str(Path(__file__).parent))

from drawn import drawn, few

pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy is ml_dtypes'")
ROOT = Path(__file__).parents[1]
HERE = Path(__file__).parent / "cuda_on_cpu"
COMPILER = shutil.which(os.environ.get("ANYOP_TEST_CXX", "g++")) or "c++"
# A misaligned vector ends the process, as it ends the work on a GPU.
FLAGS = [
    "-std=c++17", "-O1", "-fPIC", "-w", "-fsanitize=alignment", "-fsanitize-undefined-trap-on-error",
]  # fmt: skip
BACKEND = "cuda_on_cpu"


def sources(op: Operator) -> list[Path]:
    """Those of its CUDA kernel for every GPU; the ones for Hopper alone do not run here."""
    return [file for kernel in op.kernels if kernel.backend == "cuda" for file in kernel.sources]


OPERATORS = {op.name: op for file in sorted((ROOT / "ops").rglob("*.toml"))
             if sources(op := read_operator(file))}  # fmt: skip
DRAWN = drawn(list(OPERATORS), 4, "cuda_on_cpu")
SUBJECTS = {s.name: s for s in testing.find_subjects(ROOT / "ops") if s.name in DRAWN}


class Implementation(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_uint32), ("device_type", ctypes.c_int32), ("backend", ctypes.c_char_p),
        ("name", ctypes.c_char_p), ("source", ctypes.c_char_p), ("when", ctypes.c_char_p),
        ("priority", ctypes.c_int32), ("flags", ctypes.c_uint32), ("run", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )  # fmt: skip


def compile_all(folder: Path) -> Path:
    """One library of the drawn operators' kernels."""
    for name, text in generate([ROOT / "ops"], "anyop").files.items():
        if name.endswith(".h"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
    files = {file for name in DRAWN for file in sources(OPERATORS[name])} | {
        HERE / "cuda_on_cpu.cc"
    }

    def compile_one(file: Path) -> Path:
        made = folder / f"{file.stem}.o"
        include = [f"-I{place}" for place in (HERE, ROOT / "include", folder)]
        command = [COMPILER, "-x", "c++", *FLAGS, *include, "-c", str(file), "-o", str(made)]
        found = subprocess.run(command, capture_output=True, text=True)
        assert found.returncode == 0, found.stderr[:4000]
        return made

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compile_one, sorted(files)))
    library = folder / "libcuda_on_cpu.so"
    command = [COMPILER, "-shared", "-Wl,-Bsymbolic", "-o", str(library), *map(str, objects)]
    subprocess.run(command, check=True)
    return library


@pytest.fixture(scope="module", autouse=True)
def registered(tmp_path_factory):
    """The kernels as implementations for the CPU's memory, taken where a call asks for them."""
    kernels = ctypes.CDLL(str(compile_all(tmp_path_factory.mktemp("cuda_on_cpu"))))
    core = ctypes.CDLL(os.path.join(os.path.dirname(anyop.__file__), "lib", "libanyop.so"))
    core.AnyopFindOperator.restype = ctypes.c_void_p
    core.AnyopLastError.restype = ctypes.c_char_p
    for name in DRAWN:
        run = ctypes.cast(getattr(kernels, f"anyop_{name}_cuda"), ctypes.c_void_p)
        one = Implementation(
            ctypes.sizeof(Implementation), 1, BACKEND.encode(), None, b"test", None, -1000, 0, run
        )
        op = ctypes.c_void_p(core.AnyopFindOperator(name.encode()))
        assert core.AnyopRegisterImplementation(op, ctypes.byref(one)) == 0, core.AnyopLastError()
    yield
    for name in DRAWN:
        core.AnyopRemoveImplementation(
            ctypes.c_void_p(core.AnyopFindOperator(name.encode())), BACKEND.encode()
        )


def on_fibers(function):
    def call(*positional, **named):
        with anyop.use(BACKEND):
            return function(*positional, **named)

    return call


# Around what decides how a row is shared: lanes, blocks, registers, what is read again.
WIDTHS = [33, 264, 1000, 1032, 2056, 4100, 8192, 8200, 16392, 33000, 65544, 70001]


def has_rows(name: str) -> bool:
    symbols = SUBJECTS[name].metadata["symbols"]
    return symbols["sizes"] == ["D"] and not symbols["attributes"]


@pytest.mark.parametrize("name", [name for name in DRAWN if has_rows(name)])
def test_rows_of_every_width(name):
    subject = SUBJECTS[name]
    there = replace(subject, function=on_fibers(subject.function))
    drawer, tried = Drawer(subject.metadata), 0
    choices = testing.dtype_choices(subject.metadata)
    choices = [c for c in choices if c.is_uniform] or choices
    # Every other time: groups of columns, and what is added to a weight that is not there.
    others = {"group": 128, "weight_offset": 1.0}
    others = {key: value for key, value in others.items() if key in drawer.inputs}
    optional = frozenset(param["name"] for param in subject.tensors if param["optional"])
    for choice in few(choices, 2, name):
        for width in few(WIDTHS, 3, f"{name} {choice}"):
            rows = dict.fromkeys(drawer.symbols["groups"], (5,))
            point = drawer.solve({"D": width}, rows, others if tried % 2 else {})
            absent = optional if tried % 2 else frozenset()
            if point:
                testing.check_case(there, Case(f"D={width}", "size", choice, point, absent))
                tried += 1
    assert tried >= 3


def long_arguments(name: str) -> tuple:
    """More than one block holds; numbers that repeat."""
    random = np.random.default_rng(0)
    numbers = random.standard_normal((2, 40_000)).astype(np.float32).round(3)
    indices = random.integers(0, 300, numbers.shape)
    indices[random.random(indices.shape) < 0.3] = 7
    return {
        "sort": (numbers,),
        "topk": (numbers, 100),
        "topk_backward": (numbers, indices, 300),
        "embedding_backward": (numbers.reshape(20_000, 4), indices[:1, :20_000].ravel(), 300),
        "masked_mean": (numbers.reshape(1, 20_000, 4), indices[:1, :20_000] < 200),
        "add_backward": (numbers[:, :1], numbers[:1], numbers),
        "mul_backward": (numbers.reshape(20_000, 4), numbers[0, :4], numbers.reshape(20_000, 4)),
    }[name]


LONG = ["sort", "topk", "topk_backward", "embedding_backward"]
LONG += ["masked_mean", "add_backward", "mul_backward"]


@pytest.mark.parametrize("name", [name for name in LONG if name in DRAWN])
def test_what_many_blocks_share_is_as_on_the_cpu(name):
    function, arguments = getattr(anyop, name), long_arguments(name)

    def run(function):
        results = function(*arguments)
        return results if isinstance(results, tuple) else (results,)

    found, again = run(on_fibers(function)), run(on_fibers(function))
    for result, second, expected in zip(found, again, run(function)):
        assert result.tobytes() == second.tobytes()
        np.testing.assert_allclose(result, expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("name", ["embedding", "embedding_backward", "topk_backward"])
def test_indices_outside_count_for_nothing(name):
    if name not in DRAWN:
        pytest.skip("operators that are not drawn this time: make test-full")
    rows = np.arange(15, dtype=np.float32).reshape(5, 3) + 1
    indices = np.array([1, -1, 3, 1, -(2**31)], np.int32)
    if name == "embedding":
        found = on_fibers(anyop.embedding)(indices, rows[:3])
        np.testing.assert_array_equal(
            found, [rows[1], 0 * rows[0], 0 * rows[0], rows[1], 0 * rows[0]]
        )
    elif name == "embedding_backward":
        found = on_fibers(anyop.embedding_backward)(rows, indices, 3)
        np.testing.assert_array_equal(found, [0 * rows[0], rows[0] + rows[3], 0 * rows[0]])
    else:
        found = on_fibers(anyop.topk_backward)(rows[:, 0].copy(), indices.astype(np.int64), 3)
        np.testing.assert_array_equal(found, [0, rows[0, 0] + rows[3, 0], 0])


@pytest.mark.parametrize("name", DRAWN)
def test_standard_cases(name):
    subject = SUBJECTS[name]
    there = replace(subject, function=on_fibers(subject.function))
    failures, cases = [], 0
    choices = testing.dtype_choices(subject.metadata)
    uniform = [choice for choice in choices if choice.is_uniform]
    others = [choice for choice in choices if not choice.is_uniform]
    for choice in few(uniform, 8, name) + few(others, 4, name):
        chosen = testing.standard_cases(subject, choice)
        for case in few(chosen, 16, f"{name} {choice}"):
            cases += 1
            try:
                testing.check_case(there, case)
            except testing.CheckError as error:
                failures.append(str(error))
    if failures:
        pytest.fail(f"{len(failures)} of {cases}:\n" + "\n".join(failures[:8]), pytrace=False)
    assert cases >= 20


def quantised_bits_are_those_of_the_cpu():
    """Groups that lanes share, that straddle vectors, that are long; slices; rows at any place."""
    random = np.random.default_rng(0)
    for D in (130, 264, 1000, 24584):
        for dtype in ("float32", "bfloat16"):
            for group in (3, 8, 100, 128, 1024, 2**31 - 1):
                extra = random.integers(0, 3) * 4
                whole = random.standard_normal((5, D + extra)).astype(dtype)
                whole[0], whole[1, 7], whole[2, 9], whole[3, 1] = 0, np.nan, np.inf, -0.0
                x, kind = whole[:, :D], random.choice(["int8", "float8_e4m3fn"])
                given = random.uniform(0.01, 2, (5, -(-D // min(group, D)))).astype(np.float32)
                for scale in (None, given, given[:1, :1]):
                    expected = anyop.quant_fp8(x, scale, group=group, dtype=kind)
                    found = on_fibers(anyop.quant_fp8)(x, scale, group=group, dtype=kind)
                    for a, b in zip(found, expected):
                        np.testing.assert_array_equal(a.astype(float), b.astype(float))


if "quant_fp8" in DRAWN:
    test_quantised_bits_are_those_of_the_cpu = quantised_bits_are_those_of_the_cpu


def placed(array, how):
    """The same heads (*X, S, H, D), whose last dimension lies side by side and the others as `how` says."""
    if how == "transposed":
        return np.ascontiguousarray(array.swapaxes(-2, -3)).swapaxes(-2, -3)
    before, behind = {"wider": (16, 16), "shifted": (1, 2), "odd": (16, 1)}[how]
    memory = np.zeros((*array.shape[:-1], before + array.shape[-1] + behind), array.dtype)
    view = memory[..., before : before + array.shape[-1]]
    view[...] = array
    return view


def rotated_arguments(subject, sizes, dtype, random, how="wider"):
    """Heads that lie so, with tables and weights; no positions."""
    given = {}
    for param in subject.tensors:
        letters = param["shape"]["before"] + param["shape"]["after"]
        if param["optional"]:
            continue
        shape = (3,) * (letters[0] == "S") + tuple(sizes[letter] for letter in letters)
        array = random.standard_normal(shape).astype(np.dtype(dtype))
        given[param["name"]] = placed(array, how) if letters[0] == "S" else array
    return given


def same_bits(a, b):
    return all(x.tobytes() == y.tobytes() for x, y in zip(arrays(a), arrays(b)))


def arrays(found):
    return found if isinstance(found, tuple) else (found,)


# D, R, interleaved: units of 16 bytes and of one element, with a rest and without; teams of lanes, warps and blocks.
TURNED = [(64, 64, False), (64, 48, True), (272, 16, False), (1024, 1024, True), (10, 6, False),
          (1023, 30, True), (40, 16, False), (8, 0, False), (640, 128, True), (13, 12, False)]  # fmt: skip
ROTATIONS = [name for name in DRAWN if "rope" in name]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("name", ROTATIONS)
def test_rotated_heads_lie_anywhere(name, dtype):
    """As on the CPU, wherever heads lie; the same bits in place, in other memory and in the other's place."""
    subject, random = SUBJECTS[name], np.random.default_rng(0)
    there, tolerance = on_fibers(subject.function), 2 * subject.metadata["tolerance"][dtype]
    sources = [p["name"] for p in subject.tensors]
    inplace = [p["name"] for p in subject.tensors if p["inplace"]]
    for at, (D, R, interleaved) in enumerate(few(TURNED, 4, f"{name} {dtype}")):
        how = ["wider", "transposed", "shifted", "odd"][at % 4]
        sizes = {"S": 7, "H": 5, "G": 2 if at % 4 else 5, "D": D, "P": 11, "R": R}
        given = rotated_arguments(subject, sizes, dtype, random, how)
        given["interleaved"] = interleaved
        if "cu_seqlens" in sources and at % 2:
            given["cu_seqlens"] = np.array([1, 4, 4, 6], np.int32)
        elif at % 3 == 2:
            given["positions"] = random.integers(0, sizes["P"], (3, 1))
        outs = {}
        for result, source in zip(subject.results, subject.tensors):
            if result["shape"]["after"][:1] == ["S"]:
                like, lies_in = given[source["name"]], source["inplace"] and at % 2
                outs[result["name"]] = like if lies_in else placed(np.zeros_like(like), "odd")
        if len(inplace) == 2 and at % 4 == 0:
            one = at // 4 % 2
            outs = {subject.results[one]["name"]: given[inplace[1 - one]]}
        expected, found = subject.function(**given), there(**given)
        case = f"D={D} R={R} {how}"
        for a, b in zip(arrays(expected), arrays(found)):
            wide = a.astype(float)
            assert (np.abs(b.astype(float) - wide) <= tolerance * (1 + np.abs(wide))).all(), case
        assert same_bits(found, there(**given, **outs)), case


@pytest.mark.parametrize("name", ROTATIONS)
def test_heads_of_many_tokens(name):
    """So many that a thread takes more heads than of few; in more dimensions than a kernel walks."""
    subject, random = SUBJECTS[name], np.random.default_rng(0)
    tolerance = 2 * subject.metadata["tolerance"]["bfloat16"]
    for S, folded in ((512, False), (3, True)):
        sizes = {"S": S, "H": 9, "G": 2, "D": 32, "P": 512, "R": 16}
        given = rotated_arguments(subject, sizes, "bfloat16", random)
        for key, array in given.items() if folded else ():
            if array.ndim == 4:  # heads; no two dimensions lie like one
                more = random.standard_normal((*[3] * 5, *array.shape[1:])).astype(array.dtype)
                given[key] = more[:2, :2, :2, :2, :2]
        expected, found = subject.function(**given), on_fibers(subject.function)(**given)
        for a, b in zip(arrays(expected), arrays(found)):
            wide = a.astype(float)
            assert (np.abs(b.astype(float) - wide) <= tolerance * (1 + np.abs(wide))).all(), S


@pytest.mark.parametrize("name", ROTATIONS)
def test_rows_out_of_range(name):
    """The nearest row of the table, or any; too long sequences are known without a look at the data."""
    subject, random = SUBJECTS[name], np.random.default_rng(0)
    there = on_fibers(subject.function)
    sizes = {"S": 6, "H": 2, "G": 1, "D": 16, "P": 4, "R": 16}
    given = rotated_arguments(subject, sizes, "float32", random)
    for dtype in (np.int32, np.int64):
        far = np.iinfo(dtype).max
        positions = np.array([-1, 4, 3, far, -far - 1, 0], dtype)
        near = np.clip(positions, 0, 3)
        assert same_bits(there(**given, positions=positions), there(**given, positions=near))
    with pytest.raises(ValueError, match="sequences of S=6 tokens, expected at most P=4"):
        there(**given)
    if "cu_seqlens" in {p["name"] for p in subject.tensors}:
        far = np.iinfo(np.int32).max
        for ends in ([0, 6], [3, 1, 5, 2], [far, -far - 1], [-far, far], [-far], [0, 2, 9, far]):
            found = there(**given, cu_seqlens=np.array(ends, np.int32))
            assert all(np.isfinite(a).all() for a in arrays(found))
