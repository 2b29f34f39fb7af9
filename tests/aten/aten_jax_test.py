# SPDX-License-Identifier: Apache-2.0
"""anyop.aten inside JAX's transformations: torch's own numbers from compiled programs, and refusals with reasons."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import anyop
import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed")
torch = pytest.importorskip("torch", reason="torch is not installed")
import anyop.jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from jax import export  # noqa: E402

aten = anyop.aten
RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((4, 6)).astype(np.float32)
Y = RANDOM.standard_normal((4, 6)).astype(np.float32)
SQUARE = X[:, :4] + 4 * np.eye(4, dtype=np.float32)
IMAGE = RANDOM.standard_normal((2, 3, 8, 8)).astype(np.float32)
FILTER = RANDOM.standard_normal((5, 3, 3, 3)).astype(np.float32)
ROWS = np.array([2, 0, 3])
COMPLEX = (X + 1j * Y).astype(np.complex64)

# Name, arguments, keywords.
CALLS = [
    ("add", (X, Y), {"alpha": 2}),
    ("add.Tensor", (X, Y[0]), {"alpha": -0.5}),
    ("add", (X, 3), {}),
    ("mul", (COMPLEX, 2 - 1j), {}),
    ("mul", (X, np.float32(0.1)), {}),
    ("div", (X, Y), {"rounding_mode": "floor"}),
    ("clamp", (X,), {"min": None, "max": 0.5}),
    ("clamp", (X, float("-inf"), -0.0), {}),
    ("where", (X > 0, X, Y), {}),
    ("bitwise_and", (ROWS, 2), {}),
    ("sum", (X,), {"dtype": "float64"}),
    ("sum", (X, [1], True), {}),
    ("sum", (ROWS,), {}),
    ("std", (X, 1), {"correction": 0}),
    ("max", (X, 1), {}),
    ("topk", (X, 2), {"largest": False}),
    ("sort", (X,), {"stable": True, "dim": 0}),
    ("cumsum", (X, 1), {"dtype": np.float64}),
    ("to", (X, "bfloat16"), {}),
    ("to", (X, torch.float8_e5m2), {}),
    ("view_as_real", (COMPLEX,), {}),
    ("t", (X,), {}),
    ("expand", (X[0], [3, 6]), {}),
    ("slice", (X,), {"dim": 1, "start": 1, "end": 5, "step": 2}),
    ("split", (X, 3), {}),
    ("unbind", (X,), {}),
    ("cat", ([X, Y, X], 1), {}),
    ("stack", ((X, Y),), {}),
    ("index", (X, [None, ROWS]), {}),
    ("index_put", (X, [ROWS], Y[:3]), {"accumulate": True}),
    ("gather", (X, 1, np.zeros((4, 2), np.int64)), {}),
    ("matmul", (X, Y.T.copy()), {}),
    ("einsum", ("ij, kj -> ik", [X, Y]), {}),
    ("linalg_inv", (SQUARE,), {}),
    ("linalg_svd", (SQUARE,), {"full_matrices": False}),
    ("conv2d", (IMAGE, FILTER), {"stride": [2, 1], "padding": [1, 1]}),
    ("conv2d", (IMAGE, FILTER, None, [2, 2]), {"groups": 1}),
    ("max_pool2d_with_indices", (IMAGE, [2, 2]), {}),
    ("native_layer_norm", (X, [6], X[0], None, 1e-5), {}),
    ("softmax", (X, -1, torch.float64), {}),
    ("embedding", (X, ROWS), {}),
    ("pad", (X, [1, 1], "constant", 7.5), {}),
    ("nan_to_num", (X * np.float32("inf"),), {"nan": 1e-300}),
    ("zeros_like", (X,), {"dtype": "int16", "memory_format": "preserve_format"}),
    ("new_full", (X, [2, 0, 3], 1), {}),
    ("arange.start_step", None, {}),  # no array: not traced at all
    ("searchsorted", (np.sort(X[0]), Y[0]), {"side": "right"}),
    ("scaled_dot_product_attention", (IMAGE, IMAGE, IMAGE), {"is_causal": True}),
    ("_foreach_add", ([X, Y[0]], 2.5), {}),
    ("add", (X[:, :0], 1), {}),
    ("sum", (np.ones((), np.float32),), {}),
]
CALLS = [call for call in CALLS if call[1] is not None]


TORCHS = {
    name: getattr(torch, name) for name in ("float64", "bfloat16", "int16", "preserve_format")
}
TORCHS[np.float64] = torch.float64


def as_torch(value):
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    if isinstance(value, (list, tuple)):
        return [as_torch(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    return TORCHS.get(value, value) if isinstance(value, (str, type)) else value


def leaves(value):
    """The arrays of a result, for comparisons; bits of those that NumPy has not."""
    found = jax.tree_util.tree_leaves(value, is_leaf=lambda x: isinstance(x, torch.Tensor))
    return [_bits(x) for x in found]


def _bits(x):
    if isinstance(x, torch.Tensor):
        narrow = {torch.bfloat16: torch.int16, torch.float8_e5m2: torch.uint8}.get(x.dtype)
        name = str(x.dtype).removeprefix("torch.")
        return name, (x.contiguous().view(narrow) if narrow else x).resolve_conj().numpy()
    name = str(x.dtype)
    return name, np.asarray(x).view(
        {"bfloat16": np.int16, "float8_e5m2": np.uint8}.get(name, x.dtype)
    )


def traced(name, args, kwargs):
    """The call as a function of its arrays, and those."""
    flat, tree = jax.tree_util.tree_flatten((args, kwargs), is_leaf=lambda x: x is None)
    places = [at for at, value in enumerate(flat) if isinstance(value, np.ndarray)]

    def function(*arrays):
        values = list(flat)
        for at, array in zip(places, arrays):
            values[at] = array
        positional, named = jax.tree_util.tree_unflatten(tree, values)
        return aten.call(name, *positional, **named)

    return function, [jax.device_put(flat[at].copy()) for at in places]


@pytest.fixture
def wide():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize(
    "name, args, kwargs", CALLS, ids=[f"{n}{i}" for i, (n, _, _) in enumerate(CALLS)]
)
def test_compiled_calls_give_torchs_numbers(name, args, kwargs, wide):
    """And so do eager ones; shapes and dtypes too, and the arguments stay as they were."""
    function, arrays = traced(name, args, kwargs)
    before = [np.array(array) for array in arrays]
    given = as_torch(list(args)), {key: as_torch(value) for key, value in kwargs.items()}
    packet, _, overload = name.partition(".")
    expected = getattr(torch.ops.aten, packet)
    expected = (getattr(expected, overload) if overload else expected)(*given[0], **given[1])
    found = jax.jit(function)(*arrays)
    shapes = jax.eval_shape(function, *arrays)
    assert jax.tree.structure(found) == jax.tree.structure(shapes)
    assert [x.shape for x in jax.tree.leaves(found)] == [x.shape for x in jax.tree.leaves(shapes)]
    for found_in in (found, function(*arrays)):
        pairs = list(zip(leaves(found_in), leaves(expected), strict=True))
        assert pairs
        for (our_dtype, ours), (dtype, theirs) in pairs:
            assert our_dtype == dtype and ours.shape == theirs.shape
            close = (
                np.allclose(ours, theirs, 1e-5, 1e-6, equal_nan=True)
                if ours.dtype.kind in "fc"
                else False
            )
            assert close or np.array_equal(ours, theirs)
    for value, array in zip(before, arrays):
        assert np.array_equal(value, array)


def test_a_program_holds_custom_calls_of_xla():
    text = jax.jit(lambda x: aten.relu(aten.add(x, 1))).lower(X).as_text()
    assert text.count("custom_call @anyop") == 2 and "callback" not in text
    assert "add.out t i1 d r -> t" in text  # into XLA's own buffer
    assert "anyop_aten" in str(jax.make_jaxpr(aten.relu)(X))


def test_values_that_do_not_depend_on_data_are_pythons():
    found = []
    jax.jit(
        lambda x: (
            found.extend([aten.size(x, 1), aten.is_floating_point(x), aten.result_type(x, 1)]) or x
        )
    )(X)
    assert found[:2] == [6, True] and "float32" in str(found[2])


# ---- refused ----

REFUSED = {
    "nonzero": (lambda x: aten.nonzero(x), NotImplementedError, "depends on data"),
    "masked_select": (lambda x: aten.masked_select(x, x > 0), NotImplementedError, "depends on data"),
    "equal": (lambda x: aten.equal(x, x), NotImplementedError, "depends on data"),
    "item": (lambda x: aten.item(x[0, 0]), NotImplementedError, "depends on data"),
    "no meta kernel": (lambda x: aten.to_sparse(x), NotImplementedError, "no meta kernel"),
    "in place": (lambda x: aten.relu_(x), NotImplementedError, "writes self"),
    "out": (lambda x: aten.add(x, x, out=x), NotImplementedError, "writes out"),
    "unmarked write": (
        lambda x: aten.native_batch_norm(x, None, None, x[0], x[0], True, 0.1, 1e-5),
        NotImplementedError, "writes running_mean",
    ),
    "no seed": (lambda x: aten.bernoulli(x), NotImplementedError, "draws random numbers"),
    "no seed, deep inside": (lambda x: aten.dropout(x, 0.5, True), NotImplementedError, "draws random numbers"),
    "torch's generator": (
        lambda x: aten.bernoulli(x, generator=torch.Generator()), TypeError, "is no seed"),
    "seed of several": (lambda x: aten.bernoulli(x, generator=x), TypeError, "is no seed"),
    "device": (lambda x: aten.zeros_like(x, device="cpu"), TypeError, "JAX places its arrays"),
    "traced number": (lambda x: aten.add(x, x, alpha=x[0, 0]), TypeError, "static_argnames"),
    "traced index": (lambda x: aten.select(x, 0, x[0, 0].astype(int)), TypeError, "static_argnames"),
    "NumPy": (lambda x: aten.add(x, X), TypeError, "expected a "),
    "torch": (lambda x: aten.add(x, torch.ones(6)), TypeError, "expected a "),
    "shapes": (lambda x: aten.matmul(x, x), RuntimeError, "matmul: "),
    "dim": (lambda x: aten.sum(x, [5]), IndexError, "sum.dim_IntList: "),
    "nothing": (lambda x: aten._assert_async(x[0, 0]), NotImplementedError, "returns nothing"),
    "gradient": (lambda x: jax.grad(lambda x: aten.sum(x))(x), NotImplementedError, "no derivative"),
    "jvp": (lambda x: jax.jvp(aten.relu, (x,), (x,)), NotImplementedError, "no derivative"),
    "sparse": (lambda x: aten.zeros_like(x, layout="sparse_coo"), NotImplementedError, "not dense"),
    "complex32": (lambda x: aten.to(x, "complex32"), NotImplementedError, "complex32, which JAX has not"),
    "int4": (lambda x: aten.relu(x.astype(jnp.int4)), TypeError, "dtype int4"),
}  # fmt: skip


@pytest.mark.parametrize("function, error, text", REFUSED.values(), ids=REFUSED)
def test_refused_with_the_reason(function, error, text):
    with pytest.raises(error, match=text):
        jax.jit(function)(X)


def test_open_shapes_are_refused():
    (batch,) = export.symbolic_shape("batch")
    with pytest.raises(NotImplementedError, match="open shape"):
        jax.eval_shape(aten.relu, jax.ShapeDtypeStruct((batch, 3), jnp.float32))


def test_eager_arrays_are_not_written():
    x = jnp.asarray(X)
    for call in (
        lambda: aten.relu_(x),
        lambda: aten.add(x, x, out=x),
        lambda: aten.native_batch_norm(x, None, None, x[0], x[1], True, 0.1, 1e-5),
    ):
        with pytest.raises(ValueError, match="read-only"):
            call()
    assert np.array_equal(x, X)


def test_errors_at_run_time_have_torchs_text():
    program = jax.jit(lambda x, i: aten.embedding(x, i))
    with pytest.raises(
        (jax.errors.JaxRuntimeError, ValueError), match="embedding: index out of range"
    ):
        jax.block_until_ready(program(X, np.array([9], np.int32)))


# ---- derivatives, batches, control flow ----


def test_what_needs_no_derivative_has_none():
    """Integer results, stopped arrays, and a rule of the user's own."""
    slope = jax.grad(
        lambda x: (x[0] * aten.argmax(x[0])).sum() + aten.sum(jax.lax.stop_gradient(x))
    )(X)
    assert np.array_equal(slope[0], np.full(6, X[0].argmax())) and not slope[1:].any()

    @jax.custom_vjp
    def square(x):
        return aten.square(x)

    square.defvjp(lambda x: (aten.square(x), x), lambda x, g: (aten.mul(g, aten.mul(x, 2)),))
    assert np.array_equal(jax.jit(jax.grad(lambda x: square(x).sum()))(X), 2 * X)


