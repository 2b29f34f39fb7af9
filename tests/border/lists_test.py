# SPDX-License-Identifier: Apache-2.0
"""Lists of tensors: in place element by element, in any order of dimensions, and numbers put on the device."""

from __future__ import annotations

import re
from pathlib import Path

import anyop
import numpy as np
import pytest
from anyop import testing

SCHEMA = """\
schema = "lists::scale(Tensor[] x, Tensor(a!)[] out, Tensor rate, *, float shift=0.0) -> ()"
inplace = ["x"]
numbers = ["rate"]
shapes = { x = "[N] *P", out = "[N] *P", rate = "expand(1)" }
layouts = { x = "dense", out = "dense" }
dtypes = { x = ["float32", "float64"], out = "x", rate = ["float32"] }
"""
KERNEL = """\
#include "lists/ops/scale.h"
template <typename T>
static void Run(const AnyopTensor& x, const AnyopTensor& out, float rate, double shift) {
  int64_t count = 1;
  for (int d = 0; d < x.ndim; ++d) count *= x.shape[d];
  for (int64_t i = 0; i < count; ++i)
    static_cast<T*>(out.data)[i] = static_cast<T>(rate * static_cast<const T*>(x.data)[i] + shift);
}
int32_t lists_scale_cpu(const ScaleArgs* args, AnyopCall*) {
  const float rate = *static_cast<const float*>(args->rate->data);
  for (int64_t n = 0; n < args->N; ++n) {
    const AnyopTensor &x = args->x.data[n], &out = args->out.data[n];
    (x.dtype_bits == 32 ? Run<float> : Run<double>)(x, out, rate, args->shift);
  }
  return kAnyopOk;
}
"""
REFERENCE = """\
def reference(x, out, rate, shift):
    for a, b in zip(x, out):
        b[...] = rate * a + shift
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The operator of this file, loaded."""
    folder = tmp_path_factory.mktemp("lists") / "lists"
    folder.mkdir()
    (folder / "scale.toml").write_text(SCHEMA)
    (folder / "scale.cc").write_text(KERNEL)
    (folder / "scale_test.py").write_text(REFERENCE)
    anyop.load(anyop.build(folder))
    return folder


@pytest.fixture(scope="module")
def scale(folder):
    return anyop.ops.lists.scale


def drawn(count: int, shape=(3, 5)) -> list[np.ndarray]:
    generator = np.random.default_rng(count)
    return [generator.standard_normal(shape).astype(np.float32) for _ in range(count)]


@pytest.mark.parametrize("count", [1, 3, 4000])
def test_a_written_list_may_be_the_one_that_is_read(scale, count):
    x = drawn(count)
    expected = [2 * a for a in x]
    scale(x, x, np.float32([2]))
    np.testing.assert_array_equal(x, expected)
    half = [a.copy() if k % 2 else a for k, a in enumerate(x)]
    scale(x, half, np.float32([2]))
    np.testing.assert_array_equal(half, [2 * a for a in expected])


@pytest.mark.parametrize("count", [2, 4000])
def test_elements_of_other_numbers_and_parts_are_refused(scale, count):
    rate, x = np.float32([2]), drawn(count)
    before = [a.copy() for a in x]
    swapped = [x[1], x[0], *x[2:]]
    says = r"out overlaps x in memory \[element [01] of out, element [01] of x\]"
    with pytest.raises(ValueError, match=says):
        scale(x, swapped, rate)
    memory = np.zeros(40, np.float32)
    part, other = memory[:15].reshape(3, 5), memory[2:17].reshape(3, 5)
    with pytest.raises(ValueError, match="out overlaps x in memory"):
        scale([part, *x[1:]], [other, *x[1:]], rate)
    out = [np.zeros_like(a) for a in x]
    with pytest.raises(ValueError, match=r"out overlaps out in memory \[element"):
        scale(x, [*out[:-1], out[0]], rate)
    np.testing.assert_array_equal(x, before)


