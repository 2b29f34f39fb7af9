# SPDX-License-Identifier: Apache-2.0
"""What an argument of the wrong kind is called in a message, as bindings/python/frameworks/framework.cc calls it."""

from __future__ import annotations


def object_text(value: object) -> str:
    """Behind "is": "a torch.Tensor", "an int", "None"."""
    if value is None:
        return "None"
    kind = type(value)
    module = "" if kind.__module__ in ("builtins", "") else f"{kind.__module__}."
    text = f"{module}{kind.__qualname__}"
    if text == "jaxlib._jax.ArrayImpl":
        text = "jax.Array"
    return f"{'an' if text[0] in 'aeioAEIO' else 'a'} {text}"
