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
from fibers import on_fibers, running

NAMES = ["top_k_mask", "top_k_renorm", "top_p_renorm"]


@pytest.fixture(scope="module", autouse=True)
def kernels(tmp_path_factory):
    with running(tmp_path_factory.mktemp("sampling"), NAMES):
        yield


@pytest.mark.parametrize("V", [5, 40, 111, 300, 9000])
@pytest.mark.parametrize("name", NAMES)
def test_filters_keep_what_the_cpu_keeps(name, V):
    function, rows = getattr(anyop, name), 100 if V < 9000 else 6
    generator = np.random.default_rng(V)
    x = generator.standard_normal((rows, V)).astype(np.float32)
    if name != "top_k_mask":
        x = np.exp(3 * x) / np.exp(3 * x).sum(-1, keepdims=True)
    given = generator.integers(1, np.minimum(V + 3, 24 if V < 9000 else 600), rows).astype(np.int32)
    if name == "top_p_renorm":
        given = generator.uniform(0, 1.05, rows).astype(np.float32)
    np.testing.assert_array_equal(on_fibers(function)(x, given), function(x, given))
