# SPDX-License-Identifier: Apache-2.0
"""NumPy's arrays beside JAX's are taken as jax.numpy takes them, in programs and outside."""

from __future__ import annotations

import os
import subprocess
import sys

import anyop
import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed")


def test_numpys_arrays_beside_jaxs():
    """What would be narrowed is refused."""
    rows = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
    x, weight = jax.numpy.asarray(rows), np.full(4, 2, np.float32)
    wanted = anyop.rms_norm(rows, weight)
    calls = (
        (lambda x: anyop.rms_norm(x, weight), x),
        (lambda w: anyop.rms_norm(rows, w), jax.numpy.asarray(weight)),
        (lambda w: anyop.rms_norm(weight=w, x=rows), jax.numpy.asarray(weight)),
    )
    for call, array in calls:
        for found in (call(array), jax.jit(call)(array)):
            assert isinstance(found, jax.Array)
            np.testing.assert_array_equal(found, wanted)
    summed = lambda w: anyop.rms_norm(rows, w).sum()  # noqa: E731
    by_hand = lambda w: anyop.rms_norm(x, w).sum()  # noqa: E731
    w = jax.numpy.asarray(weight)
    np.testing.assert_array_equal(jax.grad(summed)(w), jax.grad(by_hand)(w))
    with jax.enable_x64(False):
        for call in (lambda x: anyop.add(x, np.ones(4)), lambda x: anyop.add(np.ones(4), x)):
            for way in (call, jax.jit(call)):
                with pytest.raises(TypeError, match=r"^add: y is a "):
                    way(x)


def test_numpys_arrays_run_where_jaxs_lie():
    """On two devices of the CPU, in a process of their own: what is NumPy's is bound to no device."""
    text = """
import anyop, jax, numpy as np
second = jax.devices()[1]
x = jax.device_put(np.ones((2, 4), np.float32), second)
found = anyop.rms_norm(x, np.full(4, 2, np.float32))
print(found.devices() == {second}, float(found.sum()))
"""
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
    variables = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    ran = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, env=variables
    )
    assert ran.stdout == "True 15.999992370605469\n", ran.stdout + ran.stderr


def test_numpys_arrays_are_no_place_for_jaxs_results():
    with pytest.raises((TypeError, ValueError), match=r"^rms_norm: "):
        anyop.rms_norm(
            jax.numpy.ones((2, 4)), np.ones(4, np.float32), out=np.ones((2, 4), np.float32)
        )
