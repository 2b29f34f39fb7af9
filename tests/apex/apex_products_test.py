# SPDX-License-Identifier: Apache-2.0
"""anyop.torch.apex's fused_dense, mlp and weight gradients against torch's operators, and the raw extensions."""

from __future__ import annotations

import inspect
import pkgutil
import sys

import prepared
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from anyop.torch.apex import MLP, FusedDense, FusedDenseGeluDense  # noqa: E402
from anyop.torch.apex.extensions import (  # noqa: E402
    fused_dense_cuda,
    fused_weight_gradient_mlp_cuda,
    mlp_cuda,
)
from torch.nn import functional as F  # noqa: E402


def gradients(module, found, x):
    return torch.autograd.grad(found.square().sum(), [x, *module.parameters()])


def compare(module, expected):
    """Results and gradients of the module, and of torch's operators with the same parameters."""
    x = torch.randn(3, 5, 6, dtype=torch.float64, requires_grad=True)
    ours, theirs = module(x), expected(x)
    torch.testing.assert_close(ours, theirs)
    for a, b in zip(gradients(module, ours, x), gradients(module, theirs, x), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("bias", [True, False])
def test_fused_dense(bias):
    module = FusedDense(6, 4, bias).double()
    assert (module.bias is not None) is bias
    compare(module, lambda x: F.linear(x, module.weight, module.bias))


def test_fused_dense_gelu_dense():
    module = FusedDenseGeluDense(6, 9, 4).double()

    def expected(x):
        hidden = F.gelu(F.linear(x, module.weight1, module.bias1), approximate="tanh")
        return F.linear(hidden, module.weight2, module.bias2)

    compare(module, expected)
    with pytest.raises(AssertionError):
        FusedDenseGeluDense(6, 9, 4, bias=False)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ["none", "relu", "sigmoid"])
def test_mlp_and_its_extension(bias, activation):
    module = MLP([6, 8, 5, 3], bias, activation).double()

    def expected(x):
        for i in range(3):
            x = F.linear(
                x, getattr(module, f"weight_{i}"), getattr(module, f"bias_{i}") if bias else None
            )
            x = x if activation == "none" else getattr(torch, activation)(x)
        return x

    compare(module, expected)
    x = torch.randn(7, 6, dtype=torch.float64, requires_grad=True)
    kinds = ("weight", "bias") if bias else ("weight",)
    parameters = [getattr(module, f"{kind}_{i}") for kind in kinds for i in range(3)]
    inputs = [x, *parameters]
    kept = mlp_cuda.forward(module.bias, module.activation, inputs)
    out = expected(x)
    torch.testing.assert_close(kept[0], out)
    grad = torch.randn_like(out)
    found = mlp_cuda.backward(module.bias, module.activation, grad, kept, inputs)
    for a, b in zip(found, torch.autograd.grad(out, inputs, grad), strict=True):
        torch.testing.assert_close(a, b)


