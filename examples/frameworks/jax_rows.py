# SPDX-License-Identifier: Apache-2.0
"""Two rows and what is added to them, normalised by one compiled kernel: JAX, under jit."""

import anyop
import jax
import jax.numpy as jnp

x = jnp.arange(8, dtype=jnp.float32).reshape(2, 4)
more = jnp.full((2, 4), 0.5, jnp.float32)
weight = jnp.array([1, 1, 2, 2], jnp.float32)

y = jax.jit(lambda *xs: anyop.rms_norm(anyop.add(*xs), weight, eps=1e-6))(x, more)
for row in y.tolist():
    print(*[f"{value:.4f}" for value in row])
