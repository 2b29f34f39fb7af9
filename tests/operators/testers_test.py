# SPDX-License-Identifier: Apache-2.0
"""Tests of the standard tests: operators that are wrong on purpose must fail them, each for the right reason."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import anyop
import numpy as np
import pytest
from anyop import testing
from anyop.cases.dtype_choices import NAMES, numpy_dtype, pairs, promote
from anyop.cases.placed import KINDS, place, place_values, strides_of
from anyop.cases.sizes import Misfit, Sizes, broadcast, evaluate, match, shape_of
from anyop.testing.check import check_values
from anyop.testing.refuse_torch import torch_missing

SUBJECTS = {s.name: s for s in testing.find_subjects(Path(__file__).parents[2] / "ops")}


# ---- wrong results ----


def first_failure(name: str, function, dtype: str | None = None) -> str | None:
    """What the standard tests say of the operator with another function in its place."""
    subject = dataclasses.replace(SUBJECTS[name], function=function)
    choices = [c for c in testing.dtype_choices(subject.metadata) if dtype in (None, str(c))]
    for choice in sorted(choices, key=lambda choice: not choice.is_uniform)[:1]:
        for case in testing.good_cases(subject, choice):
            try:
                testing.check_case(subject, case)
            except testing.CheckError as error:
                return str(error)
    return None


def changed(name: str, change):
    """The operator, its result changed by change(result array, arguments)."""
    real = getattr(anyop, name)

    def function(*positional, **arguments):
        found = real(*positional, **arguments)
        change(found, arguments)
        return found

    return function


def test_wider_limits_hold_on_their_device_alone():
    """Off by 1e-3 in float16: right where [tolerance.cuda] says so, wrong on the CPU."""
    own = SUBJECTS["attention_backward"]
    assert own.metadata["tolerance_on"] == {"cuda": {"float16": 4e-3, "bfloat16": 3.2e-2}}
    there = own.on("cuda")
    assert own.on("cpu") is own.on("hip") is own and there.metadata["tolerance"]["float32"] == 5e-5

    def off(*positional, **arguments):
        found = anyop.attention_backward(*positional, **arguments)
        small = [(abs(x) < 0.25) & (x.dtype == "f2") for x in found]  # not rounded much besides
        return tuple(x + (1e-3 * where).astype(x.dtype) for x, where in zip(found, small))

    choices = testing.dtype_choices(own.metadata)
    case = testing.good_cases(own, next(c for c in choices if c.names["q"] == "float16"))[0]
    for subject in (own, there):
        check_values(dataclasses.replace(subject, function=anyop.attention_backward), case)
    check_values(dataclasses.replace(there, function=off), case)
    with pytest.raises(testing.CheckError, match=r"within 0\.0006"):
        check_values(dataclasses.replace(own, function=off), case)


def test_a_backend_that_gets_finite_values_gets_no_others():
    """`finite` of [test] takes the case with infinities and NaN away there, and on the CPU it stays."""
    own = SUBJECTS["attention_backward"]
    for subject, expected in ((own, 1), (own.on("cpu"), 1), (own.on("cuda"), 0)):
        cases = testing.good_cases(subject, testing.dtype_choices(own.metadata)[0])
        assert sum(case.special for case in cases) == expected


def memory_around(array: np.ndarray) -> np.ndarray:
    """All bytes of the memory that an array was placed in."""
    base = array
    while isinstance(base.base, np.ndarray):
        base = base.base
    return np.frombuffer(base.base, np.uint8) if isinstance(base.base, memoryview) else base


def write_at(distance: int):
    def change(found, arguments):
        if "out" in arguments:
            out = arguments["out"]
            memory = memory_around(out)
            start = out.__array_interface__["data"][0] - memory.__array_interface__["data"][0]
            at = start - 1 if distance < 0 else start + out.nbytes
            memory[at] ^= 1

    return change


def write_gap(found, arguments):
    out = arguments.get("out")
    if out is not None and out.ndim >= 2 and not out.flags.c_contiguous:
        wide = np.lib.stride_tricks.as_strided(
            out, (*out.shape[:-1], out.shape[-1] + 1), out.strides
        )
        wide[(-1,) * out.ndim] = 3


def last_element(found, arguments):
    if found.size:
        found[(-1,) * found.ndim] += 1e-3


def nan_to_zero(found, arguments):
    np.nan_to_num(found, copy=False)


def modify_input(found, arguments):
    if arguments["x"].size:
        arguments["x"][(0,) * arguments["x"].ndim] = 7


def one_bit(found, arguments):
    if "out" in arguments and found.size:
        first = (0,) * found.ndim
        found[first] = np.nextafter(found[first], np.float32(9))


CHANGES = {
    "scaled by 1.01": (lambda found, _: np.multiply(found, 1.01, out=found), "expected"),
    "the last element off": (last_element, "expected"),
    "NaN made 0": (nan_to_zero, "infinities and NaN"),
    "a byte before out": (write_at(-1), "bytes outside of out"),
    "a byte behind out": (write_at(1), "bytes outside of out"),
    "a gap between rows of out": (write_gap, "written"),
    "x changed": (modify_input, "x was changed"),
    "one bit off into out=": (one_bit, "other bits than a new result"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_result_is_caught(change):
    function, says = CHANGES[change]
    found = first_failure("rms_norm", changed("rms_norm", function), "float32")
    assert found and says in found and found.startswith("rms_norm [float32]"), found


def replaced(result):
    """rms_norm whose new results are made by result(right one)."""

    def function(*positional, **arguments):
        found = anyop.rms_norm(*positional, **arguments)
        return found if "out" in arguments else result(found)

    return function


RESULTS = {
    "float64": (lambda y: y.astype(np.float64), "float64, expected an ndarray of float"),
    "another shape": (lambda y: y[None], "expected (2, 3, 5)"),
    "not contiguous": (lambda y: np.asfortranarray(y), "contiguous"),
    "read-only": (lambda y: y.setflags(write=False) or y, "writeable"),
    "a subclass": (
        lambda y: y.view(np.matrix) if y.ndim == 2 else np.ma.array(y),
        "expected an ndarray",
    ),
    "a tuple": (lambda y: (y,), "tuple"),
    "None": (lambda y: None, "NoneType"),
}


@pytest.mark.parametrize("result", RESULTS)
def test_a_result_of_the_wrong_form_is_caught(result):
    make, says = RESULTS[result]
    found = first_failure("rms_norm", replaced(make))
    assert found and says in found, found


def ignores(name: str, argument: str, value):
    real = getattr(anyop, name)

    def function(*positional, **arguments):
        if argument in arguments:
            arguments[argument] = value(arguments[argument])
        return real(*positional, **arguments)

    return function


def copied_out(*positional, **arguments):
    return np.array(anyop.rms_norm(*positional, **arguments))


def swapped(*positional, **arguments):
    return anyop.rms_norm(*positional[1::-1], *positional[2:], **arguments)


def clobbers_in_place(x, *rest, out=None, **arguments):
    """Writes the result before it has read all of x."""
    if out is not None and np.may_share_memory(x, out):
        out[...] = 0
    return anyop.rms_norm(x, *rest, out=out, **arguments)


def raises(*positional, **arguments):
    raise ValueError("rms_norm: x is too beautiful")


def reads_behind(x, *rest, **arguments):
    """Takes one element of x too many into the first row, which lies outside where x is a view."""
    found = anyop.rms_norm(x, *rest, **arguments)
    if x.size and not x.flags.owndata:
        found[(0,) * found.ndim] += (
            0 * np.lib.stride_tricks.as_strided(x, (x.size + 1,), x.strides[-1:])[x.size]
        )
    return found


WRONG = {
    "a default used instead of the value": ("rms_norm", ignores("rms_norm", "eps", lambda e: 1e-6), "eps=", "float64"),
    "an optional argument ignored": ("linear", ignores("linear", "bias", lambda b: None), "linear", None),
    "a flag ignored": ("attention", ignores("attention", "causal", lambda c: False), "causal=True", None),
    "a word ignored": ("gelu", ignores("gelu", "approximate", lambda a: "none"), "approximate='tanh'", None),
    "another object than out=": ("rms_norm", copied_out, "another object came back", None),
    "arguments by position swapped": ("rms_norm", swapped, "by position|raised", "float64"),
    "in place after writing": ("rms_norm", clobbers_in_place, "in place|outside|other bits", None),
    "an error": ("rms_norm", raises, "raised ValueError", None),
    "a read behind a view": ("rms_norm", reads_behind, "nan", None),
    "indices one off": ("topk", changed("topk", lambda f, _: np.add(f[1], 1, out=f[1])), "indices", None),
    "values in the wrong order": (
        "topk", changed("topk", lambda f, _: np.copyto(f[0], f[0][..., ::-1].copy())), "values", None,
    ),
    "a broadcast the wrong way": (
        "add",
        lambda *p, **a: anyop.add(*p, **{**a, "y": a["y"][..., :1] if a["y"].ndim else a["y"]}),
        "y|add",
        None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_operator_is_caught(wrong):
    name, function, says, dtype = WRONG[wrong]
    found = first_failure(name, function, dtype)
    assert found and any(part in found for part in says.split("|")), found


def test_the_right_operators_pass():
    for name in ("rms_norm", "topk", "linear"):
        assert first_failure(name, getattr(anyop, name)) is None


def test_a_missing_reference_is_an_error(tmp_path):
    subject = dataclasses.replace(SUBJECTS["rms_norm"], file=tmp_path / "rms_norm.toml")
    with pytest.raises(LookupError, match=r"rms_norm_test\.py is missing"):
        _ = subject.reference
    (tmp_path / "rms_norm_test.py").write_text("def another(): pass\n")
    with pytest.raises(LookupError, match="no such function"):
        _ = subject.reference
    (tmp_path / "rms_norm_test.py").write_text("def reference(x, **rest): return x[0]\n")
    case = testing.good_cases(subject, testing.dtype_choices(subject.metadata)[0])[0]
    with pytest.raises(testing.CheckError, match="the reference has shapes"):
        testing.check_case(subject, case)


# ---- wrong refusals ----


def refusal_failures(function) -> dict[str, str]:
    """By class, the first complaint about rms_norm with another function in its place."""
    good = testing.Good(dataclasses.replace(SUBJECTS["rms_norm"], function=function))
    found: dict[str, str] = {}
    for refusal in testing.refusals(good):
        try:
            testing.check_refusal(good, refusal)
        except testing.CheckError as error:
            found.setdefault(refusal.kind, str(error))
    return found


def failing(change):
    """rms_norm whose errors are changed."""

    def function(*positional, **arguments):
        try:
            return anyop.rms_norm(*positional, **arguments)
        except Exception as error:
            return change(error, arguments)

    return function


def again(kind: type, text):
    def change(error, _):
        raise kind(text(str(error)) if callable(text) else text)

    return change


def accepts(error, arguments):
    return np.zeros((2, 3, 5), np.float32)


def writes_first(error, arguments):
    out = arguments.get("out")
    if isinstance(out, np.ndarray) and out.flags.writeable and out.dtype == np.float32:
        out[...] = 0
    raise error


class BreaksAfterwards:
    """Gives wrong results once it has refused something."""

    broken = False

    def __call__(self, *positional, **arguments):
        try:
            found = anyop.rms_norm(*positional, **arguments)
        except Exception:
            self.broken = True
            raise
        return found + 1 if self.broken else found


REFUSALS = {
    "nothing is refused": (failing(accepts), "was accepted|must only return Tensors"),
    "all errors are KeyError": (failing(again(KeyError, str)), "raised KeyError"),
    "all errors are ValueError": (failing(again(ValueError, lambda s: s)), "raised ValueError"),
    "all errors are TypeError": (failing(again(TypeError, lambda s: s)), "raised TypeError"),
    "the operator is not named": (
        failing(lambda e, _: again(type(e), str(e)[10:])(e, _)),
        "begin with the operator",
    ),
    "the argument is not named": (
        failing(lambda e, _: again(type(e), "rms_norm: wrong")(e, _)),
        "names none of",
    ),
    "a path is shown": (
        failing(lambda e, _: again(type(e), f"{e} at /src/core/call.cc")(e, _)),
        "shows",
    ),
    "C++ is shown": (failing(lambda e, _: again(type(e), f"{e}: std::bad_alloc")(e, _)), "shows"),
    "results are written first": (failing(writes_first), "was written although"),
    "wrong afterwards": (BreaksAfterwards(), "another result afterwards"),
}


@pytest.mark.parametrize("wrong", REFUSALS)
def test_a_wrong_refusal_is_caught(wrong):
    function, says = REFUSALS[wrong]
    found = refusal_failures(function)
    assert found and all(re.search(says, text) for text in found.values()), found


@pytest.mark.parametrize(
    "argument",
    [
        "unknown keyword",
        "wrong type",
        "forbidden dtype",
        "size",
        "output over an input",
        "masked array",
    ],
)
def test_one_check_left_out_is_caught(argument):
    """Accepting one class alone is noticed in that class."""
    good = testing.Good(SUBJECTS["rms_norm"])
    bad = [r for r in testing.refusals(good) if r.kind == argument]
    accepting = testing.Good(dataclasses.replace(good.subject, function=failing(accepts)))
    assert bad
    for refusal in bad:
        with pytest.raises(testing.CheckError, match="was accepted"):
            testing.check_refusal(accepting, refusal)


# ---- the parts ----


def test_expressions():
    sizes = Sizes({"D": 7, "k": 3}, {"X": (2, 3)})
    for expression, value in (
        (["ceildiv", "D", 2], 4), (["//", "D", 2], 3), (["%", ["-", 0, "D"], 4], 1), (["*", 2, "D"], 14),
        (["min", "D", "k"], 3), (["max", "D", 9], 9), (["rank", "X"], 2), (["numel", "X"], 6),
        (["and", ["<", "k", "D"], ["!=", "k", 3]], 0), (["or", ["<=", "k", "D"], ["==", "k", 4]], 1),
    ):  # fmt: skip
        assert evaluate(expression, sizes) == value
    for expression in (["//", "D", 0], ["*", 2**40, 2**40], "Q"):
        with pytest.raises(Misfit):
            evaluate(expression, sizes)


def test_broadcast_is_numpys():
    shapes = [(), (1,), (3,), (0,), (2, 1), (2, 3), (1, 3), (4, 1, 1), (3, 2)]
    for a in shapes:
        for b in shapes:
            try:
                expected = np.broadcast_shapes(a, b)
            except ValueError:
                with pytest.raises(Misfit):
                    broadcast(a, b)
            else:
                assert broadcast(a, b) == expected


def test_promotion_is_torchs():
    if reason := torch_missing():
        pytest.skip(reason)
    import torch

    compared = 0
    for a, b in pairs():
        try:
            expected = torch.promote_types(getattr(torch, a), getattr(torch, b))
        except RuntimeError:
            assert promote(a, b) is None, (a, b)
        else:
            compared += 1
            assert f"torch.{promote(a, b)}" == str(expected), (a, b)
    assert compared > 150


def test_the_oracle_for_shapes():
    attention, matmul = (SUBJECTS[name].metadata for name in ("attention", "matmul"))
    shapes = {"q": (2, 4, 3, 5), "k": (2, 2, 6, 5), "v": (2, 2, 6, 7), "mask": (3, 1)}
    open_ones = {"window_left": -1, "window_right": -1}
    sizes = match(attention, shapes, open_ones)
    assert shape_of(attention["results"][0]["shape"], sizes) == (2, 4, 3, 7)
    for name, wrong in (
        ("k", (2, 3, 6, 5)),
        ("k", (2, 2, 6, 4)),
        ("v", (2, 2, 5, 7)),
        ("mask", (2, 6)),
        ("q", (2, 4, 3)),
    ):
        with pytest.raises(Misfit):
            match(attention, {**shapes, name: wrong}, open_ones)
    sizes = match(matmul, {"a": (2, 1, 3, 4), "b": (5, 4, 6)}, {})
    assert shape_of(matmul["results"][0]["shape"], sizes) == (2, 5, 3, 6)
    with pytest.raises(Misfit):
        match(matmul, {"a": (2, 3, 4), "b": (3, 4, 6)}, {})


@pytest.mark.parametrize("kind", KINDS["strided"])
@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 3, 4), (1, 5), (0, 3)])
def test_views_hold_their_values_and_know_their_guards(kind, shape):
    if kind.startswith("rows") and len(shape) < 2:
        shape = (2, *shape)
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + 1
    array = place_values(values, kind).array
    kept = values[:1] if kind == "rows_zero" else values[..., :1] if kind == "last_zero" else values
    assert np.array_equal(array, np.broadcast_to(kept, shape))
    if kind in ("rows_zero", "last_zero"):
        return
    placed = place(shape, np.dtype(np.float32), kind, alignment=64)
    assert placed.is_untouched() and placed.is_guarded()
    placed.array[...] = values
    assert placed.is_guarded() and np.array_equal(placed.array, values)
    assert placed.is_untouched() == (values.size == 0)
    assert len(placed.outside()) == placed.memory.size - values.nbytes
    placed.memory[0] = 1
    assert not placed.is_guarded()
    if values.size > 1 and kind not in ("plain", "offset"):
        steps = zip(shape, strides_of(kind, shape), strides_of("plain", shape))
        differs = any(size > 1 and a != b for size, a, b in steps)
        assert differs or sum(size > 1 for size in shape) < 2


def test_dtypes_have_a_numpy_type_each():
    pytest.importorskip("ml_dtypes", reason="bfloat16 and float8 in NumPy are ml_dtypes arrays")
    assert len({numpy_dtype(name) for name in NAMES}) == 17


def test_cases_are_the_same_every_time():
    for subject in list(SUBJECTS.values())[::5]:
        choice = testing.dtype_choices(subject.metadata)[0]
        once, twice = (testing.good_cases(subject, choice) for _ in range(2))
        assert [c.label for c in once] == [c.label for c in twice]
        for a, b in list(zip(once, twice))[::7]:
            left, right = testing.build(subject, a), testing.build(subject, b)
            assert left.snapshot().keys() == right.snapshot().keys()
            for name, value in left.arguments.items():
                if isinstance(value, np.ndarray):
                    assert value.tobytes() == right.arguments[name].tobytes()