def test_fused_dense_cuda():
    shapes = (7, 6), (9, 6), (9,), (4, 9), (4,)
    values = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]
    x, weight1, bias1, weight2, bias2 = values
    first = F.linear(x, weight1, bias1)
    torch.testing.assert_close(fused_dense_cuda.linear_bias_forward(x, weight1, bias1), first)
    grad = torch.randn_like(first)
    found = fused_dense_cuda.linear_bias_backward(x, weight1, grad)
    for a, b in zip(found, torch.autograd.grad(first, values[:3], grad), strict=True):
        torch.testing.assert_close(a, b)
    first = F.linear(x, weight1, bias1)
    out = F.linear(F.gelu(first, approximate="tanh"), weight2, bias2)
    hidden, result, gelu_in = fused_dense_cuda.linear_gelu_linear_forward(*values)
    torch.testing.assert_close(result, out)
    torch.testing.assert_close(gelu_in, first)
    grad = torch.randn_like(out)
    found = fused_dense_cuda.linear_gelu_linear_backward(x, gelu_in, hidden, weight1, weight2, grad)
    for a, b in zip(found, torch.autograd.grad(out, values, grad), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_weight_gradients(dtype):
    x, grad = (torch.randint(-2, 3, (3, 5, n)).to(dtype) for n in (6, 4))
    expected = torch.ones(4, 6) + grad.flatten(0, 1).float().T @ x.flatten(0, 1).float()
    wide, narrow = torch.ones(4, 6), torch.ones(4, 6, dtype=dtype)
    fused_weight_gradient_mlp_cuda.wgrad_gemm_accum_fp32(x, grad, wide)
    fused_weight_gradient_mlp_cuda.wgrad_gemm_accum_fp16(x, grad, narrow)
    torch.testing.assert_close(wide, expected, rtol=0, atol=0)
    torch.testing.assert_close(narrow.float(), expected, rtol=0, atol=0)


# As Apex 26 has them; extensions' names are those that Megatron and Apex's own modules pass by position.
ARGUMENTS = {
    "FusedDense": "in_features out_features bias",
    "FusedDenseGeluDense": "in_features intermediate_features out_features bias",
    "MLP": "mlp_sizes bias activation",
    "fused_dense.fused_dense_function": "input weight bias",
    "fused_dense.dense_no_bias_function": "input weight",
    "fused_dense.DenseNoBiasFunc.apply": "input weight",
    "fused_dense.FusedDenseFunc.apply": "input weight bias",
    "fused_dense.fused_dense_gelu_dense_function": "input weight1 bias1 weight2 bias2",
    "fused_dense.FusedDenseGeluDenseFunc.apply": "input weight1 bias1 weight2 bias2",
    "mlp.mlp_function": "bias activation args",
    "extensions.fused_dense_cuda.linear_bias_forward": "input weight bias",
    "extensions.fused_dense_cuda.linear_bias_backward": "input weight d_output",
    "extensions.fused_dense_cuda.linear_gelu_linear_forward": "input weight1 bias1 weight2 bias2",
    "extensions.fused_dense_cuda.linear_gelu_linear_backward": (
        "input gelu_in output1 weight1 weight2 d_output2"
    ),
    "extensions.mlp_cuda.forward": "use_bias activation inputs",
    "extensions.mlp_cuda.backward": "use_bias activation grad_o fprop_outputs inputs",
    "extensions.fused_weight_gradient_mlp_cuda.wgrad_gemm_accum_fp32": "input d_output d_weight",
    "extensions.fused_weight_gradient_mlp_cuda.wgrad_gemm_accum_fp16": "input d_output d_weight",
    "contrib.conv_bias_relu.ConvBias": "x weight bias padding stride",
    "contrib.conv_bias_relu.ConvBiasReLU": "x weight bias padding stride",
    "contrib.conv_bias_relu.ConvBiasMaskReLU": "x weight bias mask padding stride",
    "contrib.conv_bias_relu.ConvFrozenScaleBiasReLU": "x weight scale bias padding stride",
    "contrib.bottleneck.Bottleneck": (
        "in_channels bottleneck_channels out_channels stride groups dilation norm_func use_cudnn explicit_nhwc"
    ),
    "extensions.fused_conv_bias_relu.forward": "inputs padding stride",
    "extensions.fused_conv_bias_relu.backward": "inputs padding stride",
    "extensions.fast_bottleneck.forward": "explicit_nhwc stride_1X1 inputs",
    "extensions.fast_bottleneck.backward": "explicit_nhwc stride_1X1 inputs",
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_are_those_of_apex(name):
    found = pkgutil.resolve_name(f"anyop.torch.apex.{name}")
    assert " ".join(inspect.signature(found).parameters) == ARGUMENTS[name]


def test_megatrons_gradient_accumulation():
    """As Megatron's linear calls it: the module by its name, main_grad a view of one flat buffer."""
    program = """
import torch, anyop.torch
anyop.torch.apex.install()
import fused_weight_gradient_mlp_cuda
buffer = torch.ones(3 + 4 * 6)
weight = torch.nn.Parameter(torch.randint(-2, 3, (4, 6)).bfloat16())
weight.main_grad = buffer[3:].view(4, 6)
total_input, grad_output = (torch.randint(-2, 3, (10, n)).bfloat16() for n in (6, 4))
if weight.main_grad.dtype == torch.float32:
    fused_weight_gradient_mlp_cuda.wgrad_gemm_accum_fp32(total_input, grad_output, weight.main_grad)
expected = 1 + grad_output.float().T @ total_input.float()
assert torch.equal(buffer[3:].view(4, 6), expected) and (buffer[:3] == 1).all()
print("same")
"""
    done = prepared.run("torch", [sys.executable, "-c", program], timeout=300, check=False)
    assert done.stdout.strip() == "same", done.stderr[-2000:]
