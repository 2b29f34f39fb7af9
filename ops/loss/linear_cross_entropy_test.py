# SPDX-License-Identifier: Apache-2.0
"""linear_cross_entropy in float64; torch's own, targets outside, memory, no number of threads."""

import subprocess
import sys

import anyop
import ml_dtypes  # noqa: F401  bfloat16
import numpy as np
import pytest


def logits_of(x, weight, bias, softcap):
    logits = x @ weight.T + (0 if bias is None else bias)
    return softcap * np.tanh(logits / softcap) if softcap else logits


def reference(x, weight, target, bias, ignore_index, label_smoothing, softcap, z_loss):
    with np.errstate(all="ignore"):
        logits = logits_of(x, weight, bias, softcap)
        most = logits.max(-1, keepdims=True)
        lse = (most + np.log(np.exp(logits - most).sum(-1, keepdims=True)))[..., 0]
        wanted = np.where(target == ignore_index, 0, target)[..., None]
        loss = lse - (1 - label_smoothing) * np.take_along_axis(logits, wanted, -1)[..., 0]
        loss -= label_smoothing * logits.mean(-1) if label_smoothing else 0
        loss += z_loss * lse**2 if z_loss else 0
    return np.where(target == ignore_index, 0, loss), lse


def made(seed, rows, V, K, dtype="float32", bias=True):
    random = np.random.default_rng(seed)
    x, weight, added = (random.standard_normal(s).astype(dtype) for s in ((rows, K), (V, K), (V,)))
    return x, weight, random.integers(0, V, rows), added if bias else None


@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize("place", [0, 3, 1023, 1024, 2047, 2999])
def test_target_outside_is_an_index_error(index, place):
    x, weight, target, _ = made(0, 3000, 10, 2, bias=False)
    target = target.astype(index)
    target[place] = 10
    message = rf"^linear_cross_entropy: target\[{place}\] is 10, expected 0 <= target < 10, or -1"
    loss, lse = np.full((2, 3000), 7, np.float32)
    with pytest.raises(IndexError, match=message):
        anyop.linear_cross_entropy(x, weight, target, ignore_index=-1, loss=loss, lse=lse)
    assert (loss == 7).all() and (lse == 7).all()
    target[place] = -1
    loss, lse = anyop.linear_cross_entropy(x, weight, target, ignore_index=-1)
    assert loss[place] == 0 and np.isfinite(lse).all() and (np.delete(loss, place) > 0).all()


def test_place_of_a_target_in_two_dimensions():
    x, weight, target, _ = made(0, 6, 4, 3)
    target[5] = -7
    message = r"target\[1, 2\] is -7, expected 0 <= target < 4, or -100 to ignore the row"
    with pytest.raises(IndexError, match=message):
        anyop.linear_cross_entropy(x.reshape(2, 3, 3), weight, target.reshape(2, 3))


@pytest.mark.parametrize("number", [{"softcap": -1.0}, {"softcap": np.inf}, {"label_smoothing": 2.0},
                                    {"label_smoothing": np.nan}])  # fmt: skip
def test_numbers_that_make_no_loss(number):
    x, weight, target, _ = made(0, 2, 3, 4)
    with pytest.raises(ValueError, match=f"^linear_cross_entropy: {next(iter(number))} is "):
        anyop.linear_cross_entropy(x, weight, target, **number)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_several_blocks_of_classes(dtype):
    """5,000 rows have blocks of 1,024 of 2,500 classes; a greatest logit in each of them."""
    x, weight, target, bias = made(1, 5000, 2500, 3, dtype)
    weight[[5, 1500, 2499]] *= 20
    target[::7] = -100
    values = {"ignore_index": -100, "label_smoothing": 0.1, "softcap": 30.0, "z_loss": 1e-3}
    found = anyop.linear_cross_entropy(x, weight, target, bias, **values)
    exact = reference(*(a.astype(float) for a in (x, weight)), target, bias.astype(float), **values)
    for one, other in zip(found, exact, strict=True):
        limit = 1e-13 if dtype == "float64" else 2e-6
        np.testing.assert_allclose(one, other, rtol=limit, atol=10 * limit)


def test_huge_logits_stay_finite():
    x = np.array([[1e30, 0], [-1e30, 1], [3e38, 3e38]], np.float32)
    weight = np.array([[1, 0], [-1, 0], [0, 1e-30]], np.float32)
    loss, lse = anyop.linear_cross_entropy(x, weight, np.array([0, 1, 0]))
    np.testing.assert_allclose(lse, [1e30, 1e30, 3e38], rtol=1e-6)
    np.testing.assert_array_equal(loss, 0)


def test_the_same_bits_for_any_number_of_threads():
    x, weight, target, bias = made(2, 300, 9000, 24)
    before, found = anyop.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            anyop.set_num_threads(threads)
            found.append(anyop.linear_cross_entropy(x, weight, target, bias))
    finally:
        anyop.set_num_threads(before)
    for loss, lse in found[1:]:
        np.testing.assert_array_equal(loss, found[0][0])
        np.testing.assert_array_equal(lse, found[0][1])


_PEAK = """
import resource
import anyop, numpy as np

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024  # MiB

random = np.random.default_rng(0)
rows, V, K = 2048, 40000, 8
x, weight = (random.standard_normal(s).astype("float32") for s in ((rows, K), (V, K)))
target = random.integers(0, V, rows)
anyop.linear_cross_entropy(x[:4], weight[:4], target[:4] % 4)
before = peak()
loss, lse = anyop.linear_cross_entropy(x, weight, target)
anyop.linear_cross_entropy_backward(x, weight, target, lse, np.ones_like(loss))
print(peak() - before, rows * V * 4 >> 20)
"""


def test_peak_memory_is_not_that_of_the_logits():
    """A process of its own, forward and backward: 312 MiB of logits, of which 8 are there at a time."""
    run = subprocess.run([sys.executable, "-c", _PEAK], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    more, logits = map(int, run.stdout.split())
    assert more < 80 < logits / 3