def test_vmap_runs_one_element_after_the_other():
    batch = jnp.stack([X, Y, X + Y])
    found = jax.vmap(lambda x, w: aten.mm(x, w), (0, None))(batch, jnp.asarray(Y.T))
    assert np.allclose(found, np.asarray(batch) @ Y.T, atol=1e-5)
    values, places = jax.jit(jax.vmap(lambda x: aten.topk(x, 2), in_axes=1, out_axes=1))(X)
    order = np.sort(X, 0)[::-1]
    assert np.array_equal(values, order[:2]) and np.array_equal(
        np.take_along_axis(X, np.asarray(places), 0), values
    )


def test_control_flow():
    total = jax.lax.scan(lambda c, x: (aten.add(c, x), aten.sum(c)), jnp.zeros(6), X)
    assert np.allclose(total[0], X.sum(0), atol=1e-6) and total[1].shape == (4,)
    found = jax.lax.cond(X[0, 0] > 9, aten.relu, lambda x: aten.neg(x), jnp.asarray(X))
    assert np.array_equal(found, -X)
    with jax.disable_jit():
        assert np.array_equal(jax.vmap(aten.neg)(jnp.asarray(X)), -X)


def test_exported_and_sharded(tmp_path):
    """In a process with four devices: a program of this one; whole arrays in jit, shards in shard_map, an error where
    axes are explicit.
    """
    pytest.importorskip(
        "flatbuffers", reason="flatbuffers, which jax.export needs, is not installed"
    )
    checks = [export.DisabledSafetyCheck.custom_call(anyop.jax.TARGET)]
    exported = export.export(jax.jit(aten.relu), disabled_checks=checks)(X)
    (tmp_path / "relu").write_bytes(exported.serialize())
    program = """
import pathlib, sys, jax, jax.numpy as jnp, numpy as np, anyop, anyop.jax.aten
from jax import export
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
relu = export.deserialize(bytearray(pathlib.Path(sys.argv[1]).read_bytes()))
assert np.array_equal(relu.call(-np.ones((4, 6), np.float32)), np.zeros((4, 6)))
x0 = np.arange(32, dtype=np.float32).reshape(8, 4)
auto, explicit = (jax.make_mesh((4,), ("a",), axis_types=(kind,)) for kind in (AxisType.Auto, AxisType.Explicit))
def total(x):
    return anyop.aten.cumsum(x, 0)
x = jax.device_put(x0, NamedSharding(auto, P("a")))
assert np.array_equal(jax.jit(total)(x), x0.cumsum(0))
own = jax.jit(jax.shard_map(total, mesh=auto, in_specs=P("a"), out_specs=P("a")))(x)
assert np.array_equal(own, x0.reshape(4, 2, 4).cumsum(1).reshape(8, 4))
with jax.set_mesh(explicit):
    x = jax.device_put(x0, NamedSharding(explicit, P("a")))
    try:
        jax.jit(total)(x)
    except ValueError as error:
        assert "jax.sharding.reshard" in str(error)
    else:
        raise AssertionError("was taken")
    assert np.array_equal(jax.jit(lambda x: total(jax.sharding.reshard(x, P())))(x), x0.cumsum(0))
"""
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "relu")],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-4000:]


