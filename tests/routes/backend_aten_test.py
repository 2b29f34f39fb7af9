# SPDX-License-Identifier: Apache-2.0
"""The backend aten: every operator against its reference, every framework's arrays, torch's modes, no torch at all."""

from __future__ import annotations

import importlib.util
import os
import random
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import anyop
import numpy as np
import pytest
from anyop import testing
from anyop._load import core
from anyop.cases.good_cases import fits, has_special

torch = pytest.importorskip("torch", reason="torch is not installed")
ml_dtypes = pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy is ml_dtypes'")
if sys.flags.optimize:
    pytest.skip("assert does nothing under -O", allow_module_level=True)

from anyop.backend import aten, torch_calls  # noqa: E402
from anyop.native.glues import aten_glue  # noqa: E402

# Those with a text of ATen. What returns nothing is for the test beside it, and for third_party_test.py.
SUBJECTS = {
    s.name: s
    for s in testing.find_subjects(Path(__file__).parents[2] / "ops")
    if s.results and any(kernel["backend"] == "aten" for kernel in s.metadata["kernels"])
}
assert len(SUBJECTS) >= 80
MOST_CHOICES, MORE_CASES = 8, 4  # of an operator: combinations of dtypes; cases of each by lot


@pytest.fixture(autouse=True)
def one_thread():
    """Torch's own threads would wait for each other on a busy machine, and are torch's to test."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def needs(module: str):
    missing = importlib.util.find_spec(module) is None
    return pytest.mark.skipif(missing, reason=f"{module} is not installed")


def calls(name: str) -> dict[str, int]:
    """How often each implementation ran since it is observed."""
    return {kernel.backend: kernel.calls or 0 for kernel in testing.kernel_calls(name)}


def through_aten(function):
    def call(*args, **kwargs):
        with anyop.use("aten"):
            return function(*args, **kwargs)

    return call


def some_cases(subject):
    """Of several combinations of dtypes the first case of each class, then others by lot."""
    lot = random.Random(subject.name)
    choices = testing.dtype_choices(subject.metadata)
    if len(choices) > MOST_CHOICES:
        uniform = [choice for choice in choices if choice.is_uniform][:4]
        choices = [*uniform, *lot.sample(choices, MOST_CHOICES - len(uniform))]
    cases = testing.good_cases(subject, choices[0])
    first = list({case.what: case for case in reversed(cases)}.values())
    views = [case for case in cases if case.what == "view"]
    for choice in choices:
        for case in [*first, *lot.sample(views, 2), *lot.sample(cases, MORE_CASES)]:
            case = replace(case, choice=choice)
            shows = has_special(subject, choice) and not hides_nan(subject, choice)
            if (shows or not case.special) and fits(subject, case):
                yield case


def hides_nan(subject, choice) -> bool:
    """ATen's attention need not look at what a mask or a window hides: a NaN there may or may not show."""
    return subject.name.startswith("attention")


@pytest.mark.parametrize("subject", SUBJECTS.values(), ids=SUBJECTS)
def test_every_operator_against_its_reference(subject, monkeypatch):
    """Values, guard bytes, in place, views with negative strides, unwanted results: as compiled kernels are tested.

    Where there is the glue, no call comes to Python but for negative strides, which torch has not, and lists.
    """
    call, in_python = aten._Call.__call__, []

    def note(self, values, *where):
        strides = [getattr(value, "strides", ()) for value in values]
        in_python.append(min(map(min, filter(None, strides)), default=0) < 0)
        return call(self, values, *where)

    monkeypatch.setattr(aten._Call, "__call__", note)
    routed, cases = (
        replace(subject, function=through_aten(subject.function)),
        [*some_cases(subject)],
    )
    testing.check_case(routed, cases[0])  # resolved, so that it can be observed
    testing.observe(subject.name)
    before, made = calls(subject.name), 0
    for case in cases:
        made += testing.check_case(routed, case).calls
    after = calls(subject.name)
    ran = {name: after[name] - before.get(name, 0) for name in after}
    assert {name for name, count in ran.items() if count} == {"aten"} and ran["aten"] == made > 50
    lists = any(param["list"] for param in subject.tensors)
    assert lists or all(in_python) or not aten_glue.find_loaded()


