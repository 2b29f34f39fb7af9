# SPDX-License-Identifier: Apache-2.0
"""What this package asks about the values of a framework; each adapter answers by a subclass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anyop.adapter.dtypes import BY_NAME
from anyop.adapter.shapes import Sizes


class Framework:
    """Tensors without memory are asked too: fake ones, traced ones, those of a static graph."""

    sizes: type[Sizes] = Sizes  # how sizes are compared
    integers: tuple[type, ...] = (int,)  # what an int argument may be
    floats: tuple[type, ...] = (float, int)
    booleans: tuple[type, ...] = (bool,)
    dtype_example = 'dtype such as "float32"'  # what a message expects of a dtype argument

    def dtype_name(self, tensor: Any) -> str:
        """As schemas write it; what anyop has not, as the framework writes it."""
        return str(tensor.dtype)

    def shape(self, tensor: Any) -> Sequence[Any]:
        """Its sizes."""
        return tensor.shape

    def device(self, tensor: Any) -> Any:
        """Something that is compared and printed."""
        return "cpu"

    def contiguous(self, tensor: Any) -> Any:
        """The tensor, row-major."""
        return tensor

    def cast(self, tensor: Any, dtype: str) -> Any:
        """The tensor in another dtype."""
        raise NotImplementedError

    def zeros_like(self, tensor: Any) -> Any:
        """Zeros of its shape, dtype and device; for frameworks that leave out gradients of what nothing depends on."""
        raise NotImplementedError

    def to_dtype(self, value: Any) -> Any:
        """A dtype argument, in any form, as the adapter passes it on; None: unknown."""
        name = value if isinstance(value, str) else getattr(value, "name", None)
        name = name or getattr(value, "__name__", None)
        return name if type(name) is str and name in BY_NAME else None

    def dtype_argument_name(self, value: Any) -> str:
        """The name of what to_dtype returned."""
        return value
