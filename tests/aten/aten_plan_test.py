# SPDX-License-Identifier: Apache-2.0
"""Texts of the backend aten as plans: the same as in Python, without Python, and nothing is kept of borrowed memory."""

from __future__ import annotations

import sys
from contextlib import contextmanager

import anyop
import numpy as np
import prepared
import pytest
from anyop._load import core

torch = pytest.importorskip("torch", reason="torch is not installed")

from anyop.backend import aten  # noqa: E402
from anyop.native.glues import aten_glue  # noqa: E402

if aten_glue.find_loaded() is None:
    pytest.skip(f"there is no ATen glue: {aten_glue.problem}", allow_module_level=True)

X = np.linspace(-3, 3, 5 * 33, dtype=np.float32).reshape(5, 33)


def provided(text: str):
    return aten.provide("silu", {"call": text, "sizes": {"D": ["x", -1]}})


@contextmanager
def registered(run):
    core.register_python("silu", "tried", "tried", "test", None, 0, -500, False, lambda: run)
    try:
        with anyop.use("tried"):
            yield
    finally:
        core.unregister("silu", "tried")


@pytest.fixture
def in_python(monkeypatch):
    """Names of the operators whose calls came to Python."""
    seen, call = [], aten._Call.__call__

    def note(self, *args):
        seen.append(self.name)
        return call(self, *args)

    monkeypatch.setattr(aten._Call, "__call__", note)
    return seen


@pytest.mark.parametrize("name", ["numpy", "torch", "jax", "paddle"])
def test_no_call_of_a_framework_comes_to_python(name, in_python):
    framework = pytest.importorskip(name, reason=f"{name} is not installed")
    make = {"numpy": "asarray", "torch": "as_tensor", "paddle": "to_tensor"}.get(name)
    array = getattr(framework, make) if make else framework.numpy.asarray
    weight, bias = map(torch.from_numpy, X[:2])
    for offset in (0.0, 1.0):  # one operator of torch's, and a text of several
        with anyop.use("aten"):
            found = anyop.layer_norm(array(X), array(X[0]), array(X[1]), weight_offset=offset)
        expected = torch.layer_norm(torch.from_numpy(X), (33,), weight + offset, bias)
        np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-5, atol=1e-5)
    assert not in_python


TEXTS = [
    "mul.Scalar(x, D ** -0.5)",
    "mul.Scalar(x, (D // 2 - 3 * 4) / 7 + 2)",
    "mul.Scalar(x, -D // 4 - 3 ** 4 * 2 ** -2)",
    "mul.Scalar(x, 1 if D and not x is None else inf)",
    "mul.Scalar(x, 0 or D - 30)",
    "mul.Scalar(x, x is not None and 3)",
    "mul.Scalar(x, 2 if dtype(x) is float32 else 3)",
    "mul.Scalar(x, 2 if dtype(x) is not dtype(out) or device(x) is cpu else 3)",
    "mul.Scalar(x, 2 if shape(x) == shape(out) and shape(x) != shape(opmath(x)) else 3)",
    "mul.Scalar(x, number(2.75, x))",
    "mul.Scalar(x, number(2.75, argmax(x)))",
    "thirds = chunk(x, 3, -1); cat([thirds[2], thirds[0], thirds[1]], -1)",
    "s = sigmoid(x); t = mul.Tensor(s, x); sub.Tensor(t, s)",
    "s = sigmoid(x); t = mul.Tensor(s, x); r = exp(s); s if x is None else add.Tensor(r, t)",
    "wrong = mm(x, x); s = sigmoid(x); mul.Tensor(s, x) if D else wrong",  # which nobody asks for
    "sort.stable(x, stable=True)[0]",
    "reshape(x, [5, D])",
    "permute(reshape(x, shape(out)), [0, 1])",
    "_to_copy(_to_copy(x, dtype=float16), dtype=dtype(x))",
    "opmath(_to_copy(x, dtype=bfloat16))",
    "native_layer_norm_backward(x, x, [D], sum.dim_IntList(x, [1], True), sum.dim_IntList(x, [1], True), None, None, "
    "[True, False, x is None])[0]",
    "where.self(gt.Scalar(x, 0), x, zeros_like(x))",
]


@pytest.mark.parametrize("text", TEXTS)
def test_the_language_is_the_same_as_in_python(text, in_python):
    run = provided(text)
    with registered(run):
        planned = anyop.silu(X)
        assert not in_python
    with registered(lambda *call: run(*call)):
        np.testing.assert_array_equal(anyop.silu(X), planned)
    assert in_python == ["silu"]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("mul.Tensor(x, 2)", None),  # a number for a tensor
        ("relu_(alias(x))", None),  # writes: what it reads may be what it writes
        ("mul.Scalar(x, 2 ** 70 / 2 ** 69)", None),
        ("_to_copy(x, dtype=99)", "is no code of a dtype"),
        ("mul.Scalar(x, 1 // 0)", "division or modulo by zero"),
        ("mul.Scalar(x, D ** 64)", "fit no overload"),
        ("sum.dim_IntList(x, [0])", r"has \(33\)"),
        ("sort.stable(x, stable=True)", "gave 2 results"),
        ("sort.stable(x, stable=True)[5]", "tuple index out of range"),
        ("mm(x, x)", "mat1 and mat2 shapes cannot be multiplied"),
        ("softmax.int(x, 7)", "Dimension out of range"),
    ],
)
def test_what_a_plan_cannot_do_is_python_s(text, error, in_python):
    run = provided(text)
    with registered(run):
        if error:
            with pytest.raises((ArithmeticError, RuntimeError, TypeError, ValueError), match=error):
                anyop.silu(X)
        else:
            expected = {"relu_(alias(x))": np.maximum(X, 0)}.get(text, 2 * X)
            np.testing.assert_array_equal(anyop.silu(X.copy()), expected)
    assert in_python == ["silu"]


