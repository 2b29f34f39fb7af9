# SPDX-License-Identifier: Apache-2.0
"""All bad calls of one operator, class by class."""

from __future__ import annotations

from collections.abc import Iterator

from anyop.testing import (
    refuse_arguments,
    refuse_dlpack,
    refuse_dtypes,
    refuse_layouts,
    refuse_outputs,
    refuse_shapes,
    refuse_torch,
)
from anyop.testing.refusal import CLASSES, Good, Refusal, RefusalClass, check_refusal

__all__ = ["CLASSES", "Good", "Refusal", "RefusalClass", "check_refusal", "classes", "refusals"]

_MODULES = (
    refuse_arguments, refuse_dtypes, refuse_shapes, refuse_layouts, refuse_outputs, refuse_dlpack, refuse_torch,
)  # fmt: skip


def classes(with_torch: bool = True) -> list[RefusalClass]:
    """Every class that can be tried here; those of torch only where it is installed, and not imported unless wanted."""
    assert all(any(c.make.__module__ == m.__name__ for c in CLASSES.values()) for m in _MODULES)
    torch_module = refuse_torch.__name__
    without = not with_torch or bool(refuse_torch.torch_missing())
    return [c for c in CLASSES.values() if not (without and c.make.__module__ == torch_module)]


def refusals(good: Good, with_torch: bool = True) -> Iterator[Refusal]:
    """Every bad call of the operator."""
    for refusal_class in classes(with_torch):
        yield from refusal_class.make(good)
