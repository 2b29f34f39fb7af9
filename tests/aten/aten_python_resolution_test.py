# SPDX-License-Identifier: Apache-2.0
"""Which overload a call takes, compared with torch's (torch._C._jit_resolve_packet) on drawn arguments."""

from __future__ import annotations

import random
import warnings
from collections import Counter
from functools import cache

import numpy as np
import pytest
import torch
from anyop import aten

T = torch.ones(3, 3)
INT, FLOAT, FLAG = torch.tensor(2), torch.tensor(2.5), torch.tensor(True)
SIZES, EMPTY = torch.tensor([2, 2]), torch.ones(0)
ANYTHING = [
    T, T, T, INT, FLOAT, FLAG, SIZES, EMPTY, None, True, 1, 2, 0, -1, 0.5, 2.0, 1j, [1], [0, 1],
    (1, 2), [1.0, 2.0], [True], [T, T], (T,), [T, None], [None], [], "sum", ["a"], torch.float32,
    torch.device("cpu"), "cpu", torch.strided, torch.channels_last, torch.Generator(), range(2),
    torch.Size([2, 2]), [T, 1], [1, 2.5], [INT, INT], float("nan"),
]  # fmt: skip
LIKELY = {
    "Tensor": [T, INT, FLOAT, SIZES, None, 2.0, True],
    "Tensor[]": [[T, T], (T,), [T, None], []],
    "int": [1, 0, 2, True, INT, 2.0],
    "int[]": [[1], [0, 1], (1, 2), 1, [1.0], [True], None, SIZES],
    "float": [0.5, 1, FLOAT, True, INT],
    "float[]": [[0.5], 2.0, [1, 2], None],
    "bool": [True, False, 1, 0.0, None, FLAG],
    "Scalar": [1, 0.5, 1j, True, INT],
}
KEYWORDS = ["dim", "keepdim", "dtype", "out", "alpha", "generator", "other", "min", "p", "foo"]


@cache
def names() -> list[str]:
    return [name for name in dir(aten) if name not in aten.__all__]


def draw(rng: random.Random, name: str):
    """Arguments like those of one of the overloads, or any at all."""
    if rng.random() < 0.3:
        keywords = {rng.choice(KEYWORDS): rng.choice(ANYTHING)} if rng.random() < 0.3 else {}
        return tuple(rng.choice(ANYTHING) for _ in range(rng.randint(1, 4))), keywords
    args, keywords = [], {}
    for p in aten.metadata(rng.choice(aten.overloads(name)))["params"]:
        if "default" in p and rng.random() < 0.6:
            break
        kind = p["kind"] + ("[]" if p.get("list") else "")
        value = rng.choice(LIKELY.get(kind, ANYTHING) if rng.random() < 0.85 else ANYTHING)
        if p.get("keyword_only") or keywords or rng.random() < 0.05:
            keywords[p["name"]] = value
        else:
            args.append(value)
    return tuple(args), keywords


def torchs_choice(name: str, args, keywords) -> str | None:
    try:
        overload = torch._C._jit_resolve_packet(f"aten::{name}", *args, **keywords)
    except (RuntimeError, OverflowError):
        return None
    return name if overload == "default" else f"{name}.{overload}"


def choice(name: str, args, keywords) -> str | None:
    try:
        return aten.resolve(name, *args, **keywords)
    except TypeError:
        return None


def repeats_a_number(overload: str, args, keywords) -> bool:
    """What anyop takes beyond torch.ops: one number for a list of fixed length, as torch.conv2d does; a seed."""
    for at, p in enumerate(aten.metadata(overload)["params"]):
        value = args[at] if at < len(args) else keywords.get(p["name"])
        is_list = p.get("fixed_count") is not None and not isinstance(value, (list, tuple))
        if value is not None and (is_list or p["kind"] == "generator"):
            return True
    return False


def as_numpy(value):
    if isinstance(value, torch.Tensor):
        return value.numpy()
    if type(value) in (list, tuple):
        return type(value)(as_numpy(item) for item in value)
    return value


def test_the_overload_is_torchs():
    rng, count, wrong = random.Random(8), Counter(), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names() * 2:
            args, keywords = draw(rng, name)
            expected, found = torchs_choice(name, args, keywords), choice(name, args, keywords)
            if expected and expected not in aten.overloads(name):
                continue  # TorchScript's own, as add(int, int)
            count["same" if expected == found else "refused" if found is None else "other"] += 1
            count["chosen"] += found is not None
            if found not in (expected, None) and not (
                expected is None and repeats_a_number(found, args, keywords)
            ):
                wrong.append((name, args, keywords, expected, found))
    print(dict(count))
    assert not wrong, wrong[:3]
    assert count["refused"] < count["chosen"] / 50  # fractions, dtypes as numbers
    assert count["chosen"] > 600


def test_numpy_arrays_are_tensors():
    rng, seen = random.Random(9), 0
    for name in names():
        args, keywords = draw(rng, name)
        found = choice(name, args, keywords)
        arrays = [as_numpy(value) for value in args]
        with_arrays = choice(name, arrays, {k: as_numpy(v) for k, v in keywords.items()})
        seen += found is not None and found == with_arrays
        if found and with_arrays:
            assert found == with_arrays, (name, args, keywords)
        elif found:  # torch.ops takes a tensor apart into a list of indices
            assert "Tensor?[]" in aten.schema(found), (name, args, keywords)
        elif with_arrays:  # sizes in an array, which torch.ops takes of NumPy, too
            assert any(
                isinstance(v, np.ndarray) for v in [*arrays, *map(as_numpy, keywords.values())]
            )
    assert seen > 300


@pytest.mark.parametrize(("args", "keywords", "expected"), [
    (("sum", T, 1), {}, "sum.dim_IntList"),
    (("sum", T), {"dtype": "float64"}, "sum"),
    (("max", T, T), {}, "max.other"),
    (("max", T, True), {}, "max.dim"),
    (("where", T, 1, T), {}, "where.ScalarSelf"),
    (("pow", 2, T), {}, "pow.Scalar"),
    (("std", T, 1), {}, "std"),
    (("std", T, [1]), {}, "std.dim"),
    (("to", T, "float64"), {}, "to.dtype"),
    (("view", T, "int32"), {}, "view.dtype"),
    (("view", T, [9]), {}, "view"),
    (("conv2d", T, T), {"padding": "same"}, "conv2d.padding"),
    (("conv2d", T, T, None, 2), {}, "conv2d"),
    (("add", T, T), {"out": T}, "add.out"),
    (("sum.default", T), {}, "sum"),
    (("mul", T, 2), {"like": "numpy"}, "mul.Tensor"),
])  # fmt: skip
def test_known_choices(args, keywords, expected):
    name, *rest = args
    assert aten.resolve(name, *rest, **keywords) == expected
    assert (
        aten.resolve(name, *map(as_numpy, rest), **{k: as_numpy(v) for k, v in keywords.items()})
        == expected
    )
