# SPDX-License-Identifier: Apache-2.0
"""anyop.torch.apex's convolutions and bottlenecks against torch's operators in float64, and the raw extensions."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from anyop.torch.apex.contrib.bottleneck import Bottleneck, SpatialBottleneck  # noqa: E402
from anyop.torch.apex.contrib.conv_bias_relu import (  # noqa: E402
    ConvBias,
    ConvBiasMaskReLU,
    ConvBiasReLU,
    ConvFrozenScaleBiasReLU,
)
from anyop.torch.apex.extensions import fast_bottleneck, fused_conv_bias_relu  # noqa: E402
from torch.nn import functional as F  # noqa: E402

LAST = torch.channels_last
# 1e-3 is that of Apex's own tests, in float16; bfloat16 has 8 times its steps.
TOLERANCE = {
    torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3,
}  # fmt: skip
SIZES = [(3, 1, 1), (1, 0, 2), (4, 2, 3)]  # window, padding, stride


def draw(size, padding, stride):
    """x, weight, bias, mask, scale in float64, of Apex's tests' kinds: numbers that 16 bits hold."""
    torch.manual_seed(size)
    x = torch.randint(-16, 16, (2, 8, 11, 9)).double().contiguous(memory_format=LAST)
    weight = torch.randn(16, 8, size, size).div(size * 3).bfloat16().double()
    weight = weight.contiguous(memory_format=LAST)
    bias, scale = (torch.randn(1, 16, 1, 1).bfloat16().double() for _ in range(2))
    mask = (torch.randn_like(F.conv2d(x, weight, None, stride, padding)) > 0).to(torch.int8)
    return x, weight, bias, mask.contiguous(memory_format=LAST), scale


def close(found, expected, dtype):
    """In steps of the largest: Apex's tests divide by the number of results, so that all are near 0."""
    largest = expected.detach().abs().max()
    torch.testing.assert_close(
        found.double(), expected, rtol=TOLERANCE[dtype], atol=float(TOLERANCE[dtype] * largest)
    )


NAMES = {
    "bias": lambda x, w, b, m, s, p, t: ConvBias(x, w, b, p, t),
    "relu": lambda x, w, b, m, s, p, t: ConvBiasReLU(x, w, b, p, t),
    "mask": lambda x, w, b, m, s, p, t: ConvBiasMaskReLU(x, w, b, m, p, t),
    "scale": lambda x, w, b, m, s, p, t: ConvFrozenScaleBiasReLU(x, w, s, b, p, t),
}
FORMULAS = {
    "bias": lambda x, w, b, m, s, p, t: F.conv2d(x, w, b.flatten(), t, p),
    "relu": lambda x, w, b, m, s, p, t: F.relu(F.conv2d(x, w, b.flatten(), t, p)),
    "mask": lambda x, w, b, m, s, p, t: F.relu(F.conv2d(x, w, b.flatten(), t, p) * m),
    "scale": lambda x, w, b, m, s, p, t: F.relu(F.conv2d(x, w, None, t, p) * s + b),
}


