# SPDX-License-Identifier: Apache-2.0
"""anyop.torch.apex's norms by Apex's formulas, to the tolerances that its own tests have."""

from __future__ import annotations

import io
import itertools

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from anyop.torch import apex  # noqa: E402
from anyop.torch.apex.contrib.group_norm import GroupNorm  # noqa: E402
from anyop.torch.apex.contrib.group_norm.group_norm import (  # noqa: E402
    group_norm_nhwc_bprop,
    group_norm_nhwc_fprop,
)
from anyop.torch.apex.contrib.layer_norm import FastLayerNorm  # noqa: E402
from anyop.torch.apex.contrib.layer_norm.layer_norm import FastLayerNormFN  # noqa: E402
from anyop.torch.apex.extensions import (  # noqa: E402
    fast_layer_norm,
    fused_layer_norm_cuda,
    group_norm_cuda,
    group_norm_v2_cuda,
)
from anyop.torch.apex.normalization import fused_layer_norm as functions  # noqa: E402

SHAPE = (32, 16)
CLASSES = (
    apex.FusedLayerNorm, apex.MixedFusedLayerNorm, apex.FusedRMSNorm, apex.MixedFusedRMSNorm,
)  # fmt: skip
# Apex's thresholds, forward and backward; None: torch's own.
FORWARD = {
    torch.float32: {}, torch.float16: {"rtol": 1e-3, "atol": 1e-3},
    torch.bfloat16: {"rtol": 1.6e-2, "atol": 3e-4},
}  # fmt: skip
BACKWARD = {
    torch.float32: {"rtol": 2e-3, "atol": 2e-4}, torch.float16: {"rtol": 1.6e-2, "atol": 3e-3},
    torch.bfloat16: {"rtol": 1.6e-2, "atol": 3e-2},
}  # fmt: skip


def formula(module, x):
    """In float64."""
    rms = isinstance(module, apex.FusedRMSNorm)
    dims, x = (-2, -1), x.double()
    x = x if rms else x - x.mean(dims, keepdim=True)
    found = x / (x.square().mean(dims, keepdim=True) + module.eps).sqrt()
    for parameter, join in (("weight", torch.mul), ("bias", torch.add)):
        value = getattr(module, parameter, None)
        found = found if value is None else join(found, value.double())
    return found


def inputs(dtype, contiguous):
    if contiguous:
        return torch.randn(16, *SHAPE).to(dtype).requires_grad_()
    return torch.randn(48, 160, 48).to(dtype)[::3, ::5, ::3].detach().requires_grad_()


def compare(found, expected, of, dtype):
    torch.testing.assert_close(found, expected.to(found.dtype), **FORWARD[dtype])
    g = torch.rand_like(found)
    ours = torch.autograd.grad(found, of, g)
    theirs = torch.autograd.grad(expected, of, g.double())
    for a, b in zip(ours, theirs):
        assert a.dtype is b.dtype
        torch.testing.assert_close(a, b, **BACKWARD[dtype])


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("dtype", FORWARD, ids=str)
def test_modules(kind, dtype):
    for contiguous, affine, efficient in itertools.product((True, False), repeat=3):
        mixed = kind.__name__.startswith("Mixed")
        if mixed and not affine:
            continue
        more = {} if mixed else {"elementwise_affine": affine}
        module = kind(SHAPE, memory_efficient=efficient, **more).to(dtype)
        for parameter in module.parameters():
            torch.nn.init.normal_(parameter, 1, 0.2)
        x = inputs(dtype, contiguous)
        found = module(x)
        assert found.dtype is dtype and found.shape == x.shape
        compare(found, formula(module, x), [x, *module.parameters()], dtype)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_types_of_parameters(kind, dtype):
    """A mixed norm's result has the type of its parameters, another one's that of its input."""
    mixed = kind.__name__.startswith("Mixed")
    for x_type, weight_type in [(dtype, torch.float32), (torch.float32, dtype)]:
        module, x = kind(SHAPE).to(weight_type), inputs(x_type, True)
        found = module(x)
        assert found.dtype is (weight_type if mixed else x_type)
        compare(found, formula(module, x), [x, *module.parameters()], dtype)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_autocast_takes_the_lower_type(kind, dtype):
    for efficient in (False, True):
        module, x = kind(SHAPE, memory_efficient=efficient), inputs(torch.float32, True)
        with torch.autocast("cpu", dtype=dtype):
            found = module(x)
        assert found.dtype is dtype and module(x).dtype is torch.float32
        rounded = formula(module, x.to(dtype))
        compare(found, rounded, [x, *module.parameters()], dtype)


