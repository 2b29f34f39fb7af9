# SPDX-License-Identifier: Apache-2.0
"""vmap over elements that have too few dimensions: refused as the element alone is, the batch is not taken for one."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest
from anyop import testing

OPS = Path(__file__).parents[2] / "ops"
NO_MATTER = (ValueError, TypeError, NotImplementedError)


def terms(param: dict) -> int:
    return len(param["shape"]["before"]) + len(param["shape"]["after"])


SUBJECTS = {
    subject.name: subject
    for subject in testing.find_subjects(OPS)
    if subject.results
    and any(terms(param) and param["shape"]["group"] for param in subject.tensors)
}


def functions(framework: str):
    """The framework's tensor of an array, and its vmap."""
    library = pytest.importorskip(framework)
    importlib.import_module(f"anyop.{framework}")
    make = library.numpy.array if framework == "jax" else library.from_numpy
    return make, library.vmap


@pytest.mark.parametrize("framework", ["torch", "jax"])
@pytest.mark.parametrize("name", SUBJECTS)
def test_too_small(framework, name):
    make, vmap = functions(framework)
    subject = SUBJECTS[name]
    good = testing.Good(subject).arguments()
    if any(isinstance(v, np.ndarray) and v.dtype.isbuiltin != 1 for v in good.values()):
        pytest.skip("drawn of a dtype that NumPy has not")
    plain = {n: make(v) if isinstance(v, np.ndarray) else v for n, v in good.items()}
    if any(isinstance(value, list) for value in plain.values()):
        pytest.skip("takes lists of tensors, whose elements are not batched one by one")
    for param in subject.tensors:
        value, sizes = good.get(param["name"]), terms(param)
        if not (sizes and isinstance(value, np.ndarray) and param["shape"]["group"]):
            continue
        if param["shape"]["expand"]:
            continue  # which may have fewer dimensions
        batch = make(np.ones(value.shape[value.ndim - sizes :], value.dtype))
        given = {n: v for n, v in plain.items() if n != param["name"]}

        def call(x, name=param["name"], given=given):
            return subject.function(**given, **{name: x})

        with pytest.raises(NO_MATTER, match=f"{name}: "):
            vmap(call)(batch)
