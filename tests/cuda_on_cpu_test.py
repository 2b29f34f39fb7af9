# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernels of operators, compiled by the host compiler and run by fibers: the standard tests without a GPU.

What tests/cuda_on_cpu/cuda_on_cpu.h says it is not, only a GPU shows (`make test-gpu`): races, Hopper's kernels, speed.
Ten operators, drawn by the commit; all with ANYOP_TEST_FULL=1.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import anyop
import numpy as np
import pytest
from anyop import testing
from anyop.testing.draw import Drawer
from anyop.testing.good_cases import Case

sys.path.insert(0, str(Path(__file__).parent))

from drawn import few
from fibers import BACKEND, OPERATORS, compile_cublaslt, compile_kernels, register, remove

pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy is ml_dtypes'")
DRAWN = few(list(OPERATORS), 10, "cuda_on_cpu")
SUBJECTS = {
    s.name: s for s in testing.find_subjects(Path(__file__).parents[1] / "ops") if s.name in DRAWN
}


@pytest.fixture(scope="module", autouse=True)
def registered(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cuda_on_cpu")
    os.environ["ANYOP_CUBLASLT"] = str(compile_cublaslt(folder))
    register(compile_kernels(folder, DRAWN), DRAWN)
    yield
    remove(DRAWN)


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
            rows = dict.fromkeys(drawer.symbols["groups"], (5 if width <= 8200 else 2,))
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


def product_arguments(name: str, columns: int) -> tuple:
    """More than a tile in each direction; more segments than a warp has lanes, some empty, offsets that fall."""
    random = np.random.default_rng(columns)

    def whole(*shape):  # their sums are exact, so each kernel rounds the same number
        return random.integers(-2, 3, shape).astype("bfloat16")

    T, E, K, N, few = 150, 35, columns, 140, 20
    offsets = np.sort(random.integers(-5, T + 5, E + 1)).astype(np.int32)
    offsets[E // 2] = offsets[3]
    one = np.ones(1, np.float32)
    return {
        "grouped_linear": (whole(T, K), whole(E, few, K), offsets, whole(E, few)),
        "grouped_linear_backward": (whole(T, few), whole(T, K), whole(E, few, K), offsets),
        "grouped_linear_masked": (whole(3, T, K), whole(3, N, K), offsets[-3:]),
        "native_linear_gated": (whole(T, K), whole(2 * N, K), "relu"),
        "linear_w4": (
            whole(T, K // 2 * 2),
            random.integers(0, 256, (N, K // 2)).astype(np.uint8),
            np.ones((1, N), np.float32),
            None,
            whole(N),
            K,
        ),
        "linear_w8a8": (whole(T, K).astype("int8"), whole(N, K).astype("int8"), one, one),
    }[name]


PRODUCTS = ["grouped_linear", "grouped_linear_backward", "grouped_linear_masked"]
PRODUCTS += ["native_linear_gated", "linear_w4", "linear_w8a8"]


@pytest.mark.parametrize("columns", [136, 137])  # of 16 bytes, and not
@pytest.mark.parametrize("name", [name for name in PRODUCTS if name in DRAWN])
def test_products_of_many_tiles_are_as_on_the_cpu(name, columns):
    function, arguments = getattr(anyop, name), product_arguments(name, columns)
    found, expected = (run(*arguments) for run in (on_fibers(function), function))
    for result, exact in zip(arrays(found), arrays(expected)):
        assert result.tobytes() == exact.tobytes()


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


ATTENTION = [name for name in ("attention", "attention_with_lse") if name in DRAWN]
# H, G, S, T, D, E: tiles with and without a rest, one query, features of each kind of tile.
HEADS = [
    (2, 1, 130, 200, 64, 64), (4, 2, 1, 300, 128, 100), (1, 1, 70, 129, 200, 13), (2, 2, 257, 65, 17, 40),
]  # fmt: skip
BOUNDS = [
    {}, {"causal": True}, {"window_left": 20, "window_right": 3, "softcap": 3.0},
    {"causal": True, "offset": -60, "sinks": np.array([0.5, -1, 2, 0], np.float32)},
    {"window_left": 0, "alibi_slopes": np.array([0.1, 0, 0.5, 1], np.float32)},
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", ATTENTION)
def test_attention_of_many_tiles(name, dtype):
    """As on the CPU; NaN and infinities that a query does not see do not show; the same bits in any place."""
    function, random = getattr(anyop, name), np.random.default_rng(0)
    limit = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 1e-5}[dtype]
    for H, G, S, T, D, E in few(HEADS, 1, f"{name} {dtype}"):
        q, k, v = (
            random.standard_normal((1, heads, rows, width)).astype(dtype)
            for heads, rows, width in ((H, S, D), (G, T, D), (G, T, E))
        )
        for options in few(BOUNDS, 2, f"{name} {dtype} {S}"):
            options = {key: x[:H] if np.ndim(x) else x for key, x in options.items()}
            expected, found = (run(q, k, v, **options) for run in (function, on_fibers(function)))
            for a, b in zip(arrays(expected), arrays(found)):
                finite = np.isfinite(a.astype(float))
                np.testing.assert_array_equal(b.astype(float)[~finite], a.astype(float)[~finite])
                np.testing.assert_allclose(
                    b.astype(float)[finite], a.astype(float)[finite], rtol=limit, atol=limit
                )
            placed_ones = (placed(x, "odd") for x in (q, k, v))
            assert same_bits(found, on_fibers(function)(*placed_ones, **options))
        options = {"window_left": 1, "causal": True, "offset": 5}
        clean = arrays(on_fibers(function)(q, k, v, **options))[0].astype(float)
        place = T // 2
        k[:, :, place], v[:, :, place, 1], v[:, :, place, 0] = np.nan, np.inf, np.nan
        bad = arrays(on_fibers(function)(q, k, v, **options))[0].astype(float)
        outside = [s for s in range(S) if not s + 4 <= place <= s + 5]
        np.testing.assert_array_equal(bad[:, :, outside], clean[:, :, outside])


VARLEN = [name for name in ("attention_varlen", "attention_varlen_with_lse") if name in DRAWN]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", VARLEN)
def test_packed_sequences(name, dtype):
    """Bit for bit as a sequence alone, and as on the CPU; wrong places give NaN and nothing is read by them."""
    function, random = getattr(anyop, name), np.random.default_rng(0)
    lengths = np.array([[5, 140, 0, 1, 0, 20], [9, 70, 30, 0, 0, 64]])
    cu_q, cu_k = (np.cumsum([2, *row], dtype=np.int32) for row in lengths)
    q, k, v = (
        random.standard_normal((rows, heads, 24)).astype(dtype)
        for rows, heads in ((cu_q[-1] + 3, 2), (cu_k[-1], 1), (cu_k[-1], 1))
    )
    there, options = on_fibers(function), {"causal": True, "window_left": 50}
    found = arrays(there(q, k, v, cu_q, cu_k, **options))
    limit = {"float16": 2e-3, "float32": 1e-5}[dtype]
    for a, b in zip(arrays(function(q, k, v, cu_q, cu_k, **options)), found):
        np.testing.assert_allclose(b.astype(float), a.astype(float), rtol=limit, atol=limit)
    for i in range(6):
        s, t = slice(*cu_q[i : i + 2]), slice(*cu_k[i : i + 2])
        ends = [np.array([0, x.stop - x.start], np.int32) for x in (s, t)]
        one = arrays(there(q[s], k[t], v[t], *ends, **options))
        assert same_bits(tuple(x[s] for x in found), tuple(one))
    far = 2**31 - 1
    for ends in ([0, 9, 3, 20], [-far, 5, 7, 9], [0, 4, far, far], [5, 5, 5, 400]):
        places = np.array(ends, np.int32)
        for given in ((places, cu_k[:4]), (cu_q[:4], places)):
            for x in arrays(there(q, k, v, *given)):
                assert np.isnan(x.astype(float)).all()


def pages_of_many_tiles():
    """As on the CPU: queries shared by warps and not, parts joined, any pages; a wrong page is its sequence's."""
    random, there = np.random.default_rng(0), on_fibers(anyop.attention_paged)
    lengths, H, G, D, E = np.array([300, 0, 65, 7], np.int32), 8, 2, 72, 40
    for P, counts, dtype in (
        (1, [1, 1, 1, 1], "float16"),
        (24, [40, 2, 65, 0], "float16"),
        (16, [3, 1, 0, 2], "float32"),
    ):
        N, M = -(-int(lengths.sum()) // P) + 4, -(-300 // P)
        k, v = (
            random.standard_normal((N, G, P, width)).astype(dtype).swapaxes(1, 2)
            for width in (D, E)
        )
        table = random.permutation(4 * M).reshape(4, M).astype(np.int32) % N
        q = random.standard_normal((sum(counts), H, D)).astype(dtype)
        starts = np.cumsum([0, *counts], dtype=np.int32)
        options = {
            "window_left": 200,
            "softcap": 2.0,
            "sinks": random.standard_normal(H).astype(np.float32),
        }
        given, limit = (q, k, v, table, lengths, starts), {"float16": 2e-3, "float32": 1e-5}[dtype]
        for named in ({}, {"causal": False}, options):
            expected = anyop.attention_paged(*given, **named)
            for split_size in (0, 64, 128):
                found = there(*given, **named, split_size=split_size)
                for a, b in zip(expected, found):
                    np.testing.assert_allclose(
                        b.astype(float), a.astype(float), rtol=limit, atol=limit
                    )
        found, alone = there(*given), table.copy()
        alone[0, 1] = N  # is read by the first sequence alone
        for x, y in zip(there(q, k, v, alone, lengths, starts), found):
            assert np.isnan(x[: starts[1]]).all() and same_bits(x[starts[1] :], y[starts[1] :])


if "attention_paged" in DRAWN:
    test_pages_of_many_tiles = pages_of_many_tiles


def slots_outside_write_nothing():
    rows = np.ones((5, 1, 8), np.float32)
    for slots in ([0, 8, 3, -2, -1], [0, 2**31 - 1, 3, -(2**31), 8]):
        caches = [np.zeros((2, 4, 1, 8), np.float32) for _ in range(2)]
        on_fibers(anyop.append_kv)(*caches, rows, rows, np.array(slots, np.int32))
        for cache in caches:
            assert cache.reshape(8, 8).any(1).tolist() == [True, False, False, True] + 4 * [False]


if "append_kv" in DRAWN:
    test_slots_outside_write_nothing = slots_outside_write_nothing