@pytest.mark.parametrize("dtype", FORWARD, ids=str)
def test_fast_layer_norm(dtype):
    for efficient in (False, True):
        module = FastLayerNorm(96, memory_efficient=efficient).to(dtype)
        x = torch.randn(2, 5, 96).to(dtype).requires_grad_()
        normal = torch.nn.functional.layer_norm
        expected = normal(x.double(), (96,), module.weight.double(), module.bias.double(), 1e-5)
        compare(module(x), expected, [x, *module.parameters()], dtype)
        applied = FastLayerNormFN.apply(x, module.weight, module.bias, 1e-5)
        torch.testing.assert_close(applied, expected.to(dtype), **FORWARD[dtype])


@pytest.mark.parametrize("dtype", FORWARD, ids=str)
def test_the_extensions(dtype):
    x, w, b, g = (torch.randn(s).to(dtype) for s in [(7, *SHAPE), SHAPE, SHAPE, (7, *SHAPE)])
    w = (1 + w * 0.2).to(dtype)  # what is saved is divided by it again
    raw = fused_layer_norm_cuda
    for rms, affine in itertools.product((False, True), repeat=2):
        of = [
            t.detach().requires_grad_()
            for t in ([x, w] if rms else [x, w, b])[: 3 if affine else 1]
        ]
        module = (apex.FusedRMSNorm if rms else apex.FusedLayerNorm)(
            SHAPE, elementwise_affine=False
        )
        expected = formula(module, of[0])
        for parameter, join in zip(of[1:], (torch.mul, torch.add)):
            expected = join(expected, parameter.double())
        grads = torch.autograd.grad(expected, of, g.double())
        name = ("rms_" if rms else "") + "forward" + ("_affine" if affine else "")
        given = [x, SHAPE, *of[1:], 1e-5]
        out, *statistics = getattr(raw, name)(*given)
        assert not out.requires_grad and [s.shape for s in statistics] == [(7,)] * (1 if rms else 2)
        torch.testing.assert_close(out, expected.to(dtype), **FORWARD[dtype])
        rows = x.double().flatten(1)
        spread = rows.square().mean(1) if rms else rows.var(1, correction=0)
        torch.testing.assert_close(
            statistics[-1].double(), (spread + 1e-5).rsqrt(), rtol=1e-5, atol=1e-6
        )
        for saved, efficient in ((x, False), (out, True)):
            args = [g, *statistics, saved, SHAPE, *of[1:], 1e-5, efficient]
            found = getattr(raw, name.replace("forward", "backward"))(*args)
            for a, e in zip(found if affine else [found], grads):
                # A rounded result divided by its weight is off by up to 2^-8 of it, in each of 7 rows.
                rounded = efficient and dtype is torch.bfloat16
                within = {**BACKWARD[dtype], "atol": 0.1} if rounded else BACKWARD[dtype]
                torch.testing.assert_close(a, e.to(dtype), **within)


def test_fast_extension():
    x, w, b, g = (torch.randn(s) for s in [(9, 48), (48,), (48,), (9, 48)])
    of = [t.clone().requires_grad_() for t in (x, w, b)]
    expected = torch.nn.functional.layer_norm(of[0], (48,), *of[1:], 1e-5)
    grads = torch.autograd.grad(expected, of, g)
    z, mu, rsigma = fast_layer_norm.ln_fwd(x, w, b, 1e-5)
    torch.testing.assert_close(z, expected.detach())
    for found in (
        fast_layer_norm.ln_bwd(g, x, mu, rsigma, w, None, False),
        fast_layer_norm.ln_bwd(g, z, None, rsigma, w, b, True),
    ):
        for a, e in zip(found[:3], grads):
            torch.testing.assert_close(a, e, **BACKWARD[torch.float32])
        for part, e in zip(found[3:], grads[1:]):
            torch.testing.assert_close(part.sum(0), e, **BACKWARD[torch.float32])


def test_what_apex_refuses():
    for kind in CLASSES:
        with pytest.raises(RuntimeError, match=r"normalized_shape=\[32, 16\].*size \[4, 16\]"):
            kind(SHAPE)(torch.randn(4, 16))
    for kind in CLASSES[1::2]:
        with pytest.warns(UserWarning), pytest.raises(RuntimeError, match="elementwise_affine"):
            kind(SHAPE, elementwise_affine=False)
    with pytest.raises(RuntimeError, match="at least 1-dimensional"):
        functions.fused_layer_norm(torch.randn(3), ())
    with pytest.raises(RuntimeError, match="weight and bias of shape"):
        functions.fused_rms_norm_affine(torch.randn(3, 4), torch.randn(5), 4)


@pytest.mark.parametrize("kind", (*CLASSES, FastLayerNorm), ids=lambda kind: kind.__name__)
def test_compiled(kind):
    module, x = kind(48, memory_efficient=True), torch.randn(3, 48, requires_grad=True)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            found, expected = compiled(x), module(x)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x)[0] for y in (found, expected)))


