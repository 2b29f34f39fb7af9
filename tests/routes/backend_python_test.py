# SPDX-License-Identifier: Apache-2.0
"""Python callables as backends: anyop.register, every framework's arrays, what is refused, files of schemas."""

from __future__ import annotations

import importlib.util
import inspect
import json
import threading
import traceback
import warnings

import anyop
import numpy as np
import pytest
from anyop._load import core
from anyop.backend import python

ml_dtypes = pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy is ml_dtypes'")
HERE = __file__


def needs(module: str):
    return pytest.mark.skipif(
        importlib.util.find_spec(module) is None, reason=f"{module} is not installed"
    )


@pytest.fixture
def register():
    """anyop.register whose implementations go away behind the test."""
    made = []

    def add(op, function=None, **options):
        options.setdefault("name", f"test_{len(made)}")
        options.setdefault("backend", "mine")
        made.append((op, options["name"]))
        return anyop.register(op, function=function, **options)

    yield add
    for op, name in made:
        with warnings.catch_warnings():
            try:
                anyop.unregister(op, name)
            except ValueError:
                assert name not in anyop.backends(op)


def operands(dtype="float32", rows=5, D=33):
    random = np.random.default_rng(0)
    return [random.standard_normal(s).astype(dtype) for s in ((rows, D), (D,))]


def numpy_norm(x, weight, eps):
    wide = x.astype(np.float32)
    scale = 1 / np.sqrt((wide * wide).mean(-1, keepdims=True) + np.float32(eps))
    return (wide * scale * weight.astype(np.float32)).astype(x.dtype)


def torch_norm(x, weight, eps):
    wide = x.float()
    return (wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.float()).to(
        x.dtype
    )


def jax_norm(x, weight, eps):
    wide = x.astype("float32")
    scale = 1 / ((wide * wide).mean(-1, keepdims=True) + eps) ** 0.5
    return (wide * scale * weight.astype("float32")).astype(x.dtype)


NORMS = {"numpy": numpy_norm, "torch": torch_norm, "jax": jax_norm}
FRAMEWORKS = [pytest.param(name, marks=needs(name)) for name in NORMS]


# ---- what runs, and where ----


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(
    ("dtype", "limit"), [("float32", 1e-6), ("float16", 2e-3), ("bfloat16", 2e-2)]
)
def test_a_callable_runs_when_routed_to(register, framework, dtype, limit):
    calls = []

    def norm(x, weight, eps):
        calls.append(eps)
        return NORMS[framework](x, weight, eps)

    register("rms_norm", norm, framework=framework)
    x, weight = operands(dtype)
    plain = anyop.rms_norm(x, weight, eps=1e-3)
    assert calls == []
    with anyop.use("mine"):
        assert anyop.explain("rms_norm", x, weight).chosen == "test_0"
        found = anyop.rms_norm(x, weight, eps=1e-3)
    assert calls == [1e-3] and found.dtype == plain.dtype
    np.testing.assert_allclose(found.astype(float), plain.astype(float), limit, limit)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_views_of_every_layout(register, framework):
    """Negative strides are read and written, also by torch, which has none."""
    register("rms_norm", NORMS[framework], framework=framework)
    x, weight = operands(rows=6, D=8)
    base = np.zeros((12, 9), np.float32)
    for out in (base[::2, :8], base[::-2, :8], np.zeros((6, 8), np.float32)):
        for source in (x, x[::-1]):
            expected = anyop.rms_norm(source, weight)
            with anyop.use("mine"):
                assert anyop.rms_norm(source, weight, out=out) is out
            np.testing.assert_allclose(out, expected, 1e-6, 1e-6)
    assert (base[:, 8] == 0).all()


