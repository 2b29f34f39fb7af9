# SPDX-License-Identifier: Apache-2.0
"""What jax_third_party_test.py runs in a process of its own: the operators of odd/ and probe/ on JAX's arrays."""

import math
import sys
from functools import partial

import anyop
import jax
import jax.numpy as jnp
import numpy as np

odd_library, probe_library, when = sys.argv[1:]
if when == "before":
    anyop.load(odd_library)
import anyop.jax  # noqa: E402

if when == "after":
    anyop.load(odd_library)
anyop.load(probe_library)
jax.config.update("jax_enable_x64", True)
odd, probe = anyop.ops.odd, anyop.ops.probe


# JAX raises ValueError or NotImplementedError where the program ran at once, its own error where that is found later.
AT_RUN_TIME = (jax.errors.JaxRuntimeError, ValueError, NotImplementedError)


def refused(error, text, call):
    try:
        call()
    except error as found:
        assert text in str(found), found
    else:
        raise AssertionError(f"expected {error}: {text}")


# ---- changed arguments: new values are returned, the arrays stay as they are ----

x, index, y = jnp.zeros((3, 2), jnp.float32), jnp.array([2, 0, 2]), jnp.ones((3, 2), jnp.float32)
seen = jnp.array([1, 1, 1])
count = jax.jit(odd.count_into)
total, new_x, new_seen = count(x, index, y, seen)
assert total.tolist() == [1, 0, 2] and new_x.tolist() == [[1, 1], [0, 0], [2, 2]]
assert new_seen.tolist() == [2, 1, 3] and x.tolist() == [[0, 0]] * 3 and seen.tolist() == [1] * 3
total, new_x, nothing = count(x, index, y)
assert nothing is None and new_x.tolist() == [[1, 1], [0, 0], [2, 2]]
refused(
    ValueError,
    "count_into: x is an argument that the operator changes",
    lambda: odd.count_into(x, index, y),
)
assert x.tolist() == [[0, 0]] * 3

donating = jax.jit(lambda x, index, y: odd.count_into(x, index, y)[1], donate_argnums=0)
text = donating.lower(x, index, y).compile().as_text()
assert "output_to_operand_aliasing={" in text and "input_output_alias={" in text, text
given = jnp.zeros((300, 200), jnp.float32)
place = given.unsafe_buffer_pointer()
found = donating(given, index, jnp.ones((3, 200), jnp.float32))
assert given.is_deleted() and found.unsafe_buffer_pointer() == place, "the memory is used again"
assert found.sum() == 600


def twice(x):
    """XLA must keep the old value for its second use."""
    return odd.count_into(x, index, y)[1] + x


assert jax.jit(twice)(x + 5).tolist() == [[11, 11], [10, 10], [12, 12]]
refused(
    AT_RUN_TIME,
    "odd.count_into: index is out of range",
    lambda: jax.block_until_ready(count(x, index + 5, y)),
)


def repeat(x):
    return jax.lax.fori_loop(0, 10, lambda i, x: odd.count_into(x, index, y)[1], x)


assert jax.jit(repeat)(x).tolist() == [[10, 10], [0, 0], [20, 20]]
batch = jnp.stack([x, x + 1])
total, new, _ = jax.jit(jax.vmap(odd.count_into, (0, None, None)))(batch, index, y)
assert total.tolist() == [[1, 0, 2]] * 2 and (new[1] - new[0] == 1).all() and new[0, 2, 0] == 2
refused(
    NotImplementedError,
    "odd.count_into: has no gradient, and x requires one",
    lambda: jax.grad(lambda x: odd.count_into(x, index, y)[1].sum())(x),
)

if when == "after":  # what follows does not depend on it
    print("odd operators are right")
    sys.exit()

# ---- lists ----