def test_state_and_pickle():
    module = apex.FusedLayerNorm(SHAPE, eps=1e-3)
    assert (
        repr(module) == "FusedLayerNorm(torch.Size([32, 16]), eps=0.001, elementwise_affine=True)"
    )
    assert list(module.state_dict()) == ["weight", "bias"]
    assert not list(apex.FusedRMSNorm(3, elementwise_affine=False).parameters())
    memory = io.BytesIO()
    torch.save(module, memory)
    memory.seek(0)
    x = torch.randn(2, *SHAPE)
    again = torch.load(memory, weights_only=False)
    torch.testing.assert_close(again(x), module(x))


@pytest.mark.parametrize("act", ["", "silu"])
@pytest.mark.parametrize("dtypes", [(torch.float32, torch.float32), (torch.float16, torch.float32),
                                    (torch.bfloat16, torch.float16)])  # fmt: skip
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_group_norm(memory_format, dtypes, act):
    """Of torch's in float64; results in the memory format of the input."""
    torch.manual_seed(0)
    module = GroupNorm(16, 320, act=act, dtype=dtypes[1])
    torch.nn.init.normal_(module.weight)
    torch.nn.init.normal_(module.bias)
    x = torch.randn(2, 320, 9, 7).to(dtypes[0], memory_format=memory_format).requires_grad_()
    found = module(x)
    assert found.dtype is dtypes[0] and found.is_contiguous(memory_format=memory_format)
    leaves = x, module.weight, module.bias
    wide = [t.detach().double().requires_grad_() for t in leaves]
    expected = torch.nn.functional.group_norm(wide[0], 16, wide[1], wide[2], module.eps)
    expected = torch.nn.functional.silu(expected) if act else expected
    eps = torch.finfo(dtypes[0]).eps
    torch.testing.assert_close(found.double(), expected, rtol=2 * eps, atol=max(eps, 2e-5))
    g = torch.randn_like(found)
    ours = torch.autograd.grad(found, leaves, g)
    theirs = torch.autograd.grad(expected, wide, g.double())
    for one, other, leaf in zip(ours, theirs, leaves, strict=True):
        assert one.dtype is leaf.dtype
        eps = max(torch.finfo(dtypes[0]).eps, torch.finfo(leaf.dtype).eps)
        torch.testing.assert_close(one.double(), other, rtol=4 * eps, atol=max(4 * eps, 5e-5))


def test_raw_group_norm():
    x = torch.randn(2, 32, 5, 4).to(memory_format=torch.channels_last).requires_grad_()
    weight, bias = (torch.randn(32, requires_grad=True) for _ in range(2))
    expected = torch.nn.functional.silu(torch.nn.functional.group_norm(x, 8, weight, bias, 1e-3))
    found, sums = group_norm_cuda.forward(x, 8, weight, bias, 1e-3, 1, True)
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-5)
    g = torch.randn_like(x)
    ours = group_norm_cuda.backward(g, sums, x, 8, weight, bias, 1e-3, 2, True)
    for one, other in zip(ours, torch.autograd.grad(expected, (x, weight, bias), g)):
        torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-5)
    mean_var = torch.empty(2, 8, 2)
    again = group_norm_v2_cuda.gn(x, weight, bias, 1e-3, True, 8, mean_var_out=mean_var)
    assert torch.equal(again, found)
    groups = x.reshape(2, 8, -1)
    moments = torch.stack([groups.mean(-1), groups.var(-1, correction=0)], -1)
    torch.testing.assert_close(mean_var, moments, rtol=1e-4, atol=1e-6)
    raw = group_norm_v2_cuda.gn_bwd(g, x, weight, bias, mean_var, 1e-3, True, 8, sm_margin=4)
    v2 = {"act": "silu", "use_group_norm_v2": True}
    _, sums = group_norm_nhwc_fprop(x, 8, weight, bias, 1e-3, **v2)
    with pytest.warns(UserWarning, match="grad_output is copied"):
        turned = group_norm_nhwc_bprop(g.contiguous(), sums, x, 8, weight, bias, 1e-3, **v2)
    for one, other, third in zip(ours, raw, turned, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-5)
        torch.testing.assert_close(one, third, rtol=2e-5, atol=2e-5)
    assert torch.equal(GroupNorm(8, 32, act=None)(x), GroupNorm(8, 32)(x))
    with pytest.raises(ValueError, match=r"mean_var_out is torch\.float32 of 3"):
        group_norm_v2_cuda.gn(x, weight, bias, 1e-3, True, 8, torch.empty(3))
    with pytest.raises(AssertionError, match="NHWC"):
        group_norm_nhwc_fprop(x.contiguous(), 8, weight, bias, 1e-3)
    with pytest.raises(ValueError, match="act is 'relu'"):
        GroupNorm(4, 32, act="relu")
