# SPDX-License-Identifier: Apache-2.0
"""anyop.torch.apex's FusedAdam, multi_tensor_applier and amp_C by Apex's formulas and flags."""

from __future__ import annotations

import copy
import inspect
import warnings

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import apex_formulas  # noqa: E402
from anyop.torch.apex import installing  # noqa: E402
from anyop.torch.apex.extensions import amp_C  # noqa: E402
from anyop.torch.apex.multi_tensor_apply import (  # noqa: E402
    MultiTensorApply,
    multi_tensor_applier,
)
from anyop.torch.apex.optimizers import (  # noqa: E402
    FusedAdagrad,
    FusedAdam,
    FusedLAMB,
    FusedMixedPrecisionLamb,
    FusedNovoGrad,
    FusedSGD,
)

SHAPES = [(7,), (33, 65), (), (2, 3, 4, 5)]
ARGUMENTS = {  # of Apex, master 6424da3
    FusedAdam.__init__: "self params lr bias_correction betas eps adam_w_mode weight_decay amsgrad set_grad_none "
    "capturable master_weights",
    FusedSGD.__init__: "self params lr momentum dampening weight_decay nesterov wd_after_momentum "
    "materialize_master_grads set_grad_none",
    FusedLAMB.__init__: "self params lr bias_correction betas eps weight_decay amsgrad adam_w_mode grad_averaging "
    "set_grad_none max_grad_norm use_nvlamb",
    FusedMixedPrecisionLamb.__init__: "self params lr step bias_correction betas eps weight_decay amsgrad "
    "adam_w_mode grad_averaging max_grad_norm use_nvlamb reduced_precision_dtype",
    FusedMixedPrecisionLamb.step: "self closure grad_scaler",
    FusedNovoGrad.__init__: "self params lr bias_correction betas eps weight_decay amsgrad reg_inside_moment "
    "grad_averaging norm_type init_zero set_grad_none",
    FusedAdagrad.__init__: "self params lr eps weight_decay set_grad_none adagrad_w_mode",
    FusedAdam.step: "self closure grads output_params scale grad_norms grad_scaler",
    MultiTensorApply.__call__: "self op noop_flag_buffer tensor_lists args",
}


def drawn(seed, dtype=torch.float32) -> list:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES]


def flag(value=0):
    return torch.full((1,), value, dtype=torch.int32)


def close(found, expected, **bounds) -> None:
    for a, b in zip(found, expected):
        torch.testing.assert_close(a.detach().float(), b.detach().float(), **bounds)


@pytest.mark.parametrize("function", ARGUMENTS, ids=lambda f: f.__qualname__)
def test_arguments_are_those_of_apex(function):
    parameters = inspect.signature(function).parameters.values()
    ours = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
    assert " ".join(ours) == ARGUMENTS[function]


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("adam_w_mode", [False, True])
def test_fused_adam(adam_w_mode, capturable):
    ours, theirs = ([torch.nn.Parameter(p) for p in drawn(0)] for _ in "ab")
    a = FusedAdam(
        ours, 1e-2, adam_w_mode=adam_w_mode, weight_decay=0.1, capturable=capturable
    )  # fmt: skip
    kind = torch.optim.AdamW if adam_w_mode else torch.optim.Adam
    b = kind(theirs, 1e-2, weight_decay=0.1)
    for seed in range(20):
        for p, q, g in zip(ours, theirs, drawn(seed + 1)):
            p.grad, q.grad = g, g.clone()
        a.step(), b.step()
    close(ours, theirs, rtol=2e-5, atol=2e-6)
    assert isinstance(a.param_groups[0]["lr"], torch.Tensor) == capturable
    assert (a.adam_w_mode, a.capturable) == (adam_w_mode, capturable)
    a.zero_grad()
    assert all(p.grad is None for p in ours)