# ---- random numbers ----


def test_seeds():
    """One seed, the same numbers in every run and as in an eager call; a traced one makes them differ."""
    half = jnp.full((64,), 0.5)
    fixed = jax.jit(lambda x: aten.bernoulli(x, generator=7))
    assert np.array_equal(fixed(half), fixed(half))
    assert np.array_equal(fixed(half), aten.bernoulli(np.asarray(half), generator=7))
    program = jax.jit(lambda x, seed: aten.bernoulli(x, generator=seed))
    assert np.array_equal(program(half, 7), fixed(half))
    assert not np.array_equal(program(half, 8), fixed(half))
    assert np.array_equal(
        jax.jit(lambda seed: aten.randn([3], generator=seed))(5), aten.randn([3], generator=5)
    )


# ---- 64 bits ----


def test_without_64_bits_numbers_fit_or_are_refused():
    small, large = np.array([1, 2], np.int32), np.array([2**30] * 3, np.int32)
    for function in (aten.sum, jax.jit(lambda x: aten.sum(x))):
        found = function(jnp.asarray(small))
        assert found == 3 and found.dtype == jnp.int32
        with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match="jax_enable_x64"):
            jax.block_until_ready(function(jnp.asarray(large)))
    assert jax.jit(lambda x: aten.argmax(x, 1))(X).dtype == jnp.int32
    assert jax.jit(lambda x: aten.to(x, "float64"))(X).dtype == jnp.float32
    with jax.enable_x64(True):
        assert jax.jit(lambda x: aten.sum(x))(large) == 3 * 2**30