xs = [jnp.ones((2,)), jnp.ones((3, 1))]
ys = [jnp.full((2,), 2.0), jnp.full((3, 1), 3.0)]
scale = jax.jit(lambda xs, ys, **more: odd.scale_all(xs, ys, 2, **more))
assert [v.tolist() for v in scale(xs, ys)] == [[6, 6], [[8]] * 3]
wide = jax.jit(lambda xs, ys: odd.scale_all(xs, ys, pads=[1, 2], notes=["b", "ü", ""], seed=5))
assert [v.tolist() for v in wide(xs, ys)] == [[32, 32], [[33]] * 3]
refused(
    ValueError,
    "scale_all: pads has 3 values, expected 2",
    lambda: jax.jit(lambda xs, ys: odd.scale_all(xs, ys, pads=[1, 2, 3]))(xs, ys),
)
refused(ValueError, "odd.scale_all: ys has 1 tensors, expected 2", lambda: scale(xs, ys[:1]))
refused(ValueError, "[element 1]", lambda: scale(xs, [ys[0], ys[0]]))
refused(
    TypeError,
    "odd.scale_all: ys is a numpy.ndarray, expected a jax.Array",
    lambda: scale.__wrapped__(jax.tree.map(jnp.asarray, xs), [ys[0], np.ones(2)]),
)

p = jnp.arange(3, dtype=jnp.float32)
parts = [None, jnp.ones(4, jnp.float32), None, jnp.ones((2, 2), jnp.float64)]
assert odd.sum_parts(p, parts).tolist() == [8, 9, 10]
assert odd.sum_parts(p, []).tolist() == [0, 1, 2]
assert odd.sum_parts(p, [None]).tolist() == [0, 1, 2]
assert jax.jit(odd.sum_parts)(p, parts[::-1]).tolist() == [8, 9, 10]
mapped = jax.vmap(odd.sum_parts, (0, None))(jnp.stack([p, p + 1]), parts)
assert mapped.tolist() == [[8, 9, 10], [9, 10, 11]]
mapped = jax.vmap(lambda x, part: odd.sum_parts(x, [part, None]), (None, 0))(p, jnp.ones((2, 4)))
assert mapped.tolist() == [[4, 5, 6]] * 2

# ---- optional results, dtypes by attribute ----

rows = jnp.arange(6, dtype=jnp.float32).reshape(2, 3)
for function in (odd.stats, jax.jit(odd.stats)):
    total, squares = function(rows)
    assert total.tolist() == [3, 12] and squares.tolist() == [5, 50] and squares.dtype == "float64"
total, squares = odd.stats(rows, squares=False)
assert total.tolist() == [3, 12] and squares is None
total, squares = odd.stats(rows, jnp.float64, shift=1)
assert total.dtype == "float64" and total.tolist() == [6, 15]
for name in ("float64", np.float64, np.dtype("float64"), jnp.dtype(jnp.float64)):
    assert odd.stats(rows, name)[0].dtype == "float64"
assert jax.vmap(lambda row: odd.stats(row))(rows)[0].tolist() == [3, 12]
refused(
    TypeError,
    "odd.stats: dtype is int8, expected float32, float64",
    lambda: odd.stats(rows, "int8"),
)
refused(
    TypeError,
    'odd.stats: dtype is a str, expected dtype such as "float32" or jnp.float32',
    lambda: odd.stats(rows, "int4"),
)


# A result of an optional tensor's dtype; one array is the gradient of two inputs, which are used again elsewhere.
def gained(function, x, y, weight):
    out, total = function(x, y, weight)
    return (out * out).sum() + (total * x).sum() + y.sum()


def gain_in_jax(x, y, weight):
    total = x + y
    return total if weight is None else total.astype(weight.dtype) * weight, total


for dtype in (None, jnp.float32, jnp.float64):
    x, y = jnp.arange(12.0, dtype=jnp.float32).reshape(3, 4), jnp.ones((3, 4), jnp.float32)
    weight = None if dtype is None else jnp.arange(1, 5, dtype=dtype)
    assert [v.dtype for v in jax.jit(odd.gain)(x, y, weight)] == [dtype or "float32", "float32"]
    places = (0, 1) if weight is None else (0, 1, 2)
    expected = jax.grad(lambda *a: gained(gain_in_jax, *a), places)(x, y, weight)
    loss = jax.grad(lambda *a: gained(odd.gain, *a), places)
    for function in (loss, jax.jit(loss)):
        for value, wanted in zip(function(x, y, weight), expected, strict=True):
            assert value.dtype == wanted.dtype and np.allclose(value, wanted)
    only_y = jax.grad(partial(gained, odd.gain), 1)(x, y, weight)
    assert np.allclose(only_y, expected[1])
