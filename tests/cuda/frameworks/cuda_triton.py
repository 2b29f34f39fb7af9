# SPDX-License-Identifier: Apache-2.0
"""Triton's kernels on a CUDA device: the standard cases of each, rows of every width, streams; torch's and CuPy's
callables.
"""

from __future__ import annotations

import collections
import contextlib
import importlib.util
from dataclasses import replace
from pathlib import Path

import anyop
import pytest
from anyop import testing
from anyop.testing.torch_memory import fits_torch, on_device

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy is ml_dtypes'")
pytest.importorskip("triton", reason="triton is not installed")
if not torch.cuda.is_available():
    pytest.skip("there is no CUDA device that torch can use", allow_module_level=True)

OPS = Path(__file__).parents[3] / "ops"
DTYPES = {"float32": 5e-6, "float16": 1e-3, "bfloat16": 8e-3}
SUBJECTS = {s.name: s for s in testing.find_subjects(OPS)}
TRITON = [
    name
    for name, subject in SUBJECTS.items()
    if any(kernel["backend"] == "triton" for kernel in subject.metadata["kernels"])
]


def routed(function, backend):
    def call(*positional, **named):
        with anyop.use(backend):
            return function(*positional, **named)

    return call


def uniform(subject):
    for choice in testing.dtype_choices(subject.metadata):
        if choice.is_uniform and set(filter(None, choice.names.values())) & set(DTYPES):
            yield choice


def calls_of(name):
    """By backend: images of Triton's and its functions in Python are one."""
    found = collections.Counter()
    for kernel in testing.kernel_calls(name):
        found[kernel.backend.partition(".")[0]] += kernel.calls or 0
    return found


@contextlib.contextmanager
def only(backend, *names):
    """Inside, calls go there; behind it, that no other implementation ran is checked."""
    for name in names:
        testing.observe(name)
    before = {name: calls_of(name) for name in names}
    with anyop.use(backend):
        yield
    for name in names:
        ran = {k for k, calls in calls_of(name).items() if calls > before[name].get(k, 0)}
        assert ran == {backend}, f"{name}: {ran} ran"


def check_standard_cases(name, backend, step=1):
    """How many there were, and how many calls the backend took."""
    subject = SUBJECTS[name]
    there = replace(subject, function=on_device(routed(subject.function, backend), "cuda"))
    testing.observe(name)
    before, failures, cases = calls_of(name).get(backend, 0), [], 0
    for choice in uniform(subject):
        for case in filter(fits_torch, testing.standard_cases(subject, choice)[::step]):
            cases += 1
            try:
                testing.check_case(there, case)
            except testing.CheckError as error:
                failures.append(str(error))
    if failures:
        pytest.fail(f"{len(failures)} failures:\n" + "\n".join(failures[:8]), pytrace=False)
    return cases, calls_of(name)[backend] - before


@pytest.mark.parametrize("name", TRITON)
def test_standard_cases(name):
    cases, calls = check_standard_cases(name, "triton")
    kernel = next(k for k in SUBJECTS[name].metadata["kernels"] if k["backend"] == "triton")
    assert calls >= cases * (0.5 if "contiguous" in kernel["when"] else 1)


# Around what decides how a row is divided.
WIDTHS = [
    1,
    2,
    7,
    31,
    64,
    127,
    128,
    1000,
    1024,
    4096,
    4097,
    8192,
    16384,
    16385,
    40000,
    65536,
    131075,
]


def rows(count, D, dtype, seed):
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(count, D, generator=generator, device="cuda", dtype=torch.float64).to(dtype)


def assert_near(found, expected, limit):
    found, expected = found.double(), expected.double()
    assert ((found - expected).abs() <= limit * (1 + expected.abs())).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("D", WIDTHS)
def test_rows_of_every_width(D, dtype):
    kind, limit = getattr(torch, dtype), DTYPES[dtype]
    x, w, b = rows(37, D, kind, 1), rows(1, D, kind, 2)[0], rows(1, D, kind, 3)[0]
    X, W = x.double(), w.double()
    with only("triton", "rms_norm", "layer_norm", "softmax", "silu_and_mul"):
        scale = (X.square().mean(1, keepdim=True) + 1e-6).rsqrt()
        assert_near(anyop.rms_norm(x, w), X * scale * W, limit)
        exact = torch.nn.functional.layer_norm(X, (D,), W, b.double(), 1e-5)
        assert_near(anyop.layer_norm(x, w, b), exact, limit)
        assert_near(anyop.softmax(x, -1), X.softmax(-1), limit)
        assert_near(anyop.softmax(x, 0), X.softmax(0), limit)
        assert_near(
            anyop.silu_and_mul(rows(5, 2 * D, kind, 4)), halves(rows(5, 2 * D, kind, 4)), limit
        )
    if D <= 16384:
        with only("triton", "rms_norm_backward"):
            check_backward(rows(37, D, kind, 5), x, w, limit)


