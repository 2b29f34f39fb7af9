# SPDX-License-Identifier: Apache-2.0
"""grouped_linear in float64: empty segments, one row, all rows in one; bad offsets reach nothing outside."""

import anyop
import ml_dtypes  # noqa: F401  bfloat16
import numpy as np
import pytest


def segments(offsets, rows):
    """(expert, its rows), with offsets that fall, are negative or too large."""
    bounds = np.maximum.accumulate(np.clip(np.asarray(offsets, np.int64), 0, rows))
    return [(e, slice(bounds[e], bounds[e + 1])) for e in range(len(bounds) - 1)]


def reference(x, weight, offsets, bias):
    out = np.zeros((len(x), weight.shape[1]))
    with np.errstate(all="ignore"):
        for e, rows in segments(offsets, len(x)):
            out[rows] = x[rows] @ weight[e].T + (0 if bias is None else bias[e])
    return out


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(
    "offsets",
    [
        [0, 0, 70, 70, 300],
        [0, 300, 300, 300, 300],
        [3, 4, 5, 200, 290],
        [-5, 10, 4, 1000, 7],
        [400, 0, 1, 2, 3],
        [-(2**31), 2**31 - 1, 0, -1, 5],
    ],
)
def test_segments_of_any_kind(dtype, offsets):
    """Integers make the sums exact; what lies behind the tensors stays as it is."""
    random = np.random.default_rng(0)
    x, weight, bias = (
        random.integers(-1, 2, s).astype(dtype) for s in ((300, 40), (4, 24, 40), (4, 24))
    )
    offsets = np.array(offsets, np.int32)
    expected = reference(*(a.astype(float) for a in (x, weight)), offsets, bias.astype(float))
    memory = np.full((302, 24), 7).astype(dtype)
    anyop.grouped_linear(x, weight, offsets, bias, out=memory[1:-1])
    np.testing.assert_array_equal(memory[1:-1].astype(float), expected)
    np.testing.assert_array_equal(memory[[0, -1]].astype(float), 7)


def torch_has_it():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    try:
        x, ends = torch.ones(8, 8).bfloat16(), torch.tensor([8], dtype=torch.int32)
        torch._grouped_mm(x, x[None], ends)
    except (AttributeError, RuntimeError) as error:
        pytest.skip(f"torch._grouped_mm of this torch: {error}")


@pytest.mark.parametrize("offsets", [[0, 0, 70, 300], [3, 4, 5, 290], [-5, 10, 4, 1000]])
def test_torchs_own_grouped_product(offsets):
    """Its text takes bfloat16 in multiples of 16 bytes; rows of no segment, which torch leaves alone, are 0."""
    torch_has_it()
    random = np.random.default_rng(0)
    x, weight = (random.integers(-1, 2, s).astype("bfloat16") for s in ((300, 40), (3, 24, 40)))
    offsets = np.array(offsets, np.int32)
    expected = reference(*(a.astype(float) for a in (x, weight)), offsets, None)
    with anyop.use("aten_grouped_mm"):
        found = anyop.grouped_linear(x, weight, offsets)
        np.testing.assert_array_equal(found.astype(float), expected)
        for why, call in {
            "dtype": (x.astype("float32"), weight.astype("float32"), offsets),
            "K%8=0": (x[:, :9].copy(), weight[:, :, :9].copy(), offsets),
            "N%8=0": (x, weight[:, :9].copy(), offsets),
            "given(bias)=0": (x, weight, offsets, weight[:, :, 0].copy()),
        }.items():
            assert f"aten_grouped_mm  takes {why}" in str(anyop.explain("grouped_linear", *call))


def test_flaggems_computes_the_text_for_all_calls():
    from anyop._routes import implementations

    texts = {found["name"]: found["text"] for found in implementations("grouped_linear")}
    assert texts["flaggems"] == texts["aten"] != texts["aten_grouped_mm"]


def test_bad_shapes():
    x, weight = np.ones((5, 4), np.float32), np.ones((2, 3, 4), np.float32)
    with pytest.raises(ValueError, match=r"^grouped_linear: offsets has shape \(2\)"):
        anyop.grouped_linear(x, weight, np.zeros(2, np.int32))
    with pytest.raises(TypeError, match=r"^grouped_linear: offsets"):
        anyop.grouped_linear(x, weight, np.zeros(3, np.int64))