# Of a result that nothing depends on there is no gradient, not zeros: 0 * inf would be NaN.
endless = jnp.full(4, jnp.inf)
assert (jax.grad(lambda x: odd.gain(x, y, endless)[1].sum())(x) == 1).all()
windows = odd.windows(jnp.arange(5, dtype=jnp.int16), 3, 2)
assert windows.tolist() == [[0, 1, 2], [2, 3, 4]]
refused(
    ValueError,
    "odd.windows: expected width <= L",
    lambda: odd.windows(jnp.arange(5, dtype=jnp.int16), 6),
)

# ---- every kind of attribute, exactly as it was given ----

blank = jnp.zeros(512, jnp.uint8)
DEFAULTS = {
    "i": "3", "f": "0.5", "b": "0", "s": "none", "dtype": "8", "oi": "None", "of": "7.5", "os": "None", "od": "None",
    "il": "[1,2]", "fl": "[]", "bl": "[]", "sl": "[]", "pair": "[1,1]", "ol": "None", "dl": "[]",
}  # fmt: skip
KINDS = [
    ("i", -(2**62), str(-(2**62))), ("i", 2**63 - 1, str(2**63 - 1)), ("i", -(2**63), str(-(2**63))),
    ("i", np.int8(5), "5"), ("oi", 5, "5"), ("oi", 0, "0"), ("b", True, "1"), ("b", np.bool_(True), "1"),
    ("f", 2, "2"), ("f", 0.25, "0.25"), ("f", -0.0, "-0"), ("f", 0.0, "0"), ("f", math.inf, "inf"),
    ("f", -math.inf, "-inf"), ("f", 5e-324, "4.94066e-324"), ("f", np.float32(0.5), "0.5"),
    ("of", None, "None"), ("of", 1.5, "1.5"), ("s", "", ""), ("s", "größe", "größe"),
    ("s", 'quote"and\\', 'quote"and\\'), ("os", "text", "text"), ("os", "", ""),
    ("dtype", "float16", "6"), ("dtype", jnp.bfloat16, "7"), ("od", "bool", "0"),
    ("il", [], "[]"), ("il", (7, 8, 9), "[7,8,9]"), ("fl", [1, 2.5], "[1,2.5]"), ("bl", [True, False], "[1,0]"),
    ("sl", ["a", "a-longer-text", ""], "[a,a-longer-text,]"), ("pair", 6, "[6,6]"), ("pair", [2, 3], "[2,3]"),
    ("ol", [1], "[1]"), ("ol", [], "[]"), ("dl", ["int8", jnp.float64], "[2,9]"),
]  # fmt: skip


def words(text):
    return dict(word.split("=", 1) for word in bytes(text).decode().split())


assert words(probe.kinds(blank)) == DEFAULTS
found = jax.jit(lambda x: [probe.kinds(x, **{name: value}) for name, value, _ in KINDS])(blank)
for (name, value, text), result in zip(KINDS, found, strict=True):
    assert words(result) == DEFAULTS | {name: text}, (name, value, words(result))
    assert (
        words(probe.kinds(blank, **{name: value}))[name] == text
    )  # also where an equal one is compiled
assert words(probe.kinds(blank, f=math.nan))["f"].endswith("nan")
refused(
    ValueError, "probe.kinds: i is out of the range of int64", lambda: probe.kinds(blank, 2**63)
)
refused(ValueError, "probe.kinds: s holds a NUL character", lambda: probe.kinds(blank, s="a\0b"))
refused(TypeError, "probe.kinds: i is a float, expected int", lambda: probe.kinds(blank, 1.0))
refused(
    TypeError,
    "probe.kinds: i is a traced value, expected int",
    lambda: jax.jit(probe.kinds)(blank, 1),
)

# ---- status of kernels ----

for status, code in (
    (1, "INVALID_ARGUMENT"),
    (2, "INVALID_ARGUMENT"),
    (3, "UNIMPLEMENTED"),
    (4, "RESOURCE_EXHAUSTED"),
    (5, "INTERNAL"),
    (6, "INTERNAL"),
    (99, "INTERNAL"),
):
    refused(
        AT_RUN_TIME,
        f"{code}: probe.sums: ",
        lambda s=status: jax.block_until_ready(probe.sums([jnp.ones(3)], fail=s)),
    )
total, number = probe.sums([jnp.ones(3), None], jnp.ones(2))
assert total == 5 and number.tolist() == [3, -1], (total, number)
print("odd operators are right")
