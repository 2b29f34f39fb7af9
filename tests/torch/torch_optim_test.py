# SPDX-License-Identifier: Apache-2.0
"""anyop.torch.optim beside torch.optim: steps, state dicts both ways, GradScaler, groups, what is noticed, errors."""

from __future__ import annotations

import copy
import io
import pickle

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from anyop.torch.optim import FusedAdagrad, FusedAdam, FusedAdamW, FusedNovoGrad, FusedSGD  # noqa: E402
from optimizer_pairs import (  # noqa: E402
    CLOSE,
    NAMES,
    PAIRS,
    STATES,
    close,
    give,
    made_of,
    make,
    step_all,
)

BETAS = {"betas": (0.5, 0.9), "eps": 1e-3, "maximize": True}
OPTIONS = [
    *((name, options) for name in PAIRS for options in ({}, {"weight_decay": 0.1})),
    *((name, BETAS) for name in ("Adam", "AdamW")),
    ("SGD", {"momentum": 0.0, "weight_decay": 0.1, "maximize": True}),
    ("SGD", {"dampening": 0.5, "weight_decay": 0.1}),
    ("SGD", {"nesterov": True}),
    ("LAMB", {"max_grad_norm": 0.0, "use_nvlamb": True, "weight_decay": 0.0}),
    ("LAMB", {"adam_w_mode": False, "grad_averaging": False, "bias_correction": False}),
    ("NovoGrad", {"norm_type": 0, "init_zero": True, "weight_decay": 0.1}),
    ("NovoGrad", {"norm_type": 0, "bias_correction": False, "grad_averaging": False}),
    ("NovoGrad", {"reg_inside_moment": True, "weight_decay": 0.1, "betas": (0.5, 0.9)}),
    ("Adagrad", {"lr_decay": 0.1, "initial_accumulator_value": 0.5, "eps": 1e-3, "maximize": True}),
]


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_twenty_steps(name, options):
    ours, theirs = make(), make()
    a, b = made_of(name, ours, theirs, **options)
    step_all([a, b], [ours, theirs], range(20))
    close(ours, theirs)
    saved = a.state_dict()["state"]
    for at, (p, q) in enumerate(zip(ours, theirs)):
        assert saved.get(at, {}).keys() == b.state[q].keys() - {
            key for key, value in b.state[q].items() if value is None
        }
        assert float(a.state[p]["step"]) == 20
        for key in saved.get(at, {}).keys() - {"step"}:
            found, expected = a.state[p][key], b.state[q][key]
            assert found.shape != p.shape or found.stride() == p.stride()
            torch.testing.assert_close(found, expected, **CLOSE, check_dtype=False)


@NAMES
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_masters_are_what_is_optimized(name, dtype):
    """Steps far below a rounding of 16 bits add up in the masters."""
    ours, theirs = make(dtype), [torch.nn.Parameter(p.detach().float()) for p in make(dtype)]
    (b,) = made_of(name, theirs, lr=1e-5, kinds=PAIRS[name][1:])
    (a,) = made_of(name, ours, lr=1e-5, master_weights=True)
    for seed in range(20):
        give(ours, seed=seed)
        for p, q in zip(ours, theirs):
            q.grad = p.grad.float()
        a.step(), b.step()
    for p, q in zip(ours, theirs):
        state = a.state[p]
        assert {state[key].dtype for key in STATES[name]} == {torch.float32}
        # 20 roundings on either side
        torch.testing.assert_close(state["master_param"], q.data, rtol=40 * 2**-24, atol=1e-8)
        assert torch.equal(p, state["master_param"].to(dtype))


@NAMES
def test_bfloat16_without_masters(name):
    """Means are bfloat16 as torch's, or float32; each result is that of float64, rounded once a step."""
    for dtype in (None, torch.float32):
        ours, theirs = make(torch.bfloat16), make(torch.bfloat16)
        (b,) = made_of(name, theirs, kinds=PAIRS[name][1:])
        (a,) = made_of(name, ours, state_dtype=dtype)
        step_all([a, b], [ours, theirs], range(5))
        assert a.state[ours[0]][STATES[name][0]].dtype is (dtype or torch.bfloat16)
        close(ours, theirs, rtol=2e-2, atol=2e-2)