def test_any_order_of_dimensions_without_gaps(scale):
    x = [a.reshape(2, 3, 4, 5).transpose(0, 3, 1, 2) for a in drawn(3, (2, 3, 20))]
    out = [np.zeros((2, 3, 4, 5), np.float32).transpose(0, 3, 1, 2) for _ in x]
    scale(x, out, np.float32(3))
    np.testing.assert_array_equal(out, [3 * a for a in x])
    apart = [*out[:2], np.ascontiguousarray(out[2])]
    says = (
        "out has sizes (2, 5, 3, 4) and strides (60, 12, 4, 1), "
        "expected (2, 5, 3, 4) and (60, 1, 20, 5) as x [element 2]"
    )
    with pytest.raises(ValueError, match=re.escape(says)):
        scale(x, apart, np.float32(3))
    gaps = [np.zeros((4, 6), np.float32)[:, :5]]
    with pytest.raises(
        ValueError, match="expected it without gaps, in any order of its dimensions"
    ):
        scale(gaps, [np.zeros((4, 5), np.float32)], np.float32(3))
    repeated = [np.broadcast_to(np.float32(1), (4, 5))]
    with pytest.raises(ValueError, match="expected it without gaps"):
        scale(repeated, [np.zeros((4, 5), np.float32)], np.float32(3))
    empty = np.zeros((0, 3), np.float32)
    scale([empty], [np.zeros((3, 0), np.float32).T], np.float32(3))


def test_a_number_is_put_where_the_tensors_are(scale):
    x = drawn(2)
    out = [np.zeros_like(a) for a in x]
    scale(x, out, 2)
    np.testing.assert_array_equal(out, [2 * a for a in x])
    scale(x=x, out=out, rate=0.5)
    np.testing.assert_array_equal(out, [a / 2 for a in x])
    with pytest.raises(TypeError, match="rate is a str"):
        scale(x, out, "2")
    with pytest.raises(ValueError, match=r"rate has shape \(2\), expected \(expand\(1\)\)"):
        scale(x, out, np.float32([1, 2]))
    with pytest.raises(TypeError, match="rate has dtype float64, expected float32"):
        scale(x, out, np.float64([1]))


def test_a_tensor_for_a_number_is_refused(scale):
    x = drawn(1)
    scale(x, x, 1, shift=np.float32(0))  # a number of NumPy's
    says = "shift is a numpy.ndarray, expected float: reading it would wait for its device; rate take tensors"
    with pytest.raises(TypeError, match=says):
        scale(x, x, 1, shift=np.zeros((), np.float32))


def test_torch(folder):
    torch = pytest.importorskip("torch")
    import anyop.torch  # registers torch.ops.lists.scale

    x = [torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), torch.randn(7)]
    expected, versions = [a * 0.5 for a in x], [a._version for a in x]
    anyop.ops.lists.scale(x, x, 0.5)
    for a, b, version in zip(x, expected, versions):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
        assert a._version > version
    torch.ops.lists.scale(x, x, torch.tensor(2.0))
    for a, b in zip(x, expected):
        torch.testing.assert_close(a, 2 * b, rtol=0, atol=0)
    for call in (anyop.ops.lists.scale, torch.compile(anyop.ops.lists.scale, backend="eager")):
        with pytest.raises(TypeError, match=r"shift is a torch\.Tensor.*rate take tensors"):
            call(x, x, 0.5, shift=torch.tensor(1.0))


def test_jax(folder):
    jax = pytest.importorskip("jax")

    x = [jax.numpy.ones(shape, "float32") for shape in ((3,), (2, 2))]
    for rate in map(jax.numpy.float32, (3, 4)):
        found = jax.jit(lambda x, out, rate: anyop.ops.lists.scale(x, out, rate))(x, x, rate)
        for a, b in zip(found, x):
            np.testing.assert_array_equal(a, rate * b)
    found = jax.jit(lambda x: anyop.ops.lists.scale(x, x, 3.0))(x)
    np.testing.assert_array_equal(found[1], 3 * x[1])


def test_the_standard_tests_pass(folder):
    (subject,) = testing.find_subjects(folder)
    kinds, calls = set(), 0
    for choice in testing.dtype_choices(subject.metadata):
        for case in testing.standard_cases(subject, choice):
            kinds.update(case.layouts.values())
            calls += testing.check_case(subject, case).calls
    assert {"offset", "turned"} <= kinds and calls > 50
    good = testing.Good(subject)
    refused = list(testing.refusals(good, with_torch=False))
    assert {"x", "out"} <= {r.argument for r in refused if r.kind == "not contiguous"}
    for refusal in refused:
        testing.check_refusal(good, refusal)
