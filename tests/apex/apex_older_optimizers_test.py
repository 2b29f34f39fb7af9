# SPDX-License-Identifier: Apache-2.0
"""anyop.torch.apex's contrib.optimizers, fused_adam_cuda, contrib.clip_grad and apex_C by Apex's formulas."""

from __future__ import annotations

import copy
import inspect

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import apex_formulas  # noqa: E402
from anyop.torch.apex.contrib import optimizers  # noqa: E402
from anyop.torch.apex.contrib.clip_grad import clip_grad_norm_  # noqa: E402
from anyop.torch.apex.contrib.optimizers import (  # noqa: E402
    FP16_Optimizer,
    FusedAdam,
    FusedLAMB,
    FusedSGD,
)
from anyop.torch.apex.extensions import apex_C, fused_adam_cuda, fused_lamb_cuda  # noqa: E402

SHAPES = [(7,), (33, 65), (), (2, 3, 4, 5)]
ARGUMENTS = {
    FusedAdam.__init__: "self params lr bias_correction betas eps eps_inside_sqrt weight_decay max_grad_norm amsgrad "
    "use_mt amp_scale_adjustment",
    FusedLAMB.__init__: "self params lr bias_correction betas eps weight_decay amsgrad adam_w_mode grad_averaging "
    "set_grad_none max_grad_norm",
    FusedLAMB.step: "self closure",
    fused_adam_cuda.reversible_adam: "p p_copy m v g lr beta1 beta2 eps grad_scale step mode bias_correction decay",
    fused_adam_cuda.maybe_adam_undo: "overflow_flag p m v g lr beta1 beta2 eps grad_scale step mode bias_correction "
    "decay",
    fused_lamb_cuda.lamb: "chunk_size noop_flag tensor_lists lr beta1 beta2 epsilon step bias_correction "
    "weight_decay grad_averaging mode global_grad_norm max_grad_norm",
    FusedSGD.__init__: "self params lr momentum dampening weight_decay nesterov wd_after_momentum "
    "materialize_master_grads",
    FusedAdam.step: "self closure grads output_params scale grad_norms",
    FusedSGD.step: "self closure grads output_params scale grad_norms",
    FP16_Optimizer.__init__: "self init_optimizer static_loss_scale dynamic_loss_scale dynamic_loss_args verbose",
    clip_grad_norm_: "parameters max_norm norm_type error_if_nonfinite",
}


def drawn(seed, dtype=torch.float32) -> list:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES]


def close(found, expected, **bounds) -> None:
    for a, b in zip(found, expected):
        torch.testing.assert_close(a.detach().double(), b.detach().double(), **bounds)


def older_adam(p, m, v, g, step, inside, corrected, lr=1e-2, eps=1e-3, decay=0.1):
    """In float64: the bias correction is in the rate."""
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    rate = lr * ((1 - 0.999**step) ** 0.5 / (1 - 0.9**step) if corrected else 1)
    root = (v + eps).sqrt() if inside else v.sqrt() + eps
    return p - rate * (m / root + decay * p), m, v


@pytest.mark.parametrize("function", ARGUMENTS, ids=lambda f: f.__qualname__)
def test_arguments_are_those_of_apex(function):
    assert " ".join(inspect.signature(function).parameters) == ARGUMENTS[function]


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("corrected", [False, True])
def test_older_adam(inside, corrected):
    """Gradients given in float16 and scaled, copies written; and the parameters' own; and the raw function."""
    given, own = ([torch.nn.Parameter(p) for p in drawn(0)] for _ in "ab")
    options = {"eps": 1e-3, "weight_decay": 0.1, "eps_inside_sqrt": inside}
    a, b = (FusedAdam(p, 1e-2, bias_correction=corrected, **options) for p in (given, own))
    raw = [drawn(0), *([torch.zeros(s) for s in SHAPES] for _ in "mv")]
    exact = [(p.double(), torch.zeros(()), torch.zeros(())) for p in drawn(0)]
    outputs = drawn(5, torch.float16)
    for step in range(1, 5):
        grads = drawn(step, torch.float16)
        exact = [older_adam(*e, g.double(), step, inside, corrected) for e, g in zip(exact, grads)]
        a.step(grads=[8 * g for g in grads], output_params=outputs, scale=8.0)
        for p, g in zip(own, grads):
            p.grad = g.float()
        b.step()
        for p, m, v, g in zip(*raw, grads):
            rates = 1e-2, 0.9, 0.999, 1e-3, 1.0, step, int(not inside), int(corrected), 0.1
            fused_adam_cuda.adam(p, torch.empty(0), m, v, g.float(), *rates)
    for found in (given, own, raw[0]):
        close(found, [e[0] for e in exact], rtol=2e-5, atol=2e-6)
    assert all(torch.equal(out, p.half()) for out, p in zip(outputs, given))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("kind", [FusedAdam, FusedSGD])
