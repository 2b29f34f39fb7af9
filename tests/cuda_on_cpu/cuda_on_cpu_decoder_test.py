# SPDX-License-Identifier: Apache-2.0
"""decoder_layer's CUDA kernel by fibers (cuda_on_cpu_test.py), all blocks by turns: as on the CPU, at every length."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import anyop
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "ops" / "decoder"))
sys.path.insert(0, str(Path(__file__).parent))

from decoder_layer_test import layer
from drawn import few
from fibers import on_fibers, running, same_bits

pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy is ml_dtypes'")
pytestmark = pytest.mark.drawn(2, together="operators on fibers")


@pytest.fixture(scope="module", autouse=True)
def registered(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cuda_on_cpu")
    anyop.log_dispatch(2, file=folder / "log", stderr=False)
    with running(folder, ["decoder_layer"]):
        yield folder / "log"
    anyop.log_dispatch(0)


def run(call, dtype, function=anyop.decoder_layer):
    """Results and caches, float; the arguments stay."""
    given = {k: v.astype(dtype) if getattr(v, "dtype", 0) == np.float32 else v
             for k, v in call.items()}  # fmt: skip
    found = *function(**given), given["k_cache"], given["v_cache"]
    return tuple(x.astype(np.float32) for x in found)


# Lengths; heads of queries, of keys; features of a head, of rows, inside; places of a page.
SHAPES = [
    ([300, 0, 65, 7], 4, 2, 64, 200, 104, 8),
    ([3], 8, 1, 128, 1032, 48, 16),
    ([130], 3, 3, 64, 72, 600, 4),
    ([1, 2, 3, 40, 5, 6, 7, 8], 12, 4, 128, 64, 72, 1),
    ([17, 200], 6, 6, 128, 24, 8, 64),  # more heads of keys than blocks
    ([33, 1000], 16, 2, 64, 520, 1040, 24),
]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("shape", few(SHAPES, 2, "decoder_layer"), ids=str)
def test_as_on_the_cpu(shape, dtype, registered):
    """float16 and bfloat16 round what goes from phase to phase; their sums differ in order alone."""
    limit = {"float16": 4e-3, "bfloat16": 3e-2}[dtype]
    call = layer(*shape)
    if len(shape[0]) % 2:
        call |= {"delta": None, "q_norm": None, "k_norm": None, "scale": 0.2}
    else:
        call["qkv_bias"] = np.linspace(-1, 1, len(call["qkv"]), dtype=np.float32)
    there = on_fibers(anyop.decoder_layer)
    found, again = run(call, dtype, there), run(call, dtype, there)
    assert json.loads(registered.read_text().splitlines()[-1])["backend"] == "cuda_on_cpu"
    assert same_bits(found, again)
    for a, b in zip(run(call, dtype), found):
        np.testing.assert_allclose(b, a, rtol=limit, atol=limit)


def test_a_wrong_page_or_length_is_its_sequences():
    call, there = layer([20, 9, 30], 4, 2, 64, 64, 40, 8), on_fibers(anyop.decoder_layer)
    right = run(call, "bfloat16", there)
    for name, place, value in (
        ("page_table", (0, 1), 10**6), ("page_table", (0, 2), -1), ("seqlens_k", 0, 10**6), ("seqlens_k", 0, -1),
    ):  # fmt: skip
        wrong = call | {name: call[name].copy()}
        wrong[name][place] = value
        found = run(wrong, "bfloat16", there)
        for a, b in zip(found[:2], right[:2]):
            assert np.isnan(a[0]).all() and same_bits(a[1:], b[1:])
        others = np.isin(np.arange(len(right[2])), call["page_table"][0], invert=True)
        for a, b in zip(found[2:], right[2:]):
            assert same_bits(a[others], b[others])


def test_what_it_declines_is_said():
    """More than 8 heads of a group, and sizes that are no multiples of 8: the CPU's kernel runs."""
    for H, G, D in ((9, 1, 64), (2, 2, 60)):
        call = layer([5], H, G, 64, D, 40)
        found, expected = run(call, "float16", on_fibers(anyop.decoder_layer)), run(call, "float16")
        assert same_bits(found, expected)
