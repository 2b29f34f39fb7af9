# SPDX-License-Identifier: Apache-2.0
"""Bad calls with JAX's arrays: errors in the core's words when the program is traced, never a wrong number."""

from __future__ import annotations

import re
from pathlib import Path

import anyop
import numpy as np
import pytest
from anyop import testing
from anyop.testing.check import CheckError

jax = pytest.importorskip("jax", reason="jax is not installed")
import anyop.jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

SUBJECTS = {s.name: s for s in testing.find_subjects(Path(__file__).parents[2] / "ops")}
X, W = jnp.ones((2, 8)), jnp.ones(8)
# Of the standard refusals those that are no matter of memory, which is XLA's.
KINDS = {
    "missing", "unknown keyword", "given twice", "too many positional", "wrong type", "None for a required one",
    "out of int64", "out of float64", "broken text", "unknown dtype", "list for a tensor", "tensor for a list",
    "count of a list", "element of a list", "forbidden dtype", "unequal dtype", "size", "rank", "condition",
    "extreme integer", "broadcast", "lists of two lengths",
}  # fmt: skip
EACH = 3  # of one kind and operator: tracing takes its time


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


def as_jax(value):
    if isinstance(value, list):
        return [as_jax(item) for item in value]
    return jax.device_put(value.copy()) if isinstance(value, np.ndarray) else value


def traced(function, positional, arguments):
    """The call inside jax.eval_shape, which traces and runs nothing."""
    named = {n: v for n, v in arguments.items() if isinstance(v, jax.Array)}
    placed = {at: v for at, v in enumerate(positional) if isinstance(v, jax.Array)}

    def call(named, placed):
        args = [placed.get(at, value) for at, value in enumerate(positional)]
        return function(*args, **{**arguments, **named})

    return jax.eval_shape(call, named, placed)


@pytest.mark.parametrize("subject", SUBJECTS.values(), ids=SUBJECTS)
def test_bad_calls_are_refused_when_they_are_traced(subject):
    good = testing.Good(subject)
    seen: dict[str, int] = {}
    for refusal in testing.refusals(good):
        seen[refusal.kind] = seen.get(refusal.kind, 0) + 1
        if refusal.kind not in KINDS or refusal.call or seen[refusal.kind] > EACH:
            continue
        positional = [as_jax(value) for value in refusal.positional]
        arguments = {name: as_jax(value) for name, value in refusal.arguments.items()}
        arrays = [v for v in (*positional, *arguments.values()) if isinstance(v, jax.Array)]
        if not arrays:  # then it is not JAX's
            continue
        try:
            traced(subject.function, positional, arguments)
        except refusal.errors as error:
            assert str(error).startswith(f"{subject.name}: "), (refusal.kind, refusal.label, error)
        except Exception as error:
            raise CheckError(f"{refusal.kind}: {refusal.label}: {error!r}") from error
        else:
            raise CheckError(f"{subject.name}: {refusal.kind}: {refusal.label}: was accepted")
    assert {"size", "forbidden dtype", "missing"} & set(seen)


REFUSED = [
    (
        TypeError,
        "weight is a numpy.ndarray, expected a jax.Array as the tensors before it",
        lambda: anyop.rms_norm(X, np.ones(8, np.longdouble)),  # which JAX lacks
    ),
    (TypeError, "weight is a float, expected a tensor", lambda: anyop.rms_norm(X, 1.0)),
    (
        TypeError,
        "weight is a jax.Array, expected a ",
        lambda: anyop.rms_norm(np.ones((2, 8)).view(type("Own", (np.ndarray,), {})), W),
    ),
    (
        ValueError,
        "out is a place for a result, and JAX's arrays cannot be written",
        lambda: anyop.rms_norm(X, W, out=X),
    ),
    (
        ValueError,
        "out is a place for a result",
        lambda: jax.jit(lambda x, w: anyop.rms_norm(x, w, out=x))(X, W),
    ),
    (
        TypeError,
        "eps is a traced value, expected float",
        lambda: jax.jit(anyop.rms_norm)(X, W, 1e-5),
    ),
    (
        TypeError,
        "x has dtype int4, expected float16, bfloat16, float32, float64",
        lambda: anyop.rms_norm(X.astype(jnp.int4), W),
    ),
    (
        TypeError,
        "x has dtype float8_e4m3b11fnuz, expected",
        lambda: anyop.rms_norm(X.astype(jnp.float8_e4m3b11fnuz), W),
    ),
    (TypeError, "x has dtype key<fry>, expected", lambda: anyop.rms_norm(jax.random.key(0), W)),
    (TypeError, "eps is a jax.Array, expected float", lambda: anyop.rms_norm(X, W, X)),
]


@pytest.mark.parametrize("at", range(len(REFUSED)))
def test_messages(at):
    error, text, call = REFUSED[at]
    with pytest.raises(error, match="^rms_norm: " + re.escape(text)):
        call()


def test_a_torch_tensor_among_jaxs():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    with pytest.raises(
        TypeError, match=r"rms_norm: weight is a torch\.Tensor, expected a jax\.Array"
    ):
        anyop.rms_norm(X, torch.ones(8))
    with pytest.raises(
        TypeError, match=r"rms_norm: weight is a jax\.Array, expected a torch\.Tensor"
    ):
        anyop.rms_norm(torch.ones(2, 8), W)