# ---- the host ----


def test_tracing_and_running_leave_torchs_state_alone():
    from torch._subclasses.fake_tensor import FakeTensorMode

    modes = [torch.no_grad, torch.inference_mode, FakeTensorMode, lambda: torch.device("meta"),
             lambda: torch.autocast("cpu", torch.bfloat16)]  # fmt: skip
    for number, mode in enumerate(modes):
        state = torch.get_rng_state()
        with mode():
            before = (
                torch.is_grad_enabled(),
                torch.is_inference_mode_enabled(),
                torch.is_autocast_enabled("cpu"),
            )
            found = jax.jit(lambda x, n=number: aten.mm(aten.add(x, n), aten.t(x)))(X)
            after = (
                torch.is_grad_enabled(),
                torch.is_inference_mode_enabled(),
                torch.is_autocast_enabled("cpu"),
            )
        assert before == after and np.array_equal(state, torch.get_rng_state())
        assert found.dtype == jnp.float32 and np.allclose(found, (X + number) @ X.T, atol=1e-4)


def test_threads():
    program = jax.jit(lambda x, n: aten.sum(aten.mul(aten.add(x, n), 2), [0]))
    start = threading.Barrier(8)

    def work(number):
        start.wait()
        for k in range(100):
            assert np.allclose(
                program(X, float(number + k)), 2 * (X + number + k).sum(0), rtol=1e-4, atol=1e-3
            )
            if k % 25 == 0:
                jax.jit(lambda x, k=k: aten.add(x, number * 1000 + k))(X)
        return number

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == list(range(8))