@NAMES
def test_dtypes_and_groups_differ(name):
    ours, theirs = make(), make()
    for p in (ours, theirs):
        p[1] = torch.nn.Parameter(p[1].detach().double())
    groups = [
        [{"params": p[:2]}, {"params": p[2:], "lr": torch.tensor(3e-2), "weight_decay": 0.2}]
        for p in (ours, theirs)
    ]
    a, b = made_of(name, *groups)
    step_all([a, b], [ours, theirs], range(20))
    close(ours, theirs)


@pytest.mark.parametrize("name", PAIRS)
def test_state_dicts_go_both_ways(name):
    """Ten steps there, ten steps here, and the other way round, through a file; each is as twenty steps of torch."""
    kinds = PAIRS[name]
    expected = make()
    (plain,) = made_of(name, expected, weight_decay=0.1, kinds=kinds[1:])
    step_all([plain], [expected], range(20))
    for first, second in (kinds, kinds[::-1], (kinds[0], kinds[0])):
        parameters = make()
        (before,) = made_of(name, parameters, weight_decay=0.1, kinds=[first])
        step_all([before], [parameters], range(10))
        file = io.BytesIO()
        torch.save(before.state_dict(), file)
        file.seek(0)
        after = second(parameters, lr=0.5)
        after.load_state_dict(torch.load(file, weights_only=True))
        for state in after.state_dict()["state"].values():
            assert state.keys() >= {*STATES[name]} and float(state.get("step", 10)) == 10
        step_all([after], [parameters], range(10, 20))
        close(parameters, expected)


@NAMES
def test_states_keep_their_precision(name):
    """torch casts states to the parameter's dtype as it loads them; masters and float32 means keep every bit."""
    ours = make(torch.bfloat16)
    (a,) = made_of(name, ours, master_weights=True)
    step_all([a], [ours], range(3))
    saved = a.state_dict()
    copies = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    (b,) = made_of(name, copies, master_weights=True)
    b.load_state_dict(copy.deepcopy(saved))
    for p, q in zip(ours, b.param_groups[0]["params"]):
        for key in (*STATES[name], "master_param"):
            assert torch.equal(a.state[p][key], b.state[q][key]), key
            assert a.state[p][key].dtype is b.state[q][key].dtype is torch.float32
    (c,) = made_of(name, ours)  # without masters
    c.load_state_dict(copy.deepcopy(saved))
    for s in c.state.values():
        assert "master_param" not in s and s[STATES[name][0]].dtype is torch.bfloat16


@NAMES
def test_steps_of_parameters_that_rest(name):
    """Parameters without a gradient take no step, and count their own: as torch's."""
    ours, theirs = make(), make()
    a, b = made_of(name, ours, theirs)
    for seed in range(12):
        give(ours, theirs, seed=seed)
        for at in range(seed % 3):
            ours[at].grad = theirs[at].grad = None
        a.step(), b.step()
    close(ours, theirs)
    assert [float(a.state[p]["step"]) for p in ours] == [4, 8, 12, 12, 12]


def first_state(optimizer) -> str:
    keys = next(iter(optimizer.state.values())).keys()
    return next(key for states in STATES.values() for key in states if key in keys)


def mean(optimizer, params):
    optimizer.state[params[1]][first_state(optimizer)] = torch.ones_like(params[1])


def state(optimizer, params):
    kept = optimizer.state[params[0]]
    optimizer.state[params[0]] = {k: v + 1 for k, v in kept.items()}


def memory(optimizer, params):
    params[3].data = params[3].data.contiguous() * 2
    kept = optimizer.state[params[3]]
    for name in kept.keys() - {"step"}:
        kept[name] = kept[name].contiguous()


def parameter(optimizer, params):
    params[2] = torch.nn.Parameter(params[2].detach() + 1)
    optimizer.param_groups[0]["params"][2] = params[2]


