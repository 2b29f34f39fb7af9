# SPDX-License-Identifier: Apache-2.0
"""JAX's arrays, traced values and symbolic sizes, as the neutral half asks about them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anyop.adapter.dtypes import BY_NAME
from anyop.adapter.framework import Framework
from anyop.adapter.shapes import Sizes


class _Open:
    """The truth of a comparison that symbolic sizes leave open. The kernel's call will decide it."""

    def __and__(self, other: Any) -> Any:
        return self if other is self or other else False

    def __or__(self, other: Any) -> Any:
        return self if other is self or not other else True

    __rand__, __ror__ = __and__, __or__


_OPEN = _Open()


def _or_open(compare: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def found(a: Any, b: Any) -> Any:
        try:
            return compare(a, b)
        except Exception as error:
            from jax.extend.core import InconclusiveDimensionOperation  # 20 ms; needed rarely

            if isinstance(error, InconclusiveDimensionOperation):
                return _OPEN
            raise

    return found


class SymbolicSizes(Sizes):
    """Sizes that jax.export may have left open. Equal are those that JAX knows to be equal."""

    operations = {  # noqa: RUF012
        **Sizes.operations,
        "min": jax.core.min_dim,
        "max": jax.core.max_dim,
        "<": _or_open(Sizes.operations["<"]),
        "<=": _or_open(Sizes.operations["<="]),
    }


class JaxFramework(Framework):
    """Arrays, tracers and abstract values alike."""

    sizes = SymbolicSizes
    dtype_example = 'dtype such as "float32" or jnp.float32'

    def cast(self, tensor: Any, dtype: str) -> Any:
        """The tensor in another dtype."""
        return tensor.astype(jnp_dtype(dtype))

    def to_dtype(self, value: Any) -> str | None:
        """The name of what "float32", jnp.float32, numpy.float32 or a dtype means; None: unknown."""
        if isinstance(value, str):
            return value if value in BY_NAME else None
        is_dtype = isinstance(value, (np.dtype, type)) or (
            hasattr(value, "dtype") and not hasattr(value, "shape")  # not an array's or a number's
        )
        try:
            name = np.dtype(value).name if is_dtype else None
        except (TypeError, ValueError):  # by an object's own dtype
            return None
        return name if name in BY_NAME else None


def is_array(value: Any) -> bool:
    """Whether it is JAX's, with values or traced."""
    return isinstance(value, jax.Array)


def is_traced(value: Any) -> bool:
    """Whether a transformation is watching."""
    return isinstance(value, jax.core.Tracer)


def jnp_dtype(name: str) -> np.dtype:
    """JAX's dtype of a name."""
    return jnp.dtype(name)


FRAMEWORK = JaxFramework()