def test_no_dtype_is_narrowed():
    """Where JAX has no 64-bit dtypes, a result that needs one is an error."""
    with jax.enable_x64(False):
        x = jnp.ones((2, 8))
        with pytest.raises(
            TypeError,
            match=r"topk: indices has dtype int64, which JAX has only with .*jax_enable_x64",
        ):
            anyop.topk(x, 2)
        with pytest.raises(TypeError, match="cast: out has dtype float64"):
            jax.jit(lambda x: anyop.cast(x, "float64"))(x)
        assert anyop.relu(x).dtype == jnp.float32
    assert anyop.topk(jnp.ones((2, 8)), 2)[1].dtype == jnp.int64


def test_errors_of_kernels():
    """What depends on data comes as an error of JAX's with the core's text, at the latest when one waits."""
    table, indices = jnp.ones((4, 3)), jnp.array([0, 7])
    for function in (anyop.embedding, jax.jit(anyop.embedding)):
        with pytest.raises(
            (jax.errors.JaxRuntimeError, ValueError), match="INVALID_ARGUMENT: embedding: "
        ):
            jax.block_until_ready(function(indices, table))
    with pytest.raises(
        (jax.errors.JaxRuntimeError, ValueError), match="gelu: approximate is unknown"
    ):
        jax.block_until_ready(anyop.gelu(X, approximate="tan"))
    assert (anyop.embedding(jnp.array([0, 3]), table) == 1).all()


def test_gradients_that_do_not_exist():
    q = jnp.ones((1, 2, 3, 4))
    mask = jnp.zeros((3, 3))
    with pytest.raises(
        NotImplementedError,
        match="attention: mask requires a gradient, which the operator does not",
    ):
        jax.grad(lambda m: anyop.attention(q, q, q, m).sum())(mask)
    jax.grad(lambda q: anyop.attention(q, q, q, mask).sum())(q)
    with pytest.raises(
        NotImplementedError, match="relu_backward: has no gradient, so its operator can be"
    ):
        jax.grad(lambda x: anyop.relu_backward(x, x).sum())(X)
    x = jnp.ones((2, 8), jnp.float32)
    with pytest.raises(
        NotImplementedError, match="native_layer_norm: its result mean has no gradient"
    ):
        jax.grad(lambda x: anyop.native_layer_norm(x, W, W)[1].sum())(x)


def test_more_dimensions_than_the_core_takes_are_refused_when_traced():
    with pytest.raises(ValueError, match=r"^relu: x has 33 dimensions, expected at most 32"):
        jax.eval_shape(anyop.relu, jax.ShapeDtypeStruct((1,) * 33, jnp.float32))


def test_an_array_of_objects_beside_a_traced_one_is_named():
    odd = np.array([np.ones(3), None], object)
    with pytest.raises(TypeError, match=r"^add: y is a numpy\.ndarray, expected a jax\.Array"):
        jax.jit(lambda x: anyop.add(x, odd))(jnp.ones(2))


def test_an_object_that_names_itself_as_its_dtype_is_refused_by_name():
    """NumPy's own word of it is a ValueError."""

    class Itself:
        @property
        def dtype(self):
            return self

    x = jnp.ones((2, 4))
    with pytest.raises(TypeError, match=r"^layer_norm: dtype is .*Itself, expected dtype such as"):
        anyop.layer_norm(x, dtype=Itself())


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_the_operator_that_was_called_is_named(wrap):
    """attention runs as attention_with_lse where a gradient is recorded; the kernel's error comes from there."""
    q, packed = jnp.ones((1, 2, 3, 4)), jnp.ones((3, 2, 4))
    ends = (jnp.array([0, 9], jnp.int32), jnp.array([0, 3], jnp.int32))
    calls = {
        "attention: softcap is nan": lambda q: anyop.attention(q, q, q, softcap=float("nan")),
        "attention: k has shape": lambda q: anyop.attention(q, q[..., :2], q),
        r"attention_varlen: cu_seqlens_q\[1\] is 9": lambda q: anyop.attention_varlen(
            q[0], q[0], q[0], *ends
        ),
    }
    for text, call in calls.items():
        x = packed[None] if "varlen" in text else q
        function = wrap(jax.grad(lambda x, call=call: call(x).sum()))
        with pytest.raises(
            (jax.errors.JaxRuntimeError, ValueError), match=rf"^(INVALID_ARGUMENT: )?{text}"
        ):
            jax.block_until_ready(function(x))


def test_a_dtype_whose_methods_lie():
    """A str is its letters; an object that only says that it is one, or has no hash, is refused by name."""

    class Odd(str):
        def __hash__(self):
            return []

    class Lies:
        __class__ = str

        def __hash__(self):
            return []

    class Named:
        name = {}.keys()  # has no hash

    assert anyop.cast(X, Odd("float16")).dtype == jnp.float16
    for odd in (Lies(), Named()):
        with pytest.raises(TypeError, match=r"^cast: dtype is .*, expected dtype such as"):
            anyop.cast(X, odd)


def test_odd_numbers_are_refused_by_name():
    class Odd:
        def __index__(self):
            return (1,)

    class Lies:
        __class__ = float  # as isinstance believes

    with pytest.raises(TypeError, match=r"^quant_fp8: group is .*Odd, expected int"):
        anyop.quant_fp8(X, group=Odd())
    with pytest.raises(TypeError, match=r"^rms_norm: eps is .*Lies, expected float"):
        anyop.rms_norm(X, W, Lies())
