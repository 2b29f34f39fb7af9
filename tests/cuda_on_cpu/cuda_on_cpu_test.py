# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernels of operators, compiled by the host compiler and run by fibers: the standard tests without a GPU.

What tests/cuda_on_cpu/cuda_on_cpu.h says it is not, only a GPU shows (`make test-gpu`): races, Hopper's kernels, speed.
Four operators, drawn by the commit, or those of attention (cuda_on_cpu_attention_test.py); all with ANYOP_TEST_FULL=1.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import anyop
import numpy as np
import pytest
from anyop import testing
from anyop.cases.draw import Drawer
from anyop.cases.good_cases import Case

sys.path.insert(0, str(Path(__file__).parent))

from drawn import few
from fibers import OPERATORS, arrays, on_fibers, placed, running, same_bits
from row_points import grouped_cases, is_grouped

pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy is ml_dtypes'")
DRAWN = few(list(OPERATORS), 4, "cuda_on_cpu")
pytestmark = pytest.mark.drawn(2, together="operators on fibers")
SUBJECTS = {
    s.name: s for s in testing.find_subjects(Path(__file__).parents[2] / "ops") if s.name in DRAWN
}


@pytest.fixture(scope="module", autouse=True)
def registered(tmp_path_factory):
    with running(tmp_path_factory.mktemp("cuda_on_cpu"), DRAWN):
        yield


# Around what decides how a row is shared: lanes, blocks, registers, what is read again.
WIDTHS = [33, 264, 1000, 1032, 2056, 4100, 8192, 8200, 16392, 33000, 65544, 70001]


def has_rows(name: str) -> bool:
    symbols = SUBJECTS[name].metadata["symbols"]
    return symbols["sizes"] == ["D"] and not symbols["attributes"]


@pytest.mark.parametrize("name", [name for name in DRAWN if has_rows(name)])
def test_rows_of_every_width(name):
    subject = SUBJECTS[name]
    there = replace(subject.on("cuda"), function=on_fibers(subject.function))
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