def test_a_result_is_an_argument():
    """Results are written when all are computed."""
    with registered(provided("transpose.int(x, 0, 1)")):
        square = X[:, :5].copy()
        expected = square.T.copy()
        found = anyop.silu(square, out=square)
        assert found is square
        np.testing.assert_array_equal(square, expected)


OWN = [
    "sigmoid(x)",
    "s = sigmoid(x); s",
    "alias(x)",
    "transpose.int(contiguous(transpose.int(x, 0, 1)), 0, 1)",
    "chunk(cat([x, x], 0), 2, 0)[1]",
    "expand(sum.dim_IntList(x, [1], True), shape(out))",
    "_to_copy(x, dtype=float64)",
    "mul.Scalar(zeros_like(out), 2)",
]


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("text", OWN)
def test_what_torch_made_is_the_callers_own(text, inference, in_python):
    """Like a tensor that was allocated for the result, whatever ATen returned."""
    run = provided(text)
    with torch.inference_mode(inference):
        x = torch.from_numpy(X.copy())
        before = x._version if not inference else None
        with registered(run):
            found = anyop.silu(x)
        assert not in_python
        with registered(lambda *call: run(*call)):
            like = anyop.silu(x)
        assert torch.equal(found, like)
        assert (found.dtype, found.stride(), found.is_inference(), found.requires_grad) == (
            like.dtype, like.stride(), inference, False,
        )  # fmt: skip
        assert found.untyped_storage().nbytes() == like.untyped_storage().nbytes()
        assert found._base is None
        found.add_(1)
        assert torch.equal(x, torch.from_numpy(X))
        assert inference or (x._version, found._version) == (before, 1)


def test_two_results_that_are_one_tensor_are_two():
    q = torch.randn(3, 2, 8)
    positions, table = torch.arange(3), torch.randn(3, 4)
    run = aten.provide("rope_qk", {"call": "n = neg(q); (n, n)", "sizes": {}})
    core.register_python("rope_qk", "tried", "tried", "test", None, 0, -500, False, lambda: run)
    try:
        with anyop.use("tried"):
            a, b = anyop.rope_qk(q, q, table, table, positions)
    finally:
        core.unregister("rope_qk", "tried")
    a.zero_()
    assert torch.equal(b, -q)


HOSTILE = """
import warnings
warnings.simplefilter("ignore")
import anyop
import numpy as np
import torch

kept, copies = [], []
library = torch.library.Library("aten", "IMPL")
x = np.linspace(-1, 1, 10_000, dtype=np.float32).reshape(100, 100)


def copy_(to, values, non_blocking=False):
    copies.append(to.shape)
    raise RuntimeError("no copies today")


with anyop.use("aten"):
    anyop.relu(x)
    library.impl("copy_", copy_, "CPU", allow_override=True)
    found = anyop.relu(torch.from_numpy(x))
    print("torch", not copies, np.array_equal(found.numpy(), x.clip(0)), found.is_contiguous())
    try:
        anyop.relu(x)
    except anyop.InternalError as error:
        print("numpy", len(copies), "no copies today" in str(error))
    library._destroy()

    library = torch.library.Library("aten", "IMPL")
    library.impl("relu", lambda t: kept.append(t) or t.clone(), "CPU", allow_override=True)
    try:
        anyop.relu(x)
    except ValueError as error:
        print(error)
    print(kept[0].untyped_storage().nbytes())
    library._destroy()
    print(np.array_equal(anyop.relu(x), x.clip(0)))

    library = torch.library.Library("aten", "IMPL")
    library.impl("relu", lambda t: kept.append(t.clamp(0)) or kept[-1], "CPU", allow_override=True)
    found = anyop.relu(torch.from_numpy(x)).add_(1)
    print(np.array_equal(kept[-1].numpy(), x.clip(0)), np.array_equal(found.numpy() - 1, x.clip(0) + 1 - 1))
    library._destroy()
"""


def test_what_torch_keeps_and_cannot_copy():
    """A torch caller's result is torch's own; a copy that fails is an error; what is kept finds no memory."""
    run = prepared.run(
        "torch",
        [sys.executable, "-c", HOSTILE],
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == [
        "torch True True True",
        "numpy 1 True",
        "relu: aten keeps x, whose memory is there for it only during the call; copy it",
        "0",
        "True",
        "True True",
    ]