@needs("torch")
@needs("jax")
@needs("paddle")
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_callers_of_every_framework(register, framework):
    import jax
    import paddle
    import torch

    register("rms_norm", NORMS[framework], framework=framework)
    x, weight = operands()
    expected = numpy_norm(x, weight, 1e-6)
    from_jax = [anyop.rms_norm, jax.jit(lambda x, w: anyop.rms_norm(x, w))]
    arrays = [jax.numpy.asarray(a) for a in (x, weight)]
    with anyop.use("mine"):
        found = [
            anyop.rms_norm(torch.from_numpy(x), torch.from_numpy(weight)).numpy(),
            anyop.rms_norm(paddle.to_tensor(x), paddle.to_tensor(weight)).numpy(),
        ]
        if framework != "jax":
            found += [call(*arrays) for call in from_jax]
        else:  # JAX in JAX could wait for itself
            for call in from_jax:
                with pytest.raises(Exception, match="cannot run inside a program of JAX"):
                    jax.block_until_ready(call(*arrays))
    for one in found:
        np.testing.assert_allclose(np.asarray(one), expected, 1e-6, 1e-6)


@pytest.mark.parametrize("framework", ["numpy", pytest.param("torch", marks=needs("torch"))])
def test_memory_is_shared_and_results_are_written_in_place(register, framework):
    seen = {}

    def norm(x, weight, eps, *, out):
        address = (lambda a: a.data_ptr()) if framework == "torch" else (lambda a: a.ctypes.data)
        seen.update(x=address(x), out=address(out))
        out[...] = NORMS[framework](x, weight, eps)

    register("rms_norm", norm, framework=framework)
    x, weight = operands()
    out = np.empty_like(x)
    with anyop.use("mine"):
        anyop.rms_norm(x, weight, out=out)
    assert seen == {"x": x.ctypes.data, "out": out.ctypes.data}
    np.testing.assert_allclose(out, numpy_norm(x, weight, 1e-6), 1e-6, 1e-6)


@pytest.mark.parametrize("in_place", [False, True])
def test_optional_results_and_arguments(register, in_place):
    """A result that nobody wants is None where it would be written, and ignored where it is returned."""
    wanted = []

    def compute(grad_out, x):
        normal = x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(1e-6))
        return grad_out * 2, (grad_out * normal).sum(0)

    def returning(grad_out, x, weight, eps):
        return compute(grad_out, x)

    def writing(grad_out, x, weight, eps, grad_x, grad_weight):
        wanted.append((grad_x is not None, grad_weight is not None))
        for place, value in zip((grad_x, grad_weight), compute(grad_out, x)):
            if place is not None:
                place[...] = value

    register("rms_norm_backward", writing if in_place else returning)
    x, weight = operands()
    with anyop.use("mine"):
        both = anyop.rms_norm_backward(x, x, weight)
        only = anyop.rms_norm_backward(x, x, weight, grad_x=False)
    assert only[0] is None and (only[1] == both[1]).all() and (both[0] == 2 * x).all()
    assert wanted == ([(True, True), (False, True)] if in_place else [])

    def absent(x, weight, bias, eps):
        assert weight is None and bias is None and eps == 1e-5
        return x

    register("layer_norm", absent)
    with anyop.use("mine"):
        assert (anyop.layer_norm(x) == x).all()


def test_keyword_only_parameters_text_and_dtypes(register):
    register("gelu", lambda x, *, approximate: x * (2 if approximate == "tanh" else 3))
    register("cast", lambda x, dtype: x.astype(dtype))
    x, _ = operands()
    with anyop.use("mine"):
        assert (anyop.gelu(x, approximate="tanh") == 2 * x).all()
        assert (anyop.gelu(x) == 3 * x).all()
        assert anyop.cast(x, "bfloat16").dtype == ml_dtypes.bfloat16
        assert anyop.cast(x, "float64").dtype == np.float64


@needs("torch")
def test_torch_runs_without_gradients_and_modes(register):
    import torch

    seen = []

    def norm(x, weight, eps):
        seen.append((x.requires_grad, torch.is_autocast_enabled("cpu"), (x @ x.T).dtype))
        return torch_norm(x, weight, eps).detach()

    register("rms_norm", norm, framework="torch")
    x, weight = (torch.from_numpy(a).requires_grad_() for a in operands())
    with anyop.use("mine"), torch.autocast("cpu", dtype=torch.bfloat16):
        found = anyop.rms_norm(x, weight)
    assert seen[0][0] is False and seen[0][2] == torch.float32
    found.sum().backward()  # anyop's own, of the forward's inputs
    assert torch.isfinite(x.grad).all() and torch.is_grad_enabled()