def test_texts_of_another_version_are_refused():
    """No text crashes the handler: it stands in programs that are kept on disk."""
    whole = "cat [ t t ] i0 -> t"
    broken = [whole[:at] for at in range(len(whole))] + [
        "", "-> t", "cat", "nothing t -> t", "cat [ t t t ] i0 -> t", "cat [ t t ] i0 -> t t", "cat [ t t ] ix -> t",
        "cat [ t t ] i0 -> n", "cat [ t t ] i0 -> i3", "cat [ t t ] s9:x -> t", "cat [ t t ] i0 i0 i0 -> t",
        "cat [ [ [ t t ] i0 -> t", "cat ] -> t", "cat [ t t ] s99999999999999999999:x -> t", "cat r r r -> t",
        "topk t i1 -> t", "split.Tensor t i2 -> t", "split.Tensor t i2 -> [ t t t ]", "bernoulli t G -> t",
    ]  # fmt: skip

    def run(text):
        shape = jax.ShapeDtypeStruct((8, 6), jnp.float32)
        return jax.jit(lambda x, y: jax.ffi.ffi_call(anyop.jax.TARGET, shape)(x, y, _aten=text))(
            X, Y
        )

    assert np.array_equal(run(whole), np.concatenate([X, Y]))
    for text in broken:
        with pytest.raises((ValueError, NotImplementedError, jax.errors.JaxRuntimeError)):
            jax.block_until_ready(run(text))