@pytest.mark.parametrize(
    ("ours", "theirs", "options"),
    [
        (FusedSGD, torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
        (FusedAdagrad, torch.optim.Adagrad, {"weight_decay": 0.1}),
    ],
)
def test_optimizers_that_torch_has(ours, theirs, options):
    p, q = ([torch.nn.Parameter(x) for x in drawn(0)] for _ in "ab")
    a, b = ours(p, 1e-2, **options), theirs(q, 1e-2, **options)
    for seed in range(10):
        for x, y, g in zip(p, q, drawn(seed + 1)):
            x.grad, y.grad = g, g.clone()
        a.step(), b.step()
    close(p, q, rtol=2e-5, atol=2e-6)
    a.zero_grad()
    assert (p[0].grad is None) == (ours is FusedAdagrad)  # Apex's defaults
    b.load_state_dict(a.state_dict())


def test_without_bias_correction():
    """The first step is lr * (1 - beta1) * g / (sqrt(1 - beta2) * |g| + eps)."""
    p = torch.nn.Parameter(torch.zeros(3))
    p.grad = torch.tensor([1.0, -2.0, 4.0])
    FusedAdam([p], lr=0.1, bias_correction=False, betas=(0.5, 0.75)).step()
    torch.testing.assert_close(p.data, -0.1 * p.grad.sign())


@pytest.mark.parametrize("master_weights", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_means_are_float32(dtype, master_weights):
    ours = [torch.nn.Parameter(p) for p in drawn(0, dtype)]
    a = FusedAdam(ours, lr=1e-3, master_weights=master_weights)
    wide = [torch.nn.Parameter(p.float()) for p in drawn(0, dtype)]
    b = torch.optim.AdamW(wide, lr=1e-3, weight_decay=0.0)
    for seed in range(4):
        for p, q, g in zip(ours, wide, drawn(seed + 1, dtype)):
            p.grad, q.grad = g, g.float()
        a.step(), b.step()
    for p, q in zip(ours, wide):
        assert a.state[p]["exp_avg"].dtype is torch.float32
        torch.testing.assert_close(a.state[p]["exp_avg"], b.state[q]["exp_avg"])
    eps = torch.finfo(dtype).eps  # one rounding, or one in each step
    close(ours, wide, rtol=(1 if master_weights else 4) * eps, atol=1e-6)


@pytest.mark.parametrize("unscale", [False, True])
def test_grad_scaler(unscale):
    ours, theirs = ([torch.nn.Parameter(p) for p in drawn(0)] for _ in "ab")
    a, b = FusedAdam(ours, capturable=True), torch.optim.AdamW(theirs, weight_decay=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    scaler.scale(torch.ones(()))
    for seed in range(4):
        for p, q, g in zip(ours, theirs, drawn(seed + 1)):
            p.grad, q.grad = g * scaler.get_scale(), g
        if seed == 1:
            ours[1].grad[0, 0] = float("nan")
        if unscale:
            scaler.unscale_(a)
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", FutureWarning
            )  # torch's, of Apex's argument grad_scaler
            scaler.step(a)
        scaler.update()
        if seed != 1:
            b.step()
    assert scaler.get_scale() == 32
    close(ours, theirs, rtol=2e-5, atol=2e-6)


def test_state_dicts_are_those_of_apex():
    """Apex keeps the step in its groups: it is given so, and taken so."""
    ours = [torch.nn.Parameter(p) for p in drawn(0, torch.bfloat16)]
    a = FusedAdam(ours, lr=1e-2)
    for seed in range(3):
        for p, g in zip(ours, drawn(seed, torch.bfloat16)):
            p.grad = g
        a.step()
    saved = copy.deepcopy(a.state_dict())
    assert saved["param_groups"][0]["step"] == 3
    for state in saved["state"].values():
        assert float(state.pop("step")) == 3  # Apex's has none
    others = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    b = FusedAdam(others)
    b.load_state_dict(saved)
    for p, q in zip(ours, others):
        q.grad = p.grad
    a.step(), b.step()
    assert all(map(torch.equal, ours, others))
    assert b.state_dict()["param_groups"][0]["step"] == 4


def test_what_fused_adam_refuses():
    with pytest.raises(RuntimeError, match="does not support the AMSGrad variant"):
        FusedAdam([torch.nn.Parameter(torch.ones(2))], amsgrad=True)
    with pytest.raises(RuntimeError, match="has been updated"):
        FusedAdam([torch.nn.Parameter(torch.ones(2))]).step(grads=[])
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        amp_C.other  # noqa: B018
    assert "amp_C" in installing.EXTENSIONS and multi_tensor_applier.available


def test_scale_and_axpby():
    x, y, out = drawn(0, torch.float16), drawn(1, torch.float16), drawn(2)
    noop = flag()
    multi_tensor_applier(amp_C.multi_tensor_scale, noop, [x, out], 0.5)
    close(out, [a.float() / 2 for a in x])
    multi_tensor_applier(amp_C.multi_tensor_scale, noop, [out, out], torch.tensor([2.0]).double())
    close(out, x)
    flat = [torch.zeros(a.numel()) for a in x]  # as many elements in another shape
    multi_tensor_applier(amp_C.multi_tensor_scale, noop, [x, flat], 3.0)
    close(flat, [a.float().reshape(-1) * 3 for a in x])
    multi_tensor_applier(amp_C.multi_tensor_axpby, noop, [x, y, out], 2.0, -1.0, -1)
    close(out, [2 * a.float() - b.float() for a, b in zip(x, y)])
    assert int(noop) == 0
    multi_tensor_applier(amp_C.multi_tensor_scale, noop, [[], []], 0.5)
    with pytest.raises(ValueError, match="expected"):
        amp_C.multi_tensor_scale(0, noop, [x[:1], x[1:2]], 1.0)
    with pytest.raises(RuntimeError, match="expected 2 lists of tensors, found 1"):
        amp_C.multi_tensor_scale(0, noop, [x], 1.0)
    with pytest.raises(RuntimeError, match="lists of one length"):
        amp_C.multi_tensor_scale(0, noop, [x, out[1:]], 1.0)


def test_norms():
    x = drawn(0)
    noop, each = flag(), torch.stack([a.double().norm() for a in x])
    norm, none = multi_tensor_applier(amp_C.multi_tensor_l2norm, noop, [x])
    assert norm.shape == (1,) and none.numel() == 0
    close([norm], [each.norm().reshape(1)])
    for found in (
        amp_C.multi_tensor_l2norm(1, noop, [x], True),
        amp_C.multi_tensor_l2norm_mp(1, noop, [x], True),
        amp_C.multi_tensor_unscale_l2norm(1, noop, [[4 * a for a in x]], torch.tensor([0.25]), True),
        amp_C.multi_tensor_l2norm_scale(1, noop, [[a / 4 for a in x], out := drawn(1)], 4.0, True),
    ):  # fmt: skip
        close(found, [each.norm().reshape(1), each])
    close(out, x)
    assert float(amp_C.multi_tensor_l2norm(1, noop, [[]])[0]) == 0 and int(noop) == 0
    skipped = amp_C.multi_tensor_l2norm_mp(1, flag(1), [x], True)
    assert not skipped[0].any() and not skipped[1].any()


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_noop_flag(value):
    """Functions that look set it and never clear it; all write what they would without it."""
    x, y = drawn(0), drawn(1)
    calls = {
        "scale": lambda noop: amp_C.multi_tensor_scale(1, noop, [x, drawn(2)], 2.0),
        "axpby": lambda noop: amp_C.multi_tensor_axpby(1, noop, [x, y, drawn(2)], 1.0, 1.0, 0),
        "y": lambda noop: amp_C.multi_tensor_axpby(1, noop, [x, y, drawn(2)], 1.0, 1.0, 1),
        "norm": lambda noop: amp_C.multi_tensor_l2norm(1, noop, [x]),
        "unscaled": lambda noop: amp_C.multi_tensor_unscale_l2norm(1, noop, [x], torch.ones(1)),
        "scaled": lambda noop: amp_C.multi_tensor_l2norm_scale(1, noop, [x, drawn(2)], 2.0),
    }

    def flags(start):
        found = {}
        for name, call in calls.items():
            noop = flag(start)
            call(noop)
            found[name] = int(noop)
        return found

    assert flags(0) == dict.fromkeys(calls, 0) and flags(1) == dict.fromkeys(calls, 1)
    x[1][2, 3] = value
    assert flags(0) == {**dict.fromkeys(calls, 1), "y": 0} and flags(1) == dict.fromkeys(calls, 1)


@pytest.mark.parametrize("mode", [0, 1])
def test_raw_adam(mode):
    """The plain one looks at no flag; the capturable ones do nothing where it is set, and unscale as they read."""
    kind = (torch.optim.Adam, torch.optim.AdamW)[mode]
    exact = [torch.nn.Parameter(p) for p in drawn(0)]
    optimizer = kind(exact, lr=1e-2, weight_decay=0.1)
    rates = 0.9, 0.999, 1e-8

    def fresh():
        return drawn(0), [torch.zeros(s) for s in SHAPES], [torch.zeros(s) for s in SHAPES]

    plain, graph = fresh(), fresh()
    master, halves = fresh(), drawn(0, torch.bfloat16)
    for step in range(1, 6):
        grads = drawn(step)
        for p, g in zip(exact, grads):
            p.grad = g
        optimizer.step()
        multi_tensor_applier(
            amp_C.multi_tensor_adam, flag(1), [grads, *plain], 1e-2, *rates, step, mode, 1, 0.1
        )
        numbers = (
            torch.tensor([1e-2]),
            *rates,
            torch.tensor([step], dtype=torch.int32),
            mode,
            1,
            0.1,
        )
        scaled = [8 * g for g in grads]
        capturable = amp_C.multi_tensor_adam_capturable, amp_C.multi_tensor_adam_capturable_master
        lists = [scaled, *graph], [scaled, halves, *master[1:], master[0]]
        for function, given in zip(capturable, lists):
            before = [[a.clone() for a in tensors] for tensors in given]
            multi_tensor_applier(function, flag(1), given, *numbers, torch.tensor([0.125]))
            assert all(all(map(torch.equal, a, b)) for a, b in zip(before, given))
            multi_tensor_applier(function, flag(), given, *numbers, torch.tensor([0.125]))
    for found in (plain[0], graph[0], master[0]):
        close(found, exact, rtol=2e-5, atol=2e-6)
    assert all(torch.equal(a, b.bfloat16()) for a, b in zip(halves, master[0]))


@pytest.mark.parametrize("mode", [0, 1])
def test_raw_lamb(mode):
    """As the optimizer, whose norm of all gradients is given."""
    exact = [torch.nn.Parameter(p) for p in drawn(0)]
    optimizer = FusedLAMB(exact, 1e-2, weight_decay=0.1, adam_w_mode=bool(mode), max_grad_norm=0.5)
    p, m, v = drawn(0), [torch.zeros(s) for s in SHAPES], [torch.zeros(s) for s in SHAPES]
    for step in range(1, 4):
        for q, g in zip(exact, drawn(step)):
            q.grad = g
        optimizer.step()
        norm = amp_C.multi_tensor_l2norm(1, flag(), [drawn(step)])[0]
        numbers = 1e-2, 0.9, 0.999, 1e-6, step, 1, 0.1, 1, mode, norm, 0.5
        multi_tensor_applier(amp_C.multi_tensor_lamb, flag(1), [drawn(step), p, m, v], *numbers)
    assert all(map(torch.equal, p, exact))


def test_raw_lamb_of_masters():
    """Both norms are of scaled gradients; copies are the masters, rounded; nothing where noop_flag is set."""
    exact = [torch.nn.Parameter(p) for p in drawn(0)]
    optimizer = FusedLAMB(exact, 1e-2, weight_decay=0.1, max_grad_norm=0.5)
    p, m, v = drawn(0), [torch.zeros(s) for s in SHAPES], [torch.zeros(s) for s in SHAPES]
    halves = drawn(9, torch.bfloat16)
    for step in range(1, 4):
        grads = drawn(step, torch.bfloat16)
        for q, g in zip(exact, grads):
            q.grad = g.float()
        optimizer.step()
        given = [[8 * g for g in grads], p, m, v, halves]
        norm = amp_C.multi_tensor_l2norm(1, flag(), given[:1])[0]
        numbers = torch.tensor(1e-2), 0.9, 0.999, 1e-6, torch.tensor([step]), 1, 0.1, 1, 1, norm
        numbers += torch.tensor([4.0]), False, torch.zeros(1), torch.tensor([0.125])
        before = [[a.clone() for a in tensors] for tensors in given]
        multi_tensor_applier(amp_C.multi_tensor_lamb_mp, flag(1), given, *numbers)
        assert all(all(map(torch.equal, a, b)) for a, b in zip(before, given))
        multi_tensor_applier(amp_C.multi_tensor_lamb_mp, flag(), given, *numbers)
    close(p, exact, rtol=2e-5, atol=2e-6)
    assert all(torch.equal(a, b.bfloat16()) for a, b in zip(halves, p))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_raw_lamb_in_stages(dtype):
    """A decay for each tensor; the step is one behind. Gradients and updates may have 16 bits."""
    decays = [0.1, 0.2, 0.3, 0.4]
    exact = drawn(0)
    groups = [{"params": [p], "weight_decay": d} for p, d in zip(exact, decays)]
    optimizer = apex_formulas.LAMB(groups, 1e-2, max_grad_norm=0.5)
    p, m, v = drawn(0), [torch.zeros(s) for s in SHAPES], [torch.zeros(s) for s in SHAPES]
    update = drawn(9, dtype)
    for step in range(3):
        grads = drawn(step + 1, dtype)
        for q, g in zip(exact, grads):
            q.grad = g.float()
        optimizer.step()
        norm = amp_C.multi_tensor_l2norm(1, flag(), [grads])[0]
        numbers = torch.tensor(decays), step, 0.9, 0.999, 1e-6, norm, 0.5
        stages = amp_C.multi_tensor_lamb_stage1_cuda, amp_C.multi_tensor_lamb_stage2_cuda
        multi_tensor_applier(stages[0], flag(1), [grads, p, m, v, update], *numbers)
        norms = [amp_C.multi_tensor_l2norm(1, flag(), [x], True)[1] for x in (p, update)]
        multi_tensor_applier(stages[1], flag(1), [p, update], *norms, 1e-2, 0.1)
    # three updates of 1e-2 times a few, whose parts and norms are rounded twice
    close(p, exact, rtol=2e-5, atol=2e-6 if dtype is torch.float32 else 2 * 3 * 2e-2 * 2**-11)
    with pytest.raises(RuntimeError, match="expected 4 decays, one for each tensor, found 3"):
        stages[0](1, flag(), [grads, p, m, v, update], torch.ones(3), *numbers[1:])


@pytest.mark.parametrize("dtype", [None, torch.float16, torch.bfloat16])
@pytest.mark.filterwarnings("ignore:GradScaler is going to stop:FutureWarning")
def test_mixed_precision_lamb(dtype):
    """Groups have a rate and a step of their own; an overflow changes nothing; state dicts go on."""
    ours = [torch.nn.Parameter(p) for p in drawn(0, dtype)]
    exact = [torch.nn.Parameter(p.detach().double()) for p in ours]
    rate = torch.tensor(1e-2)

    def groups(p):
        return [{"params": p[:2]}, {"params": p[2:], "weight_decay": 0.0}]

    a = FusedMixedPrecisionLamb(groups(ours), rate, reduced_precision_dtype=dtype)
    b = apex_formulas.LAMB(groups(exact), 1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    scaler.scale(torch.ones(()))
    rates = [group["lr"] for group in a.param_groups]
    assert len({id(x) for x in (rate, *rates)}) == 3
    rates[1].fill_(0.5e-2)
    b.param_groups[1]["lr"] = 0.5e-2
    for seed in range(4):
        for p, q, g in zip(ours, exact, drawn(seed + 1)):
            p.grad = (g * scaler.get_scale()).to(p.dtype)
            q.grad = p.grad.double() / scaler.get_scale()
        if seed == 1:
            ours[1].grad[0, 0] = float("inf")
        else:
            b.step()
        scaler.step(a)
        scaler.update()
    assert scaler.get_scale() == 32
    assert [float(group["step"]) for group in a.param_groups] == [3, 3]
    masters = [a.state[p].get("master_param", p) for p in ours]
    close(masters, exact, rtol=2e-5, atol=2e-6)
    assert all(torch.equal(p, q.to(p.dtype)) for p, q in zip(ours, masters))
    saved = copy.deepcopy(a.state_dict())
    assert [group["step"] for group in saved["param_groups"]] == [3, 3]
    others = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    c = FusedMixedPrecisionLamb(groups(others), step=7, reduced_precision_dtype=dtype)
    assert [float(group["step"]) for group in c.param_groups] == [7, 7]
    c.load_state_dict(saved)
    assert [float(group["step"]) for group in c.param_groups] == [3, 3]
    for p, q in zip(ours, others):
        p.grad = q.grad = drawn(9, p.dtype)[0].sum() * torch.ones_like(p)
    a.step(), c.step()
    assert all(map(torch.equal, ours, others))


def test_mixed_precision_lamb_begins_at_a_step():
    p, q = (torch.nn.Parameter(torch.ones(3)) for _ in "ab")
    p.grad = q.grad = torch.tensor([1.0, -2.0, 3.0])
    a, b = FusedMixedPrecisionLamb([p], step=5), apex_formulas.LAMB([q])
    b.state[q]["step"] = 5
    a.step(), b.step()
    close([p], [q], rtol=2e-6, atol=0)
    assert float(a.param_groups[0]["step"]) == 6
    with pytest.raises(RuntimeError, match="FusedLAMB does not support the AMSGrad variant"):
        FusedMixedPrecisionLamb([p], amsgrad=True)


def test_update_scale_hysteresis():
    """With a hysteresis of 2: the second of two infinities halves it; two finite steps double it."""
    scale, growth = torch.tensor([64.0]), torch.tensor([0], dtype=torch.int32)
    left, scales = torch.tensor([2], dtype=torch.int32), []
    for infinite in (1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0):
        found = amp_C.update_scale_hysteresis(
            scale, growth, left, torch.tensor([infinite]), 2.0, 0.5, 2, 2
        )
        assert found is scale
        scales.append(float(scale))
    assert scales == [64, 32, 32, 32, 32, 64, 64]
    assert (int(growth), int(left)) == (0, 1)


def test_raw_novograd():
    """As the optimizer, whose norms it writes."""
    exact = [torch.nn.Parameter(p) for p in drawn(0)]
    optimizer = FusedNovoGrad(exact, 1e-2, weight_decay=0.1, init_zero=True, reg_inside_moment=True)
    p, m, norms = drawn(0), [torch.zeros(s) for s in SHAPES], torch.zeros(len(SHAPES))
    for step in range(1, 4):
        for q, g in zip(exact, drawn(step)):
            q.grad = g
        optimizer.step()
        numbers = 1e-2, 0.9, 0.999, 1e-8, step, 1, 0.1, 1, 0, 2
        multi_tensor_applier(
            amp_C.multi_tensor_novograd, flag(1), [drawn(step), p, m], norms, *numbers
        )
    assert all(map(torch.equal, p, exact)) and norms.all()


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("nesterov", [False, True])
def test_raw_sgd(nesterov, copies):
    """Unscaled as it is read; the first run writes the momentum; nothing where noop_flag is set."""
    exact = [torch.nn.Parameter(p) for p in drawn(0)]
    optimizer = torch.optim.SGD(exact, 1e-2, 0.9, weight_decay=0.1, nesterov=nesterov)
    p, momentum = drawn(0), [torch.full(s, 7.0) for s in SHAPES]
    halves = [drawn(9, torch.bfloat16)] if copies else []
    for step in range(5):
        grads = drawn(step, torch.bfloat16 if copies else torch.float32)
        for q, g in zip(exact, grads):
            q.grad = g.float()
        optimizer.step()
        given = [[8 * g for g in grads], p, momentum, *halves]
        numbers = 0.1, 0.9, 0.0, 1e-2, nesterov, step == 0, False, 0.125
        before = [[a.clone() for a in tensors] for tensors in given]
        multi_tensor_applier(amp_C.multi_tensor_sgd, flag(1), given, *numbers)
        assert all(all(map(torch.equal, a, b)) for a, b in zip(before, given))
        multi_tensor_applier(amp_C.multi_tensor_sgd, flag(), given, *numbers)
    close(p, exact, rtol=2e-6, atol=1e-6)
    assert not copies or all(torch.equal(a, b.bfloat16()) for a, b in zip(halves[0], p))
    before = [m.clone() for m in momentum]
    amp_C.multi_tensor_sgd(
        1, flag(), [drawn(1), p, momentum], 0.0, 0.0, 0.0, 0.1, False, False, False, 1.0
    )
    assert all(map(torch.equal, before, momentum))  # without momentum it is left alone


@pytest.mark.parametrize("mode", [0, 1])
def test_raw_adagrad(mode):
    p, squares, g = drawn(0), [torch.ones(s) for s in SHAPES], drawn(1)
    expected = []
    for x, h in zip(drawn(0), g):
        x, h = x.double(), h.double()
        h = h if mode else h + 0.1 * x
        expected.append(x - 0.5 * (h / ((1 + h * h).sqrt() + 1e-3) + (0.1 * x if mode else 0)))
    multi_tensor_applier(amp_C.multi_tensor_adagrad, flag(1), [g, p, squares], 0.5, 1e-3, mode, 0.1)
    close(p, expected, rtol=1e-5, atol=1e-6)