@needs("jax")
def test_jax_has_64_bits_only_inside(register):
    import jax

    register("rms_norm", lambda x, w, eps: x * w + eps, framework="jax")
    x, weight = operands("float64")
    with anyop.use("mine"):
        found = anyop.rms_norm(x, weight, eps=1e-12)
    assert found.dtype == np.float64 and np.abs(found - x * weight - 1e-12).max() < 1e-15
    assert jax.numpy.asarray(x).dtype == np.float32


@needs("numba")
def test_numba(register):
    import numba

    @numba.njit(nogil=True)
    def norm(x, weight, eps, out):
        for r in range(x.shape[0]):
            total = 0.0
            for d in range(x.shape[1]):
                total += x[r, d] * x[r, d]
            scale = 1 / np.sqrt(total / x.shape[1] + eps)
            for d in range(x.shape[1]):
                out[r, d] = x[r, d] * scale * weight[d]

    register("rms_norm", norm, dtypes=["float32", "float64"], when="rank(x)=2")
    assert anyop.explain("rms_norm", *operands()).candidates[-1]["source"].startswith(HERE)
    for dtype, limit in (("float32", 1e-6), ("float64", 1e-14)):
        x, weight = operands(dtype)
        expected = anyop.rms_norm(x, weight)
        with anyop.use("mine"):
            np.testing.assert_allclose(anyop.rms_norm(x, weight), expected, limit, limit)


def test_ufuncs_and_objects_are_callables(register):
    class Twice:
        def __call__(self, x):
            return x + x

    register("silu", Twice())
    register("relu", np.abs)
    x, _ = operands()
    with anyop.use("mine"):
        assert (anyop.silu(x) == 2 * x).all() and (anyop.relu(x) == abs(x)).all()


# ---- what is refused ----

X, WEIGHT = operands()
RETURNED = [
    (lambda x, w, e: x[0], ValueError, r"returned out of shape \(33,\), expected \(5, 33\)"),
    (lambda x, w, e: x[:1], ValueError, r"returned out of shape \(1, 33\), expected \(5, 33\)"),
    (lambda x, w, e: x.astype("f8"), TypeError, "returned out of float64, expected float32"),
    (lambda x, w, e: 3.0, TypeError, "returned a float for out, expected an array"),
    (lambda x, w, e: None, TypeError, "returned a NoneType for out, expected an array"),
    (lambda x, w, e: (x, x), ValueError, "returned 2 results, expected out"),
]


@pytest.mark.parametrize(("function", "kind", "message"), RETURNED)
def test_what_does_not_fit_is_an_error_that_names_the_function(register, function, kind, message):
    register("rms_norm", function)
    out = np.full_like(X, 7)
    with anyop.use("mine"), pytest.raises(kind, match=message) as error:
        anyop.rms_norm(X, WEIGHT, out=out)
    assert "<lambda> (" in str(error.value) and HERE in str(error.value)
    assert (out == 7).all()


@pytest.mark.parametrize("kind", [ValueError, TypeError, NotImplementedError, MemoryError])
def test_errors_of_a_callable_keep_their_kind(register, kind):
    def broken(x, weight, eps):
        raise kind("so it is")

    register("rms_norm", broken)
    with anyop.use("mine"), pytest.raises(kind, match=r"so it is"):
        anyop.rms_norm(X, WEIGHT)


@pytest.mark.parametrize("framework", ["numpy", pytest.param("torch", marks=needs("torch"))])
def test_tensors_may_not_be_kept(register, framework):
    kept = []

    def keeping(x, weight, eps):
        kept.append(x[1:])
        return NORMS[framework](x, weight, eps)

    register("rms_norm", keeping, framework=framework)
    with anyop.use("mine"), pytest.raises(ValueError, match=r"keeps x, .* copy it"):
        anyop.rms_norm(X, WEIGHT)


