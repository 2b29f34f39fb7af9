# SPDX-License-Identifier: Apache-2.0
"""Filters of the sampling kernels on fibers, bit by bit those of the CPU, over many rows, lengths and parameters.

What they keep ends anywhere: within a list, at its last element, behind it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import anyop
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from drawn import FULL
from fibers import on_fibers, running

NAMES = ["top_k_mask", "top_k_renorm", "top_p_renorm"]


@pytest.fixture(scope="module", autouse=True)
def kernels(tmp_path_factory):
    with running(tmp_path_factory.mktemp("sampling"), [*NAMES, "sample"]):
        yield


@pytest.mark.parametrize("V", [5, 40, 111, 300, 9000])
@pytest.mark.parametrize("name", NAMES)
def test_filters_keep_what_the_cpu_keeps(name, V):
    function, rows = getattr(anyop, name), 6 if V == 9000 else 100 if FULL else 25
    generator = np.random.default_rng(V)
    x = generator.standard_normal((rows, V)).astype(np.float32)
    if name != "top_k_mask":
        x = np.exp(3 * x) / np.exp(3 * x).sum(-1, keepdims=True)
    given = generator.integers(1, np.minimum(V + 3, 24 if V < 9000 else 600), rows).astype(np.int32)
    if name == "top_p_renorm":
        given = generator.uniform(0, 1.05, rows).astype(np.float32)
    np.testing.assert_array_equal(on_fibers(function)(x, given), function(x, given))


@pytest.mark.parametrize("V", [5, 300, 9000, 20_001])
def test_draws_are_those_of_the_cpu(V):
    """With each of the filters and all; of rows that are flat, peaked, of few values, and all the same."""
    generator, rows = np.random.default_rng(V), 40 if V < 9000 else 8
    x = generator.standard_normal((rows, V)) * np.resize([1, 0.1, 5, 0], (rows, 1))
    x[: rows // 2] = x[: rows // 2].round(1)
    seed, offset = np.arange(rows), np.full(rows, 7)
    given = {
        "temperature": generator.uniform(0.2, 2, rows).astype(np.float32),
        "top_k": generator.integers(0, min(V, 600), rows).astype(np.int32),
        "top_p": generator.uniform(0, 1.05, rows).astype(np.float32),
        "min_p": generator.uniform(0, 0.2, rows).astype(np.float32),
    }
    given["temperature"][::7] = 0
    choices = [
        (),
        ("temperature",),
        ("top_k",),
        ("top_p",),
        ("min_p",),
        ("top_k", "top_p"),
        tuple(given),
    ]
    for names in choices:
        chosen = {name: given[name] for name in names}
        for first in (True, False) if "top_k" in names and "top_p" in names else (True,):
            arguments = (x.astype(np.float32), seed, offset)
            got = on_fibers(anyop.sample)(*arguments, **chosen, top_k_first=first)
            expected = anyop.sample(*arguments, **chosen, top_k_first=first)
            np.testing.assert_array_equal(got[0], expected[0], err_msg=str((names, first)))
            np.testing.assert_allclose(got[1], expected[1], rtol=1e-6, atol=1e-6)