def group(optimizer, params):
    optimizer.add_param_group({"params": [*params[4:], torch.nn.Parameter(torch.ones(2))]})


def rate(optimizer, params):
    optimizer.param_groups[0]["lr"] = 0.5


def everything(optimizer, params):
    optimizer.state.clear()


@NAMES
@pytest.mark.parametrize(
    "change", [mean, state, memory, parameter, group, rate, everything], ids=lambda c: c.__name__
)
def test_what_is_exchanged_is_noticed(change, name):
    """What a program changed between steps is what the next step takes."""
    ours, theirs = make(), make()
    a, b = made_of(name, ours[:4], theirs[:4])
    step_all([a, b], [ours, theirs], range(3))
    change(a, ours), change(b, theirs)
    step_all([a, b], [ours, theirs], range(3, 6))
    close(ours, theirs)


@NAMES
@pytest.mark.parametrize("unscale", [False, True])
def test_grad_scaler(unscale, name):
    """An infinite gradient: no bit changes, no step is counted, the scale falls; else as torch with plain gradients."""
    ours, theirs = make(), make()
    a, b = made_of(name, ours, theirs)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(torch.ones(()))  # makes the scale
    for seed in range(6):
        give(ours, seed=seed, scale=scaler.get_scale())
        give(theirs, seed=seed)
        infinite = seed in (0, 3)
        if infinite:
            ours[1].grad[3, 4] = float("inf")
        before = [p.detach().clone() for p in ours]
        if unscale:
            scaler.unscale_(a)
        scaler.step(a)
        scaler.update()
        if infinite:
            assert all(map(torch.equal, ours, before))
        else:
            b.step()
    assert scaler.get_scale() == 256
    assert {float(a.state[p]["step"]) for p in ours} == {4}
    close(ours, theirs)
    assert not hasattr(a, "found_inf")