def test_an_argument_that_a_function_lacks(register):
    """Its default is taken, another value is never dropped in silence."""
    register("rms_norm", numpy_norm)
    x, weight = np.ones((2, 3), np.float32), np.ones(3, np.float32)
    with anyop.use("mine"):
        anyop.rms_norm(x, weight, weight_offset=0.0)
        with pytest.raises(
            NotImplementedError, match=r"numpy_norm .* takes no weight_offset, which is 1.0"
        ):
            anyop.rms_norm(x, weight, weight_offset=1.0)
        with pytest.raises(NotImplementedError, match="takes no dtype"):
            anyop.rms_norm(x, weight, dtype="float16")


def test_a_caught_error_keeps_nothing(register):
    """Its frames are a cycle, which holds the arrays until it is collected."""

    def careless(x, weight, eps):
        try:
            raise KeyError
        except KeyError as error:
            cycle = error  # noqa: F841
        return numpy_norm(x, weight, eps)

    register("rms_norm", careless)
    with anyop.use("mine"):
        anyop.rms_norm(X, WEIGHT)


def good(x, weight, eps):
    return x


REGISTRATIONS = [
    (("rms_nrom", good), {}, ValueError, "no operator 'rms_nrom'; did you mean 'rms_norm'?"),
    ((3, good), {}, TypeError, "op is an int, expected the name of an operator"),
    (("rms_norm", 3), {}, TypeError, "function is an int, expected a callable"),
    (("rms_norm", good), {"framework": "nunpy"}, ValueError, "framework 'nunpy'.*did you mean 'numpy'?"),
    (("rms_norm", good), {"device": "gpu"}, ValueError, "device 'gpu', expected one of any, cpu, cuda, hip"),
    (("rms_norm", good), {"device": "cuda"}, ValueError, "numpy computes on cpu only, device is 'cuda'"),
    (("rms_norm", good), {"dtypes": ["float31"]}, ValueError, "dtype 'float31'.*did you mean 'float32'?"),
    (("rms_norm", good), {"dtypes": []}, ValueError, "dtypes is empty"),
    (("rms_norm", good), {"backend": "a b"}, ValueError, "backend is 'a b', expected letters"),
    (("rms_norm", good), {"name": "x,y"}, ValueError, "name is 'x,y', expected letters"),
    (("rms_norm", good), {"priority": 10**9}, ValueError, "expected an int from -1000 to 1000"),
    (("rms_norm", good), {"when": "D<"}, ValueError, "D<|number"),
    (("rms_norm", good), {"when": "E<3"}, ValueError, "E"),
    (("rms_norm", good), {"name": "cpu"}, ValueError, "'cpu' is its own compiled kernel"),
    (("rms_norm", lambda x, w: x), {}, TypeError, r"does not take the arguments of rms_norm \(x, weight, eps, "),
    (("rms_norm", lambda x, w, e, f: x), {}, TypeError, "missing a required argument: 'f'"),
    (("rms_norm_backward", lambda g, x, w, e, grad_x: 0), {}, TypeError, "has no parameter grad_weight"),
    (("rms_norm", lambda x, w, e, out: 0), {"framework": "jax"}, TypeError, "arrays of jax cannot be"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "options", "kind", "message"), REGISTRATIONS)
def test_registrations_that_are_refused(given, options, kind, message):
    with pytest.raises(kind, match=message):
        anyop.register(given[0], function=given[1], **options)
    assert "python" not in anyop.backends("rms_norm")