def test_fp16_optimizer(kind, dynamic, capsys):
    """Masters follow float32's own optimizer; an overflow changes nothing but a dynamic scale."""
    model = [torch.nn.Parameter(p) for p in drawn(0, torch.float16)]
    wide = [torch.nn.Parameter(p.detach().float()) for p in model]
    options = {"momentum": 0.9} if kind is FusedSGD else {"eps": 1e-20}  # eps is scaled otherwise
    plain = (torch.optim.SGD if kind is FusedSGD else torch.optim.Adam)(wide, 1e-2, **options)
    optimizer = FP16_Optimizer(kind(model, 1e-2, **options), 16.0, dynamic_loss_scale=dynamic)
    assert optimizer.cur_scale == (2**16 if dynamic else 16)
    optimizer.cur_scale = 16.0
    for step in range(5):
        optimizer.zero_grad()
        grads = drawn(step + 1, torch.float16)
        optimizer.backward(sum((p.float() * g.float()).sum() for p, g in zip(model, grads)))
        if step == 2:
            model[1].grad[0, 0] = float("inf")
            before = [p.detach().clone() for p in model]
            optimizer.step()
            assert all(map(torch.equal, before, model))
            assert optimizer.cur_scale == (8 if dynamic else 16)
            assert "overflow" in capsys.readouterr().out
            continue
        for p, g in zip(wide, grads):
            p.grad = g.float()
        optimizer.step(), plain.step()
    close(optimizer.fp32_groups[0], wide, rtol=2e-5, atol=2e-6)
    assert all(torch.equal(p, q.half()) for p, q in zip(model, optimizer.fp32_groups[0]))
    other = FP16_Optimizer(kind([torch.nn.Parameter(p.detach()) for p in model], 1.0, **options))
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert all(map(torch.equal, other.fp32_groups[0], optimizer.fp32_groups[0]))
    assert other.param_groups[0]["lr"] == 1e-2 and other.cur_scale == optimizer.cur_scale


@pytest.mark.parametrize("mode", [False, True])
def test_older_lamb(mode):
    """And the raw function, whose norm is a number."""
    ours, exact = drawn(0), drawn(0)
    raw = [drawn(0), *([torch.zeros(s) for s in SHAPES] for _ in "mv")]
    options = {"weight_decay": 0.1, "adam_w_mode": mode, "max_grad_norm": 0.5}
    a, b = FusedLAMB(ours, 1e-2, **options), apex_formulas.LAMB(exact, 1e-2, **options)
    for step in range(1, 5):
        grads = drawn(step)
        for p, q, g in zip(ours, exact, grads):
            p.grad, q.grad = g.clone(), g.clone()
        a.step(), b.step()
        numbers = 1e-2, 0.9, 0.999, 1e-6, step, 1, 0.1, 1, int(mode), float(b.norm), 0.5
        noop = torch.ones(1, dtype=torch.int32)
        fused_lamb_cuda.lamb(0, noop, [grads, *raw], *numbers)
    close(ours, exact, rtol=2e-5, atol=2e-6)
    close(raw[0], exact, rtol=2e-5, atol=2e-6)


def test_clipping_by_the_older_adam():
    p, q = torch.nn.Parameter(torch.zeros(4)), torch.nn.Parameter(torch.zeros(4))
    a, b = FusedAdam([p], 0.1, eps=0.5, max_grad_norm=1.0), FusedAdam([q], 0.1, eps=0.5)
    grad = torch.full((4,), 8.0)
    a.step(grads=[grad], scale=2.0, grad_norms=[grad.norm()])
    b.step(grads=[grad / 16])  # divided by scale and by the norm, 8
    close([p], [q], rtol=1e-5, atol=0)