class ReadNowhere(torch.utils._python_dispatch.TorchDispatchMode):
    """What would wait for a device is refused."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func is not torch.ops.aten._local_scalar_dense.default, "a value is read"
        return func(*args, **kwargs or {})


@NAMES
def test_no_step_reads_what_is_on_the_device(name):
    """Neither the first one, nor one whose gradients are not finite."""
    params = make()
    optimizer, _ = made_of(name, params, make())
    optimizer.grad_scale, optimizer.found_inf = torch.full((), 8.0), torch.ones(())
    for found in (1.0, 0.0, 1.0, 0.0):
        optimizer.found_inf.fill_(found)
        give(params, seed=int(found), scale=8.0)
        with ReadNowhere():
            optimizer.step()
    assert {float(optimizer.state[p]["step"]) for p in params} == {2}


def test_closure_runs_with_gradients():
    p = torch.nn.Parameter(torch.ones(3))
    a = FusedAdam([p], lr=0.1)

    def closure():
        a.zero_grad()
        loss = (p * p).sum()
        loss.backward()
        return loss

    losses = [a.step(closure).item() for _ in range(2)]
    assert losses == pytest.approx([3, 3 * 0.81])


def test_a_step_is_an_inplace_write_to_autograd():
    p = torch.nn.Parameter(torch.ones(3))
    loss = (p * p).sum()
    p.grad = torch.ones(3)
    FusedAdam([p]).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@NAMES
def test_copies_go_on(name):
    ours, theirs = make(), make()
    (a,) = made_of(name, ours, state_dtype=torch.float32)
    (b,) = made_of(name, theirs, kinds=PAIRS[name][1:])
    step_all([a, b], [ours, theirs], range(3))
    for again in (copy.deepcopy, lambda whole: pickle.loads(pickle.dumps(whole))):
        a, ours = again((a, ours))
        assert a.state_dtype is torch.float32
        step_all([a, b], [ours, theirs], range(3, 5))
        close(ours, theirs)


def test_zero_grad_and_schedulers():
    ours, theirs = make(), make()
    a, b = FusedAdam(ours, lr=1e-1, set_grad_none=False), torch.optim.Adam(theirs, lr=1e-1)
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(x, 0.5) for x in (a, b)]
    for seed in range(4):
        step_all([a, b], [ours, theirs], [seed])
        for scheduler in schedulers:
            scheduler.step()
    close(ours, theirs)
    a.zero_grad()
    assert not any(p.grad.any() for p in ours)
    a.zero_grad(set_to_none=True)
    assert all(p.grad is None for p in ours)
    a.step()  # nothing to do


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"amsgrad": True}, RuntimeError, "AMSGrad"),
        ({"foreach": True}, RuntimeError, "foreach"),
        ({"differentiable": True}, RuntimeError, "differentiable"),
        ({"lr": -1.0}, ValueError, "learning rate"),
        ({"betas": (1.5, 0.9)}, ValueError, "beta"),
        ({"betas": (torch.tensor(0.9), torch.tensor(0.9))}, TypeError, "betas are attributes"),
        ({"state_dtype": torch.int8}, TypeError, "state_dtype"),
        ({"unknown": 1}, TypeError, "unknown"),
    ],
)
@NAMES
def test_options_that_are_refused(name, options, error, message):
    unknown = {"SGD": {"amsgrad", "betas"}, "Adagrad": {"amsgrad", "betas"}}
    unknown |= {key: {"foreach", "differentiable"} for key in ("NovoGrad", "LAMB")}
    if options.keys() & unknown.get(name, set()):
        error, message = TypeError, "unexpected keyword"
    with pytest.raises(error, match=message):
        PAIRS[name][0](make(), **options)


def test_options_of_sgd_that_are_refused():
    with pytest.raises(TypeError, match="weight_decay is an attribute, expected a float"):
        FusedSGD(make(), weight_decay=torch.tensor(0.1))
    with pytest.raises(ValueError, match="Nesterov momentum requires a momentum"):
        FusedSGD(make(), nesterov=True)


def test_weight_decay_behind_the_momentum():
    """Apex's wd_after_momentum: the momentum does not see the decay."""
    p = torch.nn.Parameter(torch.full((3,), 2.0))
    optimizer = FusedSGD([p], lr=0.5, momentum=0.5, weight_decay=0.25, wd_after_momentum=True)
    for expected in (2 - 0.5 * (1 + 0.5), 1.25 - 0.5 * (1.5 + 0.3125)):
        p.grad = torch.ones(3)
        optimizer.step()
        torch.testing.assert_close(p.data, torch.full((3,), expected))


def test_a_momentum_that_begins_later():
    """Its first step writes the buffer, without dampening: as torch's."""
    ours, theirs = make(), make()
    a, b = made_of("SGD", ours, theirs, momentum=0.0)
    for optimizer in (a, b):
        optimizer.param_groups[0]["dampening"] = 0.5
    for seed in range(6):
        for optimizer in (a, b):
            optimizer.param_groups[0]["momentum"] = 0.9 * (seed in (2, 3, 5))
        step_all([a, b], [ours, theirs], [seed])
    close(ours, theirs)


def test_adagrad_with_decoupled_decay():
    """Apex's adagrad_w_mode: sum += g^2, p -= lr * (g / (sqrt(sum) + eps) + weight_decay * p)."""
    p = torch.nn.Parameter(torch.full((3,), 2.0))
    optimizer = FusedAdagrad([p], lr=0.5, weight_decay=0.25, adagrad_w_mode=True)
    p.grad = torch.full((3,), 4.0)
    optimizer.step()
    torch.testing.assert_close(p.data, torch.full((3,), 2 - 0.5 * (1 + 0.5)))
    assert optimizer.state[p]["sum"].tolist() == [16, 16, 16]


def test_state_dicts_of_apex():
    """They have a step and the norms of a group, those of 16 bits by themselves: given so, and taken so."""
    ours = [*make(torch.bfloat16)[:2], *make()[2:]]
    a = FusedNovoGrad(ours, lr=1e-2)
    step_all([a], [ours], range(3))
    saved = copy.deepcopy(a.state_dict())
    assert saved["param_groups"][0]["step"] == 3
    assert [len(norms) for norms in saved["param_groups"][0]["exp_avg_sq"]] == [2, 3]
    for state in saved["state"].values():
        del state["step"], state["exp_avg_sq"]
    others = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    b = FusedNovoGrad(others)
    b.load_state_dict(saved)
    step_all([a, b], [ours, others], [4])
    assert all(map(torch.equal, ours, others))
    del saved["param_groups"][0]["exp_avg_sq"]
    with pytest.raises(ValueError, match="parameter 0 has no exp_avg_sq"):
        b.load_state_dict(saved)