def test_every_operator_has_a_call_that_torch_knows():
    for name, subject in SUBJECTS.items():
        (kernel,) = [k for k in subject.metadata["kernels"] if k["backend"] == "aten"]
        assert callable(aten.provide(name, kernel)), name
        assert "foreign" not in kernel and kernel["form"] == "aten" and kernel["device"] == "any"


def operands():
    generator = np.random.default_rng(0)
    return generator.standard_normal((5, 33), np.float32), np.linspace(-1, 1, 33, dtype=np.float32)


def jax_call(function, *arrays):
    import jax

    jitted = jax.jit(function)
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        return np.asarray(jitted(*map(jax.numpy.asarray, arrays)))


def paddle_call(function, *arrays):
    import paddle

    return function(*(paddle.to_tensor(a, place=paddle.CPUPlace()) for a in arrays)).numpy()


def torch_call(function, *arrays):
    return function(*map(torch.from_numpy, arrays)).numpy()


CALLERS = {"torch": torch_call, "jax": jax_call, "paddle": paddle_call}


@pytest.mark.parametrize("caller", [pytest.param(name, marks=needs(name)) for name in CALLERS])
def test_callers_of_every_framework(caller):
    x, weight = operands()
    for name, arrays in {"rms_norm": (x, weight), "softmax": (x,), "add": (x, weight)}.items():
        function = getattr(anyop, name)
        expected = function(*arrays)
        with anyop.use("aten"):
            function(*arrays)
            testing.observe(name)
            before = calls(name)
            found = CALLERS[caller](function, *arrays)
        assert calls(name)["aten"] == before["aten"] + 1 and calls(name)["cpu"] == before["cpu"]
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_nothing_is_copied(monkeypatch):
    """Arguments are the caller's memory; where one call gives the result, so is the result."""
    x, _ = operands()
    out, seen = np.empty_like(x), []

    def look_up(name, overload):
        assert (name, overload) == ("silu", None)
        return lambda tensor: seen.append(tensor.data_ptr()) or torch.ops.aten.silu(tensor)

    run = aten.provide("silu", {"call": "silu(x)", "sizes": {}}, look_up)
    core.register_python("silu", "spy", "spy", "test", None, 0, -500, False, lambda: run)
    with anyop.use("spy"):
        anyop.silu(x)
    core.unregister("silu", "spy")
    assert seen == [x.ctypes.data]
    with anyop.use("aten"):
        expected = anyop.silu(x)
        monkeypatch.setattr(torch_calls.Place, "write", lambda place, values: pytest.fail("a copy"))
        anyop.silu(x, out=out)
    np.testing.assert_array_equal(out, expected)


