# SPDX-License-Identifier: Apache-2.0
"""Gradients of gradients in JAX: an operator whose gradient has a gradient, of which only a part is wanted."""

from __future__ import annotations

import anyop
import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")
jnp = jax.numpy

# product(x, y) = x * y with all its derivatives; "2" marks the gradient's own.
SCHEMAS = {
    "product": """\
schema = "twice::product(Tensor x, Tensor y) -> Tensor"
shapes = { x = "*", y = "*", out = "*" }
backward = { name = "twice::product_backward", saves = ["x", "y"] }
""",
    "product_backward": """\
schema = "twice::product_backward(Tensor grad_out, Tensor x, Tensor y) -> (Tensor? grad_x, Tensor? grad_y)"
shapes = { grad_out = "*", x = "*", y = "*", grad_x = "*", grad_y = "*" }
backward = { name = "twice::product_backward2", saves = ["grad_out", "x", "y"] }
""",
    "product_backward2": """\
schema = "twice::product_backward2(Tensor grad_grad_x, Tensor grad_grad_y, Tensor grad_out, Tensor x, Tensor y) \
-> (Tensor? grad_grad_out, Tensor? grad_x, Tensor? grad_y)"
[shapes]
grad_grad_x = "*"
grad_grad_y = "*"
grad_out = "*"
x = "*"
y = "*"
grad_grad_out = "*"
grad_x = "*"
grad_y = "*"
""",
}
SUMS = {
    "product": {"out": "x * y"},
    "product_backward": {"grad_x": "grad_out * y", "grad_y": "grad_out * x"},
    "product_backward2": {
        "grad_grad_out": "grad_grad_x * y + grad_grad_y * x",
        "grad_x": "grad_grad_y * grad_out",
        "grad_y": "grad_grad_x * grad_out",
    },
}


def kernel(name: str, sums: dict[str, str]) -> str:
    struct = "".join(word.capitalize() for word in name.split("_")) + "Args"
    lines = [
        f'#include "twice/ops/{name}.h"',
        f"int32_t twice_{name}_cpu(const {struct}* a, AnyopCall*) {{",
    ]
    lines += [
        "  const auto at = [](const AnyopTensor* t, int64_t i) { return static_cast<float*>(t->data)[i]; };"
    ]
    lines += ["  for (int64_t i = 0; i < a->rows; ++i) {"]
    for result, text in sums.items():
        value = " ".join(
            f"at(a->{word}, i)" if word[0].isalpha() else word for word in text.split()
        )
        lines += [f"    if (a->{result}) static_cast<float*>(a->{result}->data)[i] = {value};"]
    return "\n".join([*lines, "  }", "  return kAnyopOk;", "}", ""])


@pytest.fixture(scope="module")
def product(tmp_path_factory):
    folder = tmp_path_factory.mktemp("twice") / "twice"
    folder.mkdir()
    for name, schema in SCHEMAS.items():
        (folder / f"{name}.toml").write_text(schema)
        (folder / f"{name}.cc").write_text(kernel(name, SUMS[name]))
    anyop.load(anyop.build(folder))
    return anyop.ops.twice.product


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_what_is_not_wanted_has_a_gradient_of_zeros(product, wrap):
    x, y = jnp.arange(1, 4, dtype="float32"), jnp.array([5.0, -7.0, 11.0], "float32")

    def ours(x, y):
        return (product(product(x, y), y) ** 2).sum()  # (x y^2)^2

    def theirs(x, y):
        return ((x * y * y) ** 2).sum()

    def second(f, first, other):  # the first gradient wants one input alone
        return wrap(jax.grad(lambda x, y: (jax.grad(f, first)(x, y) * y).sum(), other))(x, y)

    for first in (0, 1):
        for other in (0, 1, (0, 1)):
            found, expected = second(ours, first, other), second(theirs, first, other)
            np.testing.assert_allclose(
                np.stack([*np.atleast_1d(found)]), np.stack([*np.atleast_1d(expected)]), rtol=1e-6
            )
