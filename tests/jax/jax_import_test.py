# SPDX-License-Identifier: Apache-2.0
"""import anyop.jax: what it says where JAX is missing or old, what it costs, in which order it may come."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("jax", reason="jax is not installed")


def run(program):
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300
    )


def test_without_jax_it_says_how_to_install_it():
    found = run("import sys; sys.modules['jax'] = None\nimport anyop, anyop.jax")
    assert found.returncode == 1
    assert "ImportError: anyop.jax needs JAX" in found.stderr and "pip install jax" in found.stderr


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("import jax; jax.__version__ = '0.9.1'", "needs jax 0.10 or newer; this is jax 0.9.1"),
        (
            "import jaxlib.version as v; v.__version__ = '0.4.38.dev1'",
            "needs jaxlib 0.10 or newer; this is jaxlib 0.4.38.dev1",
        ),
    ],
)  # fmt: skip
def test_an_old_jax_is_refused_by_version(program, says):
    found = run(f"import jax, jaxlib\n{program}\nimport anyop.jax")
    assert found.returncode == 1 and f"ImportError: anyop.jax {says}" in found.stderr, found.stderr


def test_import_order_does_not_matter_and_calls_import_it():
    for order in ("jax, anyop", "anyop, jax", "anyop.jax, jax", "jax, anyop.jax"):
        program = (
            f"import {order}\nimport sys, jax.numpy as jnp\n"
            "assert anyop.relu(jnp.array([-1.0, 2.0])).tolist() == [0.0, 2.0]\n"
            "assert 'anyop.jax' in sys.modules and 'torch' not in sys.modules\n"
        )
        found = run(program)
        assert found.returncode == 0, found.stderr


def test_import_touches_no_device():
    """XLA's flags and jax.config may still be set behind it."""
    found = run(
        "import anyop.jax, os, jax\n"
        "os.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=3'\n"
        "assert jax.device_count() == 3"
    )
    assert found.returncode == 0, found.stderr


def test_memory_stays_where_it_is():
    """Many calls, with attributes, eager and compiled; also where every call has another attribute."""
    found = run("""
import jax, jax.numpy as jnp, anyop.jax, resource
from anyop.jax.primitive import compiled
x, w = jnp.ones((4, 64)), jnp.ones(64)
f = jax.jit(anyop.rms_norm, static_argnums=2)
def calls(count):
    for _ in range(count):
        f(x, w, 1e-5)
        anyop.rms_norm(x, w, 1e-5)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = calls(5_000)
assert calls(30_000) - before < 2_000, "KiB"
assert compiled.cache_info().currsize == 1
compiled.cache_clear()
for k in range(3):
    anyop.rms_norm(x, w, float(k + 1))
assert compiled.cache_info().currsize == 3 and compiled.cache_info().maxsize is not None
""")
    assert found.returncode == 0, found.stderr