class Refusing(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        raise AssertionError(f"a mode saw {function}")


class RefusingFunctions(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        raise AssertionError(f"a mode saw {function}")


MODES = {
    "gradients": torch.enable_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "dispatch mode": Refusing,
    "function mode": RefusingFunctions,
    "device": lambda: torch.device("meta"),
}


@pytest.mark.parametrize("mode", MODES)
def test_modes_of_torch_do_not_reach_it(mode):
    """The operands are NumPy's, so that the call is plain whatever torch does around it."""
    x, weight = operands()
    with anyop.use("aten"):
        expected = [
            anyop.linear(x, x),
            anyop.layer_norm(x, weight),
            anyop.masked_mean(x[None], x[:1, :5]),
        ]
        with MODES[mode]():
            state = modes_now()
            found = [
                anyop.linear(x, x),
                anyop.layer_norm(x, weight),
                anyop.masked_mean(x[None], x[:1, :5]),
            ]
            assert modes_now() == state
    for array, other in zip(found, expected):
        np.testing.assert_array_equal(array, other)


def modes_now() -> list:
    c = torch._C
    return [
        torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"),
        c._len_torch_dispatch_stack(), c._len_torch_function_stack(), c._dispatch_tls_local_include_set().raw_repr(),
        c._dispatch_tls_local_exclude_set().raw_repr(), c._get_torch_function_state(),
    ]  # fmt: skip


def test_inside_transforms_of_functorch():
    x, weight = operands()
    found = []

    def function(tensor):
        with anyop.use("aten"):
            found.append(anyop.layer_norm(x, weight))
        return tensor.sum()

    torch.func.grad(function)(torch.ones(3))
    torch.func.vmap(function)(torch.ones(2, 3))
    assert len(found) == 2 and all((f == found[0]).all() for f in found)
    np.testing.assert_allclose(found[0], anyop.layer_norm(x, weight), rtol=1e-5, atol=1e-5)


def test_nothing_stays_changed():
    x, _ = operands()
    state, seed = modes_now(), torch.random.get_rng_state()
    torch.set_default_dtype(torch.float64)
    try:
        with anyop.use("aten"):
            q = x.reshape(1, 5, 1, 33)
            for causal in (False, True):
                result = anyop.attention(q, q, q, np.ones((1, 1), bool), causal=causal)
                np.testing.assert_allclose(result, q, rtol=1e-6)
            with pytest.raises(ValueError, match=r"embedding: .*out of range"):
                anyop.embedding(np.array([0, 5]), x)
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert modes_now() == state and torch.equal(torch.random.get_rng_state(), seed)


@pytest.mark.parametrize(
    "op, arguments",
    [
        ("embedding_backward", lambda x: (x, np.array([0, 1, -1, 2, 3]), 4)),
        ("embedding_backward", lambda x: (x, np.array([0, 1, 4, 2, 3]), 4)),
        ("topk_backward", lambda x: (x[:, :1].copy(), np.full((5, 1), 7), 7)),
        ("embedding", lambda x: (np.array([-1]), x)),
    ],
)
def test_an_index_out_of_range_is_an_error(op, arguments):
    values = arguments(operands()[0])
    with anyop.use("aten"), pytest.raises((ValueError, anyop.InternalError), match=f"{op}: aten"):
        getattr(anyop, op)(*values)


def test_threads():
    x, weight = operands()
    found, errors = [], []

    def work():
        try:
            with anyop.use("aten"):
                found.extend(anyop.rms_norm(x, weight) for _ in range(200))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and len(found) == 1600
    assert all((array == found[0]).all() for array in found)


@pytest.mark.parametrize(
    "call, found",
    [
        ("no_such_operator(x)", "torch has no operator aten::no_such_operator"),
        ("add(x, x)", "add.Tensor"),
        ("softmax.rows(x, -1)", "no aten::softmax.rows, but softmax.int"),
        ("silu(y)", "'y' in the call"),
    ],
)
def test_a_call_that_torch_has_not_says_so(call, found):
    reason = aten.provide("silu", {"call": call, "sizes": {}})
    if call == "add(x, x)":  # aten::add has an overload "default", of another kind
        assert callable(reason) or found in reason
    else:
        assert isinstance(reason, str) and found in reason, reason


def test_a_call_of_another_shape_is_an_error():
    run = aten.provide("silu", {"call": "sum.dim_IntList(x, [0])", "sizes": {}})
    core.register_python("silu", "wrong", "wrong", "test", None, 0, -500, False, lambda: run)
    try:
        shapes = r"out has shape \(5, 33\), the result has \(33\)"
        with anyop.use("wrong"), pytest.raises(ValueError, match=shapes):
            anyop.silu(operands()[0])
    finally:
        core.unregister("silu", "wrong")


WITHOUT_TORCH = """
import sys, warnings

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)

sys.meta_path.insert(0, Hidden())
import numpy as np
import anyop

x = np.ones((2, 3), np.float32)
anyop.silu(x)
late = [name for name in sys.modules if name.startswith(("anyop.backend", "anyop.codegen"))]
print(late)
with anyop.use("aten"):
    why = {found["name"]: found["why_not"] for found in anyop.explain("silu", x).candidates}
    print(why["aten"])
    try:
        print(anyop.silu(x).sum() > 0)
    except NotImplementedError as error:
        print(error)
"""


@pytest.mark.parametrize("fallback", ["warn", "error"])
def test_without_torch(fallback):
    environment = os.environ | {"ANYOP_FALLBACK": fallback}
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    late, why, result = run.stdout.splitlines()
    assert late == "[]" and why == "needs torch, which is not installed"
    said = result if fallback == "error" else run.stderr
    assert "needs torch, which is not installed" in said and "silu" in said
    assert (result == "True") == (fallback == "warn")
