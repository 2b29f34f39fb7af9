# SPDX-License-Identifier: Apache-2.0
"""torch.autocast("anyop"): which operators run in which precision, forward and backward."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
F = torch.nn.functional
pytestmark = [pytest.mark.anyplatform, pytest.mark.usefixtures("platform")]

LOWER = {
    "matmul": lambda x, w: torch.matmul(x, w),
    "linear": lambda x, w: F.linear(x, w),
    "addmm": lambda x, w: torch.addmm(x, x, w),
    "bmm": lambda x, w: torch.bmm(x[None], w[None]),
    "conv1d": lambda x, w: F.conv1d(x[None], w[..., None]),
    "attention": lambda x, w: F.scaled_dot_product_attention(x[None], w[None], x[None]),
}
FLOAT32 = {
    "softmax": lambda x: torch.softmax(x, -1),
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "exp": lambda x: torch.exp(x),
    "layer_norm": lambda x: F.layer_norm(x, (8,)),
    "mse_loss": lambda x: F.mse_loss(x, x * 2),
    "norm": lambda x: torch.norm(x),
    "cumsum": lambda x: torch.cumsum(x, 0),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", LOWER)
def test_products_run_in_lower_precision(name, dtype):
    x, w = torch.randn(8, 8, device="anyop"), torch.randn(8, 8, device="anyop")
    expected = LOWER[name](x.to(dtype), w.to(dtype))
    with torch.autocast("anyop", dtype=dtype):
        found = LOWER[name](x, w)
    assert found.dtype == dtype and torch.equal(found, expected)


@pytest.mark.parametrize("name", FLOAT32)
def test_reductions_run_in_float32(name):
    x = torch.randn(8, 8, device="anyop").bfloat16()
    with torch.autocast("anyop", dtype=torch.bfloat16):
        found = FLOAT32[name](x)
    assert found.dtype == torch.float32 and torch.equal(found, FLOAT32[name](x.float()))


def test_mixed_operands_are_promoted():
    x = torch.randn(4, device="anyop")
    with torch.autocast("anyop", dtype=torch.bfloat16):
        assert torch.cat([x, x.bfloat16()]).dtype == torch.float32
        assert torch.addcmul(x.bfloat16(), x, x).dtype == torch.float32
        assert (x.bfloat16() + x.bfloat16()).dtype == torch.bfloat16  # left alone


def test_scopes_nest_and_end():
    x = torch.randn(4, 4, device="anyop")
    assert not torch.is_autocast_enabled("anyop")
    with torch.autocast("anyop"):
        assert torch.is_autocast_enabled("anyop") and not torch.is_autocast_enabled("cpu")
        lower = torch.get_autocast_dtype("anyop")
        assert (x @ x).dtype == lower != torch.float32
        with torch.autocast("anyop", enabled=False):
            assert (x @ x).dtype == torch.float32
        with torch.autocast("anyop", dtype=torch.float16):
            assert (x @ x).dtype == torch.float16
        assert (x @ x).dtype == lower
    assert (x @ x).dtype == torch.float32
    cpu = torch.randn(4, 4)
    with torch.autocast("anyop"):
        assert (cpu @ cpu).dtype == torch.float32, "a scope of one device leaves the other alone"


def test_gradients_are_the_parameters_dtype(same):
    def train(device):
        x, w = torch.randn(8, 16).to(device), torch.randn(4, 16).to(device).requires_grad_()
        with torch.autocast(device, dtype=torch.bfloat16):
            found = F.linear(x, w) + F.linear(x, w)  # the cast of w is kept for the second
        found.float().square().sum().backward()
        return found, w.grad

    assert same(train)[1].dtype == torch.float32


def test_custom_functions_follow_the_scope():
    class Square(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="anyop", cast_inputs=torch.float32)
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @torch.amp.custom_bwd(device_type="anyop")
        def backward(ctx, gradient):
            return 2 * ctx.saved_tensors[0] * gradient

    x = torch.randn(4, device="anyop", dtype=torch.bfloat16, requires_grad=True)
    with torch.autocast("anyop", dtype=torch.bfloat16):
        found = Square.apply(x)
    found.sum().backward()
    assert found.dtype == torch.float32
    assert torch.equal(x.grad, (2 * x.detach().float()).bfloat16())


def test_an_unsupported_dtype_turns_the_scope_off():
    assert torch.bfloat16 in torch.anyop.get_amp_supported_dtype()
    with pytest.warns(UserWarning, match="autocast"):
        scope = torch.autocast("anyop", dtype=torch.int32)
    assert not scope._enabled
