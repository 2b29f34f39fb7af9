# SPDX-License-Identifier: Apache-2.0
"""torch's own kernels as the backend aten on a CUDA device: standard cases of every operator, streams, JAX and CuPy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import anyop
import numpy as np
import pytest
from anyop import testing
from anyop.testing.torch_memory import fits_torch, on_device

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy is ml_dtypes'")
if not torch.cuda.is_available():
    pytest.skip("there is no CUDA device that torch can use", allow_module_level=True)

SUBJECTS = {s.name: s for s in testing.find_subjects(Path(__file__).parents[3] / "ops")}
STEP = 5  # one case in so many
# What torch's convolutions of float32 are rounded to on their own, and in which order they add.
torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic = False, True
ATOMIC = {"topk_backward", "embedding_backward"}  # torch adds in any order: other bits in each run


def routed(function):
    def call(*positional, **named):
        with anyop.use("aten"):
            return function(*positional, **named)

    return call


def aten_calls(name: str) -> int:
    return next((k.calls for k in testing.kernel_calls(name) if k.backend == "aten"), 0)


@pytest.mark.parametrize("name", SUBJECTS)
def test_standard_cases(name):
    subject = SUBJECTS[name]
    if not any(kernel["backend"] == "aten" for kernel in subject.metadata["kernels"]):
        pytest.skip(f"{name} has no mapping to ATen")
    tolerance = {dtype: 2 * value for dtype, value in subject.metadata["tolerance"].items()}
    there = replace(
        subject,
        function=on_device(routed(subject.function), "cuda"),
        metadata={**subject.metadata, "tolerance": tolerance},  # they are torch's kernels
    )
    testing.observe(name)
    before, failures, cases = aten_calls(name), [], 0
    choices = testing.dtype_choices(subject.metadata)
    for choice in [c for c in choices if c.is_uniform] or choices[:: 1 + len(choices) // 12]:
        for case in filter(fits_torch, testing.standard_cases(subject, choice)[::STEP]):
            if case.special:  # what torch makes of infinities and NaN is its own
                continue
            cases += 1
            try:
                testing.check_case(there, case)
            except testing.CheckError as error:
                if name in ATOMIC and "got other bits" in str(error):
                    continue
                failures.append(str(error))
    if failures:
        pytest.fail(f"{len(failures)} of {cases} fail:\n" + "\n".join(failures[:6]), pytrace=False)
    assert cases >= 5 and aten_calls(name) > before


def test_the_callers_stream_is_taken():
    x, w = torch.zeros(1 << 20, 64, device="cuda"), torch.ones(64, device="cuda")
    side = torch.cuda.Stream()
    for _ in range(3):
        x.zero_()
        torch.cuda.synchronize()
        with torch.cuda.stream(side), anyop.use("aten"):
            torch.cuda._sleep(50_000_000)
            x.fill_(2)
            found = anyop.rms_norm(x, w)
            current = torch.cuda.current_stream()
        assert current == side
        side.synchronize()
        assert (found - 1).abs().max() < 1e-5


def test_jax_and_cupy_call_torchs_kernels():
    x = np.random.default_rng(0).standard_normal((64, 128), np.float32)
    mean, deviation = x.mean(1, keepdims=True), x.std(1, keepdims=True)
    expected = (x - mean) / np.sqrt(deviation**2 + 1e-5)
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    if jax.default_backend() == "gpu":
        import anyop.jax

        with anyop.use("aten"):
            found = jax.jit(anyop.layer_norm)(jax.numpy.asarray(x))
        np.testing.assert_allclose(np.asarray(found), expected, 1e-5, 1e-5)
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    with anyop.use("aten"):
        found = anyop.layer_norm(cupy.asarray(x))
    np.testing.assert_allclose(cupy.asnumpy(found), expected, 1e-5, 1e-5)
