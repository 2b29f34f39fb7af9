# SPDX-License-Identifier: Apache-2.0
"""Every place of a call where a tensor stands, argument or result, and a refusal of a bad array there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from anyop.cases.dtype_choices import numpy_dtype
from anyop.cases.placed import OUTPUT_FILL, Placed, place
from anyop.cases.sizes import Shape
from anyop.testing.refusal import Good, Refusal


def tensors_of(good: Good) -> Iterator[tuple[dict[str, Any], Shape, np.dtype, bool]]:
    """(metadata, shape, dtype, is a result) of every tensor, results included; of a list the last one."""
    for param in good.subject.tensors:
        name = param["name"]
        shape = good.shapes[name][-1] if param["list"] else good.shapes[name]
        yield param, shape, numpy_dtype(good.choice.names[name]), False
    outputs = good.outputs()
    for param in good.subject.results:
        array = outputs[param["name"]].array
        yield param, array.shape, array.dtype, True


def with_array(
    good: Good, kind: str, param: Mapping[str, Any], label: str, errors, array: Any, **more: Any
) -> Refusal:
    """A refusal of one array in the place of an argument or a result."""
    name = param["name"]
    return Refusal(kind, name, f"{name} {label}", errors, good.with_arrays({name: array}), **more)


def zeros(param: Mapping[str, Any], shape: Shape, dtype: np.dtype, is_result: bool) -> Placed:
    """An array of zeros, aligned as the schema wants; a result's memory is filled so that writes show."""
    return place(shape, dtype, "offset", OUTPUT_FILL if is_result else 0, param["alignment"])
