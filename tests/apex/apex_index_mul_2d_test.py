# SPDX-License-Identifier: Apache-2.0
"""anyop.torch.apex's index_mul_2d and its extension beside torch's indexing."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from anyop.torch.apex.contrib.index_mul_2d import index_mul_2d  # noqa: E402
from anyop.torch.apex.contrib.index_mul_2d.index_mul_2d import index_mul_2d_backward  # noqa: E402
from anyop.torch.apex.extensions import fused_index_mul_2d as raw  # noqa: E402

# Of numbers up to 4 and sums of up to 8 of their products, each rounded once.
LIMIT = {torch.float32: 1e-5, torch.float16: 4e-2, torch.bfloat16: 3e-1, torch.float64: 1e-12}


def of_both_orders(function, in1, in2, given, of_in1, of_in2):
    """The result, the gradients, and the gradients of these."""
    out = function(in1, in2)
    first = torch.autograd.grad(out, (in1, in2), given, create_graph=True)
    second = torch.autograd.grad(first, (given, in1, in2), (of_in1, of_in2))
    return [out, *first, *second]


@pytest.mark.parametrize("dtype", LIMIT)
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_both_gradients_are_torchs(dtype, index_dtype):
    torch.manual_seed(0)
    sizes = (5, 11, 11, 5, 11)  # in1, in2, the gradient, those of the gradients
    tensors = [torch.randn(n, 6).clamp(-2, 2).to(dtype).requires_grad_() for n in sizes]
    in1, in2, given, of_in1, of_in2 = tensors
    index = torch.randint(5, (11,), dtype=index_dtype)
    wide = [t.detach().double().requires_grad_() for t in tensors]
    expected = of_both_orders(lambda a, b: a[index.long()] * b, *wide)
    apart = [torch.stack((t, t), -1)[..., 0] for t in (in1, in2)]
    assert not apart[0].is_contiguous()
    found = of_both_orders(lambda a, b: index_mul_2d(a, b, index), *tensors)
    assert torch.equal(index_mul_2d(*apart, index), found[0])
    steps = [torch.full_like(t, 7) for t in found]
    with torch.no_grad():
        raw.half_forward(steps[0], in1, in2, index)
        raw.float_backward(*steps[1:3], given, in1, in2, index)
        raw.half_backward_backward(*steps[3:], given, of_in1, of_in2, in1, in2, index)
    for result, step, exact in zip(found, steps, expected, strict=True):
        assert torch.equal(result, step) and result.dtype == dtype
        torch.testing.assert_close(result.double(), exact, rtol=0, atol=LIMIT[dtype])
    for result, step in zip(index_mul_2d_backward(in1, in2, index, given), found[1:3], strict=True):
        assert torch.equal(result, step)


def test_what_apex_refuses():
    in1, in2, index = torch.ones(3, 4), torch.ones(5, 4), torch.zeros(5, dtype=torch.int64)
    with pytest.raises(AssertionError):
        index_mul_2d(in1, in2, index[:4])
    for bad in ((in1, in2.half(), index), (in1[0], in2, index), (in1, in2, index[:, None])):
        with pytest.raises(RuntimeError, match="expected"):
            index_mul_2d(*bad)