def test_adamw_is_adamw():
    with pytest.raises(ValueError, match="adam_w_mode is False"):
        FusedAdamW(make(), adam_w_mode=False)
    ours, theirs = make(), make()
    a, b = FusedAdam(ours, adam_w_mode=True, weight_decay=0.5), FusedAdamW(theirs, weight_decay=0.5)
    step_all([a, b], [ours, theirs], range(3))
    assert all(map(torch.equal, ours, theirs))
    b.load_state_dict(torch.optim.Adam(make(), weight_decay=0.5).state_dict())
    assert b.param_groups[0]["decoupled_weight_decay"]


@NAMES
def test_gradients_that_are_refused(name):
    """Nothing is counted: the next step is as if there had been none."""
    ours, theirs = make(), make()
    a, b = made_of(name, ours, theirs)
    step_all([a, b], [ours, theirs], range(2))
    before = [p.detach().clone() for p in ours]
    give(ours, seed=2)
    ours[1].grad = ours[1].grad.to_sparse()
    with pytest.raises(RuntimeError, match=f"Fused{name} does not support sparse gradients"):
        a.step()
    assert all(map(torch.equal, ours, before))
    step_all([a, b], [ours, theirs], range(2, 4))
    close(ours, theirs)
    whole = torch.nn.Parameter(torch.ones(3, dtype=torch.complex64))
    whole.grad = torch.ones_like(whole)
    with pytest.raises(RuntimeError, match=r"parameters of torch\.complex64"):
        made_of(name, [whole])[0].step()


@NAMES
def test_a_state_dict_of_another_optimizer_or_shape(name):
    """An error that names the parameter, before anything is changed."""
    (ours,) = made_of(name, make())
    for other in PAIRS:
        theirs = make()
        (optimizer,) = made_of(other, theirs, kinds=PAIRS[other][1:])
        give(theirs, seed=0)
        optimizer.step()
        saved = optimizer.state_dict()
        if STATES[other] != STATES[name]:
            with pytest.raises(ValueError, match=r"parameter 0 has (no|shape)"):
                ours.load_state_dict(saved)
            continue
        saved["state"][1][STATES[name][-1]] = torch.zeros(3)
        message = rf"{STATES[name][-1]} of parameter 1 has shape \(3,\), expected \(64, 33\)"
        with pytest.raises(ValueError, match=message):
            ours.load_state_dict(saved)
    assert not any(
        key in state for state in ours.state.values() for key in ("exp_avg", "momentum_buffer")
    )
    assert ours.param_groups[0]["lr"] == 1e-2


def test_state_dicts_that_are_refused():
    ours = make()
    a = FusedAdam(ours)
    give(ours, seed=0)
    adam = torch.optim.Adam(ours)
    adam.step()
    saved = adam.state_dict()
    saved["state"][1]["exp_avg_sq"] = torch.zeros(3)
    with pytest.raises(ValueError, match="of parameter weight has shape"):
        FusedAdam(zip(["bias", "weight", *"abc"], make())).load_state_dict(saved)
    with pytest.raises(RuntimeError, match="AMSGrad"):
        a.load_state_dict(torch.optim.Adam(ours, amsgrad=True).state_dict())
    with pytest.raises(ValueError, match="parameter groups"):
        a.load_state_dict(torch.optim.Adam([{"params": p} for p in ours]).state_dict())
    assert not a.state
    a.load_state_dict(torch.optim.Adam(ours, foreach=True).state_dict())
    with pytest.raises(RuntimeError, match="AMSGrad"):
        a.add_param_group({"params": make(), "amsgrad": True})
    assert len(a.param_groups) == 1