def test_what_is_missing_is_said(register):
    register("rms_norm", good, needs="no_such_module.part", name="one")
    x, weight = operands()
    why = "needs no_such_module, which is not installed (pip install no_such_module)"
    with anyop.use("mine"):
        told = {c["name"]: c["why_not"] for c in anyop.explain("rms_norm", x, weight).candidates}
        assert told["one"] == why
    register("rms_norm", good, needs="json.no_such_part:no-such-package", name="three")
    with anyop.use("mine"):
        told = {c["name"]: c["why_not"] for c in anyop.explain("rms_norm", x, weight).candidates}
    assert told["three"] == (
        "needs json.no_such_part, which is not installed (pip install no-such-package)"
    )
    assert python.missing(["json.decoder:no-such-package", "json.no_such_part"]) is None
    with pytest.raises(ValueError, match="there is no operator 'nothing'"):
        anyop.unregister("nothing", "one")
    with pytest.raises(ValueError, match="no implementation 'two'"):
        anyop.unregister("rms_norm", "two")


# ---- replacing, conditions, threads ----


def test_the_same_name_replaces_and_unregister_removes(register):
    register("silu", lambda x: x * 2, name="only")
    register("silu", lambda x: x * 3, name="only")
    x, _ = operands()
    assert anyop.backends("silu").count("only") == 1
    with anyop.use("mine"):
        assert (anyop.silu(x) == 3 * x).all()
    anyop.unregister("silu", "only")
    assert "only" not in anyop.backends("silu")


def test_conditions_and_priorities(register):
    register("silu", lambda x: x * 0, dtypes="float64", when="rows<=4", priority=5, name="small")
    assert (anyop.silu(np.ones(3)) == 0).all()
    assert (anyop.silu(np.ones(5)) != 0).all()
    assert (anyop.silu(np.ones(3, np.float32)) != 0).all()


def test_a_decorator_returns_the_function():
    @anyop.register("silu", name="decorated")
    def twice(x):
        return x * 2

    assert twice(3) == 6
    (entry,) = (i for i in json.loads(core.implementations("silu")) if i["name"] == "decorated")
    line = inspect.getsourcelines(twice)[1]
    assert entry["backend"] == "python" and entry["priority"] == -200
    assert entry["source"] == f"{HERE}:{line}" and entry["device"] == "cpu"
    anyop.unregister("silu", "decorated")


def test_calls_while_implementations_come_and_go(register):
    """Each result is one of the two, whole; nothing is freed under a call."""
    x = np.ones(4096, np.float32)
    wrong, stop = [], threading.Event()
    own = anyop.silu(x)[0]

    def call():
        while not stop.is_set():
            with anyop.use("mine,cpu"):
                found = anyop.silu(x)
            if not ((found == 2).all() or (found == own).all()):
                wrong.append(found)

    register("silu", lambda x: x * 2, name="steady")
    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(100):
        anyop.register("silu", "mine", lambda x: x * 2, name="come_and_go")
        anyop.unregister("silu", "come_and_go")
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []


# ---- files of schemas ----


def form(source, **more):
    entry = {"file": "norm_reference.py", "source": source, "function": "rms_norm"}
    return json.dumps({**entry, "framework": "numpy", "needs": [], **more})


def test_a_file_of_a_schema():
    source = "COUNT = []\ndef rms_norm(x, weight, eps):\n    COUNT.append(1)\n    return 1 / eps\n"
    assert callable(python.provide("rms_norm", form(source)))
    module = python.load_source("rms_norm", "norm_reference.py", source)
    assert module is python.load_source("rms_norm", "norm_reference.py", source)  # run once
    assert inspect.getsource(module.rms_norm) == source[len("COUNT = []\n") :]
    with pytest.raises(ZeroDivisionError) as error:
        module.rms_norm(0, 0, 0)
    assert "return 1 / eps" in "".join(traceback.format_tb(error.tb))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (form("import no_such_module"), "needs no_such_module, which is not installed"),
        (form("", needs=["no_such_module"]), "needs no_such_module, which is not installed"),
        (form("1 / 0"), "norm_reference.py cannot be loaded: ZeroDivisionError"),
        (form("def rms_norm(:"), "norm_reference.py cannot be loaded: SyntaxError"),
        (form("x = 1"), "norm_reference.py cannot be loaded: AttributeError"),
        (form("def rms_norm(x): pass"), "does not take the arguments of rms_norm"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(text, why):
    assert why in python.provide("rms_norm", text)