def gradients(name, function, tensors, padding, stride, wanted):
    """The result, and the gradients of Apex's tests' loss."""
    leaves = [t.detach().clone().requires_grad_(t.is_floating_point()) for t in tensors]
    found = function[name](*leaves, padding, stride)
    loss = found.double().square().mean()
    return found, torch.autograd.grad(loss, [leaves[i] for i in wanted], allow_unused=True)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_names(name, dtype):
    for size, padding, stride in SIZES:
        exact = draw(size, padding, stride)
        wanted = (0, 1) if name == "scale" else (0, 1, 2)
        narrow = [t.to(dtype) if t.is_floating_point() else t for t in exact]
        ours = gradients(name, NAMES, narrow, padding, stride, wanted)
        theirs = gradients(name, FORMULAS, exact, padding, stride, wanted)
        assert ours[0].dtype is dtype and ours[0].is_contiguous(memory_format=LAST)
        close(ours[0], theirs[0], dtype)
        for found, expected, of in zip(ours[1], theirs[1], wanted):
            assert found.shape == narrow[of].shape
            close(found, expected, dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_under_autocast(name, dtype):
    """float32 parameters, as Apex's tests have them; gradients are float32."""
    size, padding, stride = SIZES[0]
    exact = draw(size, padding, stride)
    wide = [t.float() if t.is_floating_point() else t for t in exact]
    with torch.autocast("cpu", dtype):
        found, grads = gradients(name, NAMES, wide, padding, stride, (0, 1))
    assert found.dtype is dtype
    expected, exact_grads = gradients(name, FORMULAS, exact, padding, stride, (0, 1))
    close(found, expected, dtype)
    for ours, theirs in zip(grads, exact_grads):
        assert ours.dtype is torch.float32
        close(ours, theirs, dtype)


def test_scale_and_bias_are_frozen():
    tensors = draw(3, 1, 1)
    _, grads = gradients("scale", NAMES, tensors, 1, 1, (0, 2, 4))
    assert grads[0] is not None and grads[1] is None and grads[2] is None


def test_any_memory_format():
    x, weight, bias, *_ = draw(3, 1, 1)
    found = ConvBiasReLU(x.contiguous(), weight.contiguous(), bias, 1, 1)
    torch.testing.assert_close(found, ConvBiasReLU(x, weight, bias, 1, 1), rtol=0, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_fused_conv_bias_relu(name):
    size, padding, stride = SIZES[0]
    x, weight, bias, mask, scale = tensors = draw(size, padding, stride)
    expected, grads = gradients(name, FORMULAS, tensors, padding, stride, (0, 1, 2))
    behind = 2 * expected.detach() / expected.numel()
    call, inputs, more = {
        "bias": (fused_conv_bias_relu.forward_no_relu, [x, weight, bias], []),
        "relu": (fused_conv_bias_relu.forward, [x, weight, bias], [expected]),
        "mask": (fused_conv_bias_relu.forward_mask, [x, weight, bias, mask], [expected]),
        "scale": (
            fused_conv_bias_relu.forward_cscale_cbias_relu,
            [x, weight, scale, bias],
            [scale, expected],
        ),
    }[name]
    found = call(inputs, padding, stride)
    close(found if name == "scale" else found[0], expected, torch.float64)
    back = {
        "bias": fused_conv_bias_relu.backward_no_relu,
        "scale": fused_conv_bias_relu.backward_cscale_cbias_relu,
    }.get(name, fused_conv_bias_relu.backward)
    found = back([x, weight, *more, behind], padding, stride)
    assert len(found) == (2 if name == "scale" else 3)
    for ours, theirs in zip(found, grads):
        assert ours.shape == theirs.shape
        close(ours, theirs, torch.float64)


def bottleneck(stride, channels, **more):
    """With statistics that are not 0 and 1."""
    torch.manual_seed(stride)
    made = Bottleneck(8, 4, channels, stride, **more)
    for norm in (made.bn1, made.bn2, made.bn3):
        for buffer in norm.buffers():
            buffer.uniform_(0.5, 1.5)
    return made


# Of the norms; of bfloat16 that of Apex's bottleneck_module_test.py. What relu lets pass near 0 differs by roundings.
OF_BLOCK = {torch.float64: 1e-11, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 0.1}


@pytest.mark.parametrize("dtype", OF_BLOCK, ids=str)
@pytest.mark.parametrize("stride, channels", [(1, 8), (1, 16), (2, 8)])
def test_bottleneck(stride, channels, dtype):
    """Apex's test: native, channels_last and NHWC; the native one in float64 stands for the exact numbers."""
    exact = bottleneck(stride, channels).bfloat16().double()
    x = torch.randn(3, 8, 9, 10).bfloat16().double().contiguous(memory_format=LAST)

    def run(module, images, nhwc):
        images = images.to(dtype if module is not exact else torch.float64).requires_grad_()
        out = module(images)
        found = [out, *torch.autograd.grad(out.double().square().mean(), [images, *module.w_conv])]
        return [t.permute(0, 3, 1, 2) for t in found] if nhwc else found

    fused = copy.deepcopy(exact).to(dtype).to(memory_format=LAST)
    fused.use_cudnn = True
    last = bottleneck(stride, channels, use_cudnn=True, explicit_nhwc=True).bfloat16().to(dtype)
    expected = run(exact, x, False)
    tolerance = OF_BLOCK[dtype]
    for module, images, nhwc in ((fused, x, False), (last, x.permute(0, 2, 3, 1), True)):
        found = run(module, images.clone(memory_format=torch.preserve_format), nhwc)
        assert found[0].is_contiguous(memory_format=LAST)
        for ours, theirs in zip(found, expected, strict=True):
            assert ours.shape == theirs.shape
            assert (ours.double() - theirs).norm() <= tolerance * theirs.norm()
    assert list(fused.state_dict()) == list(last.state_dict())


@pytest.mark.parametrize("nhwc", [False, True])
@pytest.mark.parametrize("stride, channels", [(1, 8), (2, 16)])
def test_fast_bottleneck(stride, channels, nhwc):
    module = bottleneck(stride, channels, use_cudnn=True, explicit_nhwc=nhwc).double()
    x = torch.randn(2, 8, 7, 6, dtype=torch.float64).contiguous(memory_format=LAST)
    x = (x.permute(0, 2, 3, 1) if nhwc else x).requires_grad_()
    rows = [norm.get_scale_bias(nhwc) for _, norm in module._pairs()]
    conv, scale, bias = list(module.w_conv), [r[0] for r in rows], [r[1] for r in rows]
    args = [x, *conv[:3], *scale[:3], *bias[:3]]
    more = [conv[3], scale[3], bias[3]] if len(conv) > 3 else []
    outputs = fast_bottleneck.forward(nhwc, stride, [*args, *more])
    expected = module(x)
    torch.testing.assert_close(outputs[2], expected)
    grad = torch.randn_like(expected)
    passed = (expected > 0) * grad
    last = passed * scale[3] if more else passed
    back = [*args, passed * scale[2], last, outputs[0], outputs[1], *more[:1]]
    found = fast_bottleneck.backward(nhwc, stride, back)
    for ours, theirs in zip(found, torch.autograd.grad(expected, [x, *conv], grad), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_what_is_refused():
    with pytest.raises(NotImplementedError, match="peer memory"):
        SpatialBottleneck(8, 4, 8)
    with pytest.raises(NotImplementedError, match=r"forward_init .*peer memory"):
        fast_bottleneck.forward_init  # noqa: B018
    assert not hasattr(fast_bottleneck, "no_such_function")
    for wrong in ({"groups": 2}, {"dilation": 2}, {"norm_func": torch.nn.BatchNorm2d}):
        with pytest.raises(RuntimeError, match=r"Only support"):
            Bottleneck(8, 4, 8, **wrong)
    with pytest.raises(RuntimeError, match="explicit nhwc with native ops"):
        Bottleneck(8, 4, 8, explicit_nhwc=True)(torch.ones(1, 5, 5, 8))
    with pytest.raises(ValueError, match="conv_bias_act: weight has shape"):
        ConvBiasReLU(torch.ones(1, 3, 5, 5), torch.ones(4, 2, 1, 1), torch.ones(4), 0, 1)