def rows_written(name: str) -> list[str]:
    results = SUBJECTS[name].results if has_rows(name) else []
    return [r["name"] for r in results if r["layout"] == "rows" and r["shape"]["text"] == "* D"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", [name for name in DRAWN if rows_written(name)])
def test_rows_are_written_anywhere(name, dtype):
    """The same bits, whether results are whole vectors or lie at odd places, where other kernels write them."""
    subject, random = SUBJECTS[name], np.random.default_rng(0)
    there = on_fibers(subject.function)
    for width in few([8, 264, 1032, 8200, 16392, 33000, 70000], 4, f"{name} {dtype}"):
        given, sizes = {}, {"*": 3, "D": width, "2*D": 2 * width, "1": 1}
        for param in subject.tensors:
            text = param["shape"]["text"].removeprefix("expand(").removesuffix(")")
            shape = [sizes[size] for size in text.split()]
            kind = dtype if dtype in param["possible_dtypes"] else param["possible_dtypes"][0]
            given[param["name"]] = random.standard_normal(shape).astype(np.dtype(kind))
        found = arrays(there(**given))
        outs = {r["name"]: placed(np.zeros_like(a), "odd")
                for r, a in zip(subject.results, found) if r["name"] in rows_written(name)}  # fmt: skip
        assert same_bits(found, there(**given, **outs)), width


@pytest.mark.parametrize("name", [name for name in DRAWN if is_grouped(SUBJECTS[name])])
def test_groups_of_short_rows(name):
    subject = SUBJECTS[name]
    there = replace(subject.on("cuda"), function=on_fibers(subject.function))
    for choice in few(testing.dtype_choices(subject.metadata), 3, name):
        for case in grouped_cases(subject, choice):
            testing.check_case(there, case)


def long_arguments(name: str) -> tuple:
    """More than one block holds; numbers that repeat."""
    random = np.random.default_rng(0)
    numbers = random.standard_normal((2, 40_000)).astype(np.float32).round(3)
    indices = random.integers(0, 300, numbers.shape)
    indices[random.random(indices.shape) < 0.3] = 7
    positive = (numbers**2).reshape(2, 2, 20_000)
    return {
        "sort": (numbers,),
        "topk": (numbers, 100),
        "sample": (numbers, np.array([3, 4]), np.array([5, 6]), None, 100, 0.9),
        "sample_probs": (numbers**2, np.array([3, 4]), np.array([5, 6]), None, 0.9),
        "verify_chain": (
            np.ascontiguousarray(positive[:, :1]),
            np.ascontiguousarray(indices[:, :1]),
            positive,
            np.array([3, 4]),
            np.array([5, 6]),
        ),
        "verify_tree": (
            np.ascontiguousarray(indices[:, :2]),
            indices[:, :2] * 0 + 1,
            indices[:, :2] * 0 - 1,
            positive,
            None,
            np.array([3, 4]),
            np.array([5, 6]),
        ),
        "top_k_mask": (numbers, 5000),
        "top_k_renorm": (numbers**2, 5000),
        "top_p_renorm": (numbers**2, 0.7),
        "topk_backward": (numbers, indices, 300),
        "embedding_backward": (numbers.reshape(20_000, 4), indices[:1, :20_000].ravel(), 300),
        "index_mul_2d_backward": (
            numbers.reshape(20_000, 4).round(),  # sums of products are exact
            numbers[0, :1200].reshape(300, 4),
            numbers[::-1].reshape(20_000, 4).round(),
            indices[:1, :20_000].ravel(),
        ),
        "masked_mean": (numbers.reshape(1, 20_000, 4), indices[:1, :20_000] < 200),
        "add_backward": (numbers[:, :1], numbers[:1], numbers),
        "mul_backward": (numbers.reshape(20_000, 4), numbers[0, :4], numbers.reshape(20_000, 4)),
    }[name]


LONG = ["sort", "topk", "topk_backward", "embedding_backward"]
LONG += ["sample", "sample_probs", "top_k_mask", "top_k_renorm", "top_p_renorm"]
LONG += ["verify_chain", "verify_tree"]
LONG += ["index_mul_2d_backward", "masked_mean", "add_backward", "mul_backward"]


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


def test_targets_outside_are_not_read():
    """Their loss is NaN, and gradients; those of other rows' x are not."""
    if not {"linear_cross_entropy", "linear_cross_entropy_backward"} <= set(DRAWN):
        pytest.skip("operators that are not drawn this time: make test-full")
    random = np.random.default_rng(0)
    x, weight = (random.standard_normal(s).astype(np.float32) for s in ((5, 3), (7, 3)))
    target = np.array([1, 7, -1, -(2**31), 6], np.int32)
    loss, lse = on_fibers(anyop.linear_cross_entropy)(x, weight, target, ignore_index=-1)
    np.testing.assert_array_equal(np.isnan(loss), [False, True, False, True, False])
    assert np.isfinite(lse).all() and loss[2] == 0
    backward = on_fibers(anyop.linear_cross_entropy_backward)
    found = backward(x, weight, target, lse, np.ones(5, np.float32), ignore_index=-1)
    np.testing.assert_array_equal(np.isnan(found[0]).any(1), np.isnan(loss))
    assert np.isnan(found[1]).all() and np.isnan(found[2]).all()


LOGITS = ["cross_entropy", "cross_entropy_with_grad", "cross_entropy_backward"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", [name for name in LOGITS if name in DRAWN])
def test_rows_of_logits(name, dtype):
    """As on the CPU at every width, in place the same bits; of targets outside the loss is NaN, the gradient 0."""
    random, function = np.random.default_rng(0), getattr(anyop, name)
    there = on_fibers(function)
    values = {"ignore_index": -1, "label_smoothing": 0.1, "z_loss": 0.01}
    for V in few(WIDTHS, 5, f"{name} {dtype}"):
        x = (2 * random.standard_normal((6, V + 8))).astype(dtype)[:, : V - V % 8 + 3 * (V % 2)]
        columns = x.shape[1]
        target = np.array([0, columns - 1, -1, columns // 2, 7, 1], np.int32)
        outside = np.array([0, 1, 0, 0, 1, 0], bool)
        rest = {}
        if name == "cross_entropy_backward":
            lse = anyop.cross_entropy(x, target, **values)[1]
            rest = {"lse": lse, "grad_loss": random.standard_normal(6).astype(np.float32)}
        found, expected = (arrays(f(x, target, **rest, **values)) for f in (there, function))
        for a, b in zip(found, expected):
            np.testing.assert_allclose(a.astype(float), b.astype(float), rtol=8e-3, atol=2e-6)
        far = np.where(outside, columns + 9, target).astype(np.int32)
        found = arrays(there(x, far, **rest, **values))
        if "backward" not in name:
            np.testing.assert_array_equal(np.isnan(found[0]), outside)
        if name != "cross_entropy":
            assert not found[-1][outside].any() and found[-1][~outside & (target >= 0)].any(1).all()
            place = x.copy() if columns % 2 else x
            again = arrays(there(place, far, **rest, **values, grad_x=place))
            assert same_bits(found, again)


GROUP_NORMS = [name for name in DRAWN if name.startswith("group_norm")]
IMAGES = [((1, 20, 64, 64), 2), ((2, 16, 33, 31), 4), ((2, 24, 8, 9), 3), ((1, 1032, 3, 4), 4)]


@pytest.mark.parametrize(("dtype", "limit"), [("float32", 6e-5), ("bfloat16", 1.6e-2)])
@pytest.mark.parametrize("name", GROUP_NORMS)
def test_groups_of_many_elements(name, dtype, limit):
    """As on the CPU: rows in registers and read again, several parts of pixels, more columns than a block has."""
    random = np.random.default_rng(0)
    for shape, groups in IMAGES:
        arrays_of = [(random.standard_normal(shape) + 1).astype(dtype) for _ in range(2)]
        if "last" in name:
            arrays_of = [np.ascontiguousarray(np.moveaxis(a, 1, -1)) for a in arrays_of]
        weight, bias = (random.standard_normal(shape[1]).astype(dtype) for _ in range(2))
        forward = getattr(anyop, name.removesuffix("_backward"))
        call = (arrays_of[1], groups, weight, bias)
        if "backward" in name:
            _, mean, rstd = forward(*call)
            call = (*arrays_of, mean, rstd, groups, weight, bias)
        function = getattr(anyop, name)
        found, expected = (f(*call, activation="silu") for f in (on_fibers(function), function))
        for a, b in zip(found, expected, strict=True):
            wide = b.astype(float)
            assert (np.abs(a.astype(float) - wide) <= limit * (1 + np.abs(wide))).all(), shape


DEAR = [name for name in DRAWN if "attention" in name]  # products of tiles, up to five of them


@pytest.mark.parametrize("name", DRAWN)
def test_standard_cases(name):
    subject = SUBJECTS[name]
    there = replace(subject.on("cuda"), function=on_fibers(subject.function))
    failures, cases = [], 0
    choices = testing.dtype_choices(subject.metadata)
    uniform = [choice for choice in choices if choice.is_uniform]
    others = [choice for choice in choices if not choice.is_uniform]
    for choice in few(uniform, 8, name) + few(others, 4, name):
        chosen = testing.standard_cases(there, choice)
        for case in few(chosen, 5 if name in DEAR else 16, f"{name} {choice}"):
            cases += 1
            try:
                testing.check_case(there, case)
            except testing.CheckError as error:
                failures.append(str(error))
    if failures:
        pytest.fail(f"{len(failures)} of {cases}:\n" + "\n".join(failures[:8]), pytrace=False)
    assert cases >= 12


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