@pytest.mark.parametrize("norm_type", [2.0, 3.0, float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
@pytest.mark.parametrize("max_norm", [0.5, 1e6])
def test_clip_grad_norm(max_norm, dtype, norm_type):
    ours, theirs = ([torch.nn.Parameter(p) for p in drawn(0)] for _ in "ab")
    ours[1:] = [torch.nn.Parameter(p.detach().to(dtype)) for p in ours[1:]]
    for p, q, g in zip(ours, theirs, drawn(1, torch.float16)):
        p.grad, q.grad = g.to(p.dtype), g.float()
    ours.append(torch.nn.Parameter(torch.ones(2)))  # without a gradient
    norm = clip_grad_norm_(ours, max_norm, norm_type)
    expected = torch.nn.utils.clip_grad_norm_(theirs, max_norm, norm_type)
    bound = 2e-3 if dtype is torch.float16 else 1e-5
    close([norm], [expected], rtol=bound, atol=0)
    close([p.grad for p in ours[:-1]], [p.grad for p in theirs], rtol=bound, atol=1e-7)


def test_clip_grad_norm_of_what_is_not_finite():
    p = torch.nn.Parameter(torch.ones(2))
    assert float(clip_grad_norm_(p, 1.0)) == 0
    p.grad = torch.tensor([1.0, float("inf")])
    with pytest.raises(RuntimeError, match="is non-finite, so it cannot be clipped"):
        clip_grad_norm_(p, 1.0, error_if_nonfinite=True)
    assert p.grad[0] == 1


def test_flatten():
    x = drawn(0)
    flat = apex_C.flatten(x)
    assert torch.equal(flat, torch.cat([t.reshape(-1) for t in x]))
    views = apex_C.unflatten(flat, x)
    assert all(map(torch.equal, views, x))
    flat.zero_()
    assert not any(t.any() for t in views)


def test_casts_and_checks():
    x = torch.tensor([1.0, -2.5, 3.0])
    packed = x.to(torch.float8_e5m2).view(torch.uint8)
    for overflow in (0, 1):
        out, bytes_ = torch.zeros(3, dtype=torch.float16), torch.zeros(3, dtype=torch.uint8)
        flag = torch.full((1,), overflow, dtype=torch.int32)
        fused_adam_cuda.maybe_cast_mt(0, flag, [[packed, x], [out, bytes_]])
        assert torch.equal(out, x.half() * (1 - overflow))
        assert torch.equal(bytes_, packed * (1 - overflow))
    flag = torch.ones(1, dtype=torch.int32)
    values = torch.tensor([1.0, float("inf"), 2.0, 3.0])
    for stride, clear, expected in ((1, 1, 1), (2, 0, 1), (2, 1, 0)):
        fused_adam_cuda.strided_check_finite(flag, values, stride, clear)
        assert int(flag) == expected, stride


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float16, torch.uint8])
def test_a_step_that_can_be_undone(mode, dtype):
    """As adam where gradients are finite; what is undone is off by the rounding of p, m and v, over beta1 and beta2."""
    p, m, v, g = (torch.randn(3, 50, generator=torch.Generator().manual_seed(s)) for s in range(4))
    v, g = v.abs() + 0.1, g.half()
    rates = 0.01, 0.9, 0.99, 1e-3, 2.0, 3, mode, 1, 0.1
    empty, copy_ = torch.empty(0), torch.zeros(p.shape, dtype=dtype)
    wanted = [x.clone() for x in (p, m, v)]
    fused_adam_cuda.adam(wanted[0], empty, *wanted[1:], g, *rates)
    made = [x.clone() for x in (p, m, v)]
    fused_adam_cuda.reversible_adam(made[0], copy_, *made[1:], g, *rates)
    close(made, wanted, rtol=1e-6, atol=1e-6)
    packed = made[0].half() if dtype is torch.float16 else made[0].to(torch.float8_e5m2)
    assert torch.equal(copy_, packed.view(dtype))

    g[1, 7] = torch.inf
    made = [x.clone() for x in (p, m, v)]
    fused_adam_cuda.reversible_adam(made[0], copy_, *made[1:], g, *rates)
    assert all(new[1, 7] == old[1, 7] for new, old in zip(made, (p, m, v)))
    assert not any(torch.equal(new[0], old[0]) for new, old in zip(made, (p, m, v)))
    flag = torch.zeros(1, dtype=torch.int32)
    fused_adam_cuda.strided_check_finite(flag, copy_.reshape(-1), copy_.numel(), 1)
    assert flag == 1

    kept = [x.clone() for x in made]
    fused_adam_cuda.maybe_adam_undo(torch.zeros(1, dtype=torch.int32), *made, g, *rates)
    assert all(map(torch.equal, made, kept))
    for flag_ in (flag, torch.empty(0, dtype=torch.int32)):
        again = [x.clone() for x in kept]
        fused_adam_cuda.maybe_adam_undo(flag_, *again, g, *rates)
        close(again, [p, m, v], rtol=2e-6, atol=2e-6)


def test_what_is_refused():
    p = torch.nn.Parameter(torch.ones(2))
    with pytest.raises(RuntimeError, match="does not support the AMSGrad variant"):
        FusedAdam([p], amsgrad=True)
    with pytest.raises(RuntimeError, match="does not support sparse gradients"):
        FusedAdam([p]).step(grads=[torch.ones(2).to_sparse()])
    with pytest.raises(RuntimeError, match="which provides grads"):
        FusedSGD([p], 0.1).step()
    with pytest.raises(RuntimeError, match="only works when all parameters require grad"):
        FusedSGD([p], 0.1).step(grads=[None], output_params=[p])
    with pytest.raises(SystemError, match="dynamic loss scale args"):
        FP16_Optimizer(FusedSGD([p], 0.1), dynamic_loss_scale=True, dynamic_loss_args={})
    with pytest.raises(AttributeError, match=r"no attribute 'other'"):
        optimizers.other  # noqa: B018