def halves(x):
    gate, value = x.double().chunk(2, -1)
    return torch.nn.functional.silu(gate) * value


def check_backward(grad, x, w, limit):
    G, X, W = grad.double(), x.double(), w.double()
    scale = (X.square().mean(1, keepdim=True) + 1e-6).rsqrt()
    product, normal = G * W, X * scale
    grad_x, grad_weight = anyop.rms_norm_backward(grad, x, w)
    assert_near(
        grad_x, scale * (product - normal * (product * normal).mean(1, keepdim=True)), 2 * limit
    )
    size = (G * normal).abs().sum(0)  # what is added up decides the error
    assert ((grad_weight.double() - (G * normal).sum(0)).abs() <= limit * (1 + size)).all()
    again = anyop.rms_norm_backward(grad, x, w)
    assert torch.equal(again[0], grad_x) and torch.equal(again[1], grad_weight)


@pytest.mark.parametrize("count", [1, 2, 263, 264, 265, 5000, 70001])
def test_any_number_of_rows(count):
    x, grad, w = (rows(n, 200, torch.float32, s) for n, s in ((count, 1), (count, 2), (1, 3)))
    with only("triton", "rms_norm_backward"):
        check_backward(grad, x, w[0], 5e-6)


def test_the_current_stream_is_used_and_not_waited_for():
    """The input is written behind a spin on a side stream: another stream would read zeros."""
    source, weight = rows(256, 512, torch.float32, 1), rows(1, 512, torch.float32, 2)[0]
    with anyop.use("triton"):
        expected = anyop.rms_norm(source, weight)
        late = torch.zeros_like(source)
        side = torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(200_000_000)
            late.copy_(source)
            found = anyop.rms_norm(late, weight)
            assert not side.query(), "the call waited for the stream"
        side.synchronize()
    assert torch.equal(found, expected)
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


def test_torch_callables_share_the_devices_memory():
    seen = []

    def twice(x, *, out):
        seen.append((x.data_ptr(), out.data_ptr(), torch.cuda.current_stream().cuda_stream))
        torch.mul(x, 2, out=out)

    anyop.register("silu", "mine", twice, framework="torch", name="mine", device="cuda")
    x, stream = rows(3, 5, torch.float32, 1), torch.cuda.Stream()
    out = torch.empty_like(x)
    with anyop.use("mine"), torch.cuda.stream(stream):
        anyop.silu(x, out=out)
    stream.synchronize()
    anyop.unregister("silu", "mine")
    assert torch.equal(out, 2 * x) and seen == [(x.data_ptr(), out.data_ptr(), stream.cuda_stream)]


@pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="CuPy is not installed")
def test_cupy_callables():
    import cupy

    seen = []

    def twice(x):
        seen.append((type(x) is cupy.ndarray, cupy.cuda.get_current_stream().ptr))
        return x * 2

    anyop.register("silu", "mine", twice, framework="cupy", name="mine")
    x, stream = rows(3, 5, torch.float32, 1), torch.cuda.Stream()
    with anyop.use("mine"), torch.cuda.stream(stream):
        found = anyop.silu(x)
    stream.synchronize()
    anyop.unregister("silu", "mine")
    assert torch.equal(found, 2 * x) and seen == [(True, stream.cuda_stream)]


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed")
def test_from_jax():
    import jax

    if not any(device.platform == "gpu" for device in jax.devices()):
        pytest.skip("JAX finds no CUDA device")
    x, w = (rows(n, 96, torch.float32, n).cpu().numpy() for n in (50, 1))
    with anyop.use("triton"):
        found = jax.jit(lambda x, w: anyop.rms_norm(x, w))(x, w[0])
    exact = x / (((x.astype(float) ** 2).mean(1, keepdims=True) + 1e-6) ** 0.5) * w[0]
    assert abs(jax.numpy.asarray(found) - exact).max() < 1e-4
