# SPDX-License-Identifier: Apache-2.0
"""linear of at most eight rows by the CUDA kernel for these (linear_few.cu), run by fibers."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from anyop import testing

sys.path.insert(0, str(Path(__file__).parent))

import anyop
from drawn import few
from fibers import on_fibers, running, same_bits

ml_dtypes = pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy is ml_dtypes'")
SUBJECTS = testing.find_subjects(Path(__file__).parents[2] / "ops")


@pytest.fixture(scope="module", autouse=True)
def registered(tmp_path_factory):
    with running(tmp_path_factory.mktemp("few"), ["linear"], "cuda_few"):
        yield


def test_standard_cases():
    (subject,) = (s for s in SUBJECTS if s.name == "linear")
    there, tried = replace(subject.on("cuda"), function=on_fibers(subject.function)), 0
    for choice in testing.dtype_choices(subject.metadata):
        for case in few(testing.good_cases(subject, choice), 40, str(choice)):
            try:
                testing.check_case(there, case)
            except NotImplementedError:
                continue
            tried += 1
    assert tried >= 4


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize(("N", "K"), [(48, 1024), (19, 3080), (5, 8), (1, 136)])
def test_results_and_bits_of_each_row(rows, N, K, dtype):
    """Near float64, and of each row those that it gets alone."""
    random = np.random.default_rng(0)
    x = random.standard_normal((rows, K)).astype(dtype)
    weight = (random.standard_normal((N, K)) / K**0.5).astype(dtype)
    bias = random.standard_normal(N).astype(dtype)
    exact = x.astype(np.float64) @ weight.astype(np.float64).T
    unit = 2.0**-11 if dtype is np.float16 else 2.0**-8
    found = on_fibers(anyop.linear)(x, weight, bias)
    near = exact + bias.astype(np.float64)
    assert np.all(np.abs(found.astype(np.float64) - near) <= 1e-5 + unit * np.abs(near))
    for r in range(rows):
        alone = on_fibers(anyop.linear)(x[r : r + 1], weight, bias)
        assert same_bits(alone, found[r : r + 1])
