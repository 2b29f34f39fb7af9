# SPDX-License-Identifier: Apache-2.0
"""anyop.torch.optim beside torch.optim: steps, state dicts both ways, GradScaler, groups, what is noticed, errors."""

from __future__ import annotations

import copy
import io
import pickle

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from anyop.torch.optim import FusedAdam, FusedAdamW  # noqa: E402

PAIRS = {"Adam": (FusedAdam, torch.optim.Adam), "AdamW": (FusedAdamW, torch.optim.AdamW)}
SHAPES = [(5,), (64, 33), (), (2, 3, 8, 8), (0, 4)]
CLOSE = {
    "rtol": 2e-5,
    "atol": 2e-6,
}  # a quotient, a root and five sums of float32; 20 steps of 1e-2


def make(dtype=torch.float32, seed=0) -> list:
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(shape, generator=generator) for shape in SHAPES]
    made[3] = made[3].to(memory_format=torch.channels_last)
    return [torch.nn.Parameter(p.to(dtype)) for p in made]


def give(*lists, seed, dtype=None, scale=1.0) -> None:
    """The same gradients to all lists, each in a new tensor."""
    generator = torch.Generator().manual_seed(seed)
    for row in zip(*lists):
        drawn = torch.randn(row[0].shape, generator=generator)
        for p in row:
            p.grad = (drawn * scale).to(dtype or p.dtype)  # contiguous, also of channels_last


def step_all(optimizers, lists, seeds, **options) -> None:
    for seed in seeds:
        give(*lists, seed=seed, **options)
        for optimizer in optimizers:
            optimizer.step()


def close(ours, theirs, **bounds) -> None:
    for p, q in zip(ours, theirs):
        torch.testing.assert_close(p.data, q.data, **(bounds or CLOSE))


@pytest.mark.parametrize(
    "options", [{}, {"weight_decay": 0.1}, {"maximize": True, "betas": (0.5, 0.9), "eps": 1e-3}]
)
@pytest.mark.parametrize("name", PAIRS)
def test_twenty_steps(name, options):
    ours, theirs = make(), make()
    a, b = (kind(p, lr=1e-2, **options) for kind, p in zip(PAIRS[name], (ours, theirs)))
    step_all([a, b], [ours, theirs], range(20))
    close(ours, theirs)
    for p, q in zip(ours, theirs):
        assert float(a.state[p]["step"]) == 20 and a.state[p]["exp_avg"].stride() == p.stride()
        torch.testing.assert_close(a.state[p]["exp_avg_sq"], b.state[q]["exp_avg_sq"], **CLOSE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_masters_are_what_is_optimized(dtype):
    """Steps far below a rounding of 16 bits add up in the masters."""
    ours, theirs = make(dtype), [torch.nn.Parameter(p.detach().float()) for p in make(dtype)]
    a = FusedAdamW(ours, lr=1e-5, master_weights=True)
    b = torch.optim.AdamW(theirs, lr=1e-5)
    for seed in range(20):
        give(ours, seed=seed)
        for p, q in zip(ours, theirs):
            q.grad = p.grad.float()
        a.step(), b.step()
    for p, q in zip(ours, theirs):
        state = a.state[p]
        assert {state[name].dtype for name in ("exp_avg", "exp_avg_sq")} == {torch.float32}
        # 20 roundings on either side
        torch.testing.assert_close(state["master_param"], q.data, rtol=40 * 2**-24, atol=1e-8)
        assert torch.equal(p, state["master_param"].to(dtype))


def test_bfloat16_without_masters():
    """Means are bfloat16 as torch's, or float32; each result is that of float64, rounded once a step."""
    for dtype in (None, torch.float32):
        ours, theirs = make(torch.bfloat16), make(torch.bfloat16)
        a, b = FusedAdam(ours, lr=1e-2, state_dtype=dtype), torch.optim.Adam(theirs, lr=1e-2)
        step_all([a, b], [ours, theirs], range(5))
        assert a.state[ours[0]]["exp_avg"].dtype is (dtype or torch.bfloat16)
        close(ours, theirs, rtol=2e-2, atol=2e-2)


def test_dtypes_and_groups_differ():
    ours, theirs = make(), make()
    for p in (ours, theirs):
        p[1] = torch.nn.Parameter(p[1].detach().double())
    groups = [
        [{"params": p[:2]}, {"params": p[2:], "lr": torch.tensor(3e-2), "weight_decay": 0.2}]
        for p in (ours, theirs)
    ]
    a, b = FusedAdam(groups[0], lr=1e-2), torch.optim.Adam(groups[1], lr=1e-2)
    step_all([a, b], [ours, theirs], range(20))
    close(ours, theirs)


@pytest.mark.parametrize("name", PAIRS)
def test_state_dicts_go_both_ways(name):
    """Ten steps there, ten steps here, and the other way round, through a file; each is as twenty steps of torch."""
    kinds = PAIRS[name]
    expected = make()
    plain = kinds[1](expected, lr=1e-2, weight_decay=0.1)
    step_all([plain], [expected], range(20))
    for first, second in (kinds, kinds[::-1], (kinds[0], kinds[0])):
        parameters = make()
        before = first(parameters, lr=1e-2, weight_decay=0.1)
        step_all([before], [parameters], range(10))
        file = io.BytesIO()
        torch.save(before.state_dict(), file)
        file.seek(0)
        after = second(parameters, lr=0.5)
        after.load_state_dict(torch.load(file, weights_only=True))
        assert [float(s["step"]) for s in after.state_dict()["state"].values()] == [10] * 5
        step_all([after], [parameters], range(10, 20))
        close(parameters, expected)


def test_states_keep_their_precision():
    """torch casts states to the parameter's dtype as it loads them; masters and float32 means keep every bit."""
    ours = make(torch.bfloat16)
    a = FusedAdam(ours, master_weights=True)
    step_all([a], [ours], range(3))
    saved = a.state_dict()
    b = FusedAdam([torch.nn.Parameter(p.detach().clone()) for p in ours], master_weights=True)
    b.load_state_dict(copy.deepcopy(saved))
    for p, q in zip(ours, b.param_groups[0]["params"]):
        for name in ("exp_avg", "exp_avg_sq", "master_param"):
            assert torch.equal(a.state[p][name], b.state[q][name]), name
            assert a.state[p][name].dtype is b.state[q][name].dtype is torch.float32
    c = FusedAdam(ours)  # without masters
    c.load_state_dict(copy.deepcopy(saved))
    assert all(
        "master_param" not in s and s["exp_avg"].dtype is torch.bfloat16 for s in c.state.values()
    )


def test_steps_of_parameters_that_rest():
    """Parameters without a gradient take no step, and count their own: as torch's."""
    ours, theirs = make(), make()
    a, b = FusedAdam(ours, lr=1e-2), torch.optim.Adam(theirs, lr=1e-2)
    for seed in range(12):
        give(ours, theirs, seed=seed)
        for at in range(seed % 3):
            ours[at].grad = theirs[at].grad = None
        a.step(), b.step()
    close(ours, theirs)
    counted = [float(a.state[p]["step"]) for p in ours]
    assert counted == [float(b.state[p]["step"]) for p in theirs] == [4, 8, 12, 12, 12]


def mean(optimizer, params):
    optimizer.state[params[1]]["exp_avg"] = torch.ones_like(params[1])


def state(optimizer, params):
    kept = optimizer.state[params[0]]
    optimizer.state[params[0]] = {k: v + 1 for k, v in kept.items()}


def memory(optimizer, params):
    params[3].data = params[3].data.contiguous() * 2
    for name in ("exp_avg", "exp_avg_sq"):
        kept = optimizer.state[params[3]]
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


@pytest.mark.parametrize(
    "change", [mean, state, memory, parameter, group, rate, everything], ids=lambda c: c.__name__
)
def test_what_is_exchanged_is_noticed(change):
    """What a program changed between steps is what the next step takes."""
    ours, theirs = make(), make()
    a, b = FusedAdam(ours[:4], lr=1e-2), torch.optim.Adam(theirs[:4], lr=1e-2)
    step_all([a, b], [ours, theirs], range(3))
    change(a, ours), change(b, theirs)
    step_all([a, b], [ours, theirs], range(3, 6))
    close(ours, theirs)


@pytest.mark.parametrize("unscale", [False, True])
def test_grad_scaler(unscale):
    """An infinite gradient: no bit changes, no step is counted, the scale falls; else as torch with plain gradients."""
    ours, theirs = make(), make()
    a, b = FusedAdamW(ours, lr=1e-2), torch.optim.AdamW(theirs, lr=1e-2)
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


def test_copies_go_on():
    ours, theirs = make(), make()
    a, b = FusedAdam(ours, lr=1e-2, state_dtype=torch.float32), torch.optim.Adam(theirs, lr=1e-2)
    step_all([a, b], [ours, theirs], range(3))
    for again in (copy.deepcopy, lambda whole: pickle.loads(pickle.dumps(whole))):
        a, ours = again((a, ours))
        assert a.state_dtype is torch.float32
        step_all([a, b], [ours, theirs], range(3, 5))
        close(ours, theirs)


def test_torch_compile_makes_one_graph_for_every_rate():
    """Beside that of the first step, which makes the states."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    ours, plain = make(), make()
    rates = [torch.tensor(1e-2) for _ in range(2)]
    a, b = FusedAdamW(ours, lr=rates[0]), FusedAdamW(plain, lr=rates[1])
    compiled = torch.compile(a.step, backend=backend, fullgraph=True)
    for seed in range(10):
        give(ours, plain, seed=seed)
        for rate in rates:
            rate.fill_(1e-2 / (seed + 1))
        compiled(), b.step()
        assert all(map(torch.equal, ours, plain))
    assert len(graphs) == 2


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
@pytest.mark.parametrize("kind", [FusedAdam, FusedAdamW])
def test_options_that_are_refused(kind, options, error, message):
    with pytest.raises(error, match=message):
        kind(make(), **options)


def test_adamw_is_adamw():
    with pytest.raises(ValueError, match="adam_w_mode is False"):
        FusedAdamW(make(), adam_w_mode=False)
    ours, theirs = make(), make()
    a, b = FusedAdam(ours, adam_w_mode=True, weight_decay=0.5), FusedAdamW(theirs, weight_decay=0.5)
    step_all([a, b], [ours, theirs], range(3))
    assert all(map(torch.equal, ours, theirs))
    b.load_state_dict(torch.optim.Adam(make(), weight_decay=0.5).state_dict())
    assert b.param_groups[0]["decoupled_weight_decay"]


def test_gradients_that_are_refused():
    """Nothing is counted: the next step is as if there had been none."""
    ours, theirs = make(), make()
    a, b = FusedAdam(ours, lr=1e-2), torch.optim.Adam(theirs, lr=1e-2)
    step_all([a, b], [ours, theirs], range(2))
    before = [p.detach().clone() for p in ours]
    give(ours, seed=2)
    ours[1].grad = ours[1].grad.to_sparse()
    with pytest.raises(RuntimeError, match="FusedAdam does not support sparse gradients"):
        a.step()
    assert all(map(torch.equal, ours, before))
    step_all([a, b], [ours, theirs], range(2, 4))
    close(ours, theirs)
    whole = torch.nn.Parameter(torch.ones(3, dtype=torch.complex64))
    whole.grad = torch.ones_like(whole)
    with pytest.raises(RuntimeError, match=r"parameters of torch\.complex64"):
        FusedAdam([whole]).step()


def test_state_dicts_that_are_refused():
    ours = make()
    a = FusedAdam(ours)
    give(ours, seed=0)
    sgd = torch.optim.SGD(ours, lr=0.1, momentum=0.9)
    sgd.step()
    with pytest.raises(ValueError, match="parameter 0 has no exp_avg, but momentum_buffer"):
        a.load_state_dict(sgd.state_dict())
    adam = torch.optim.Adam(ours)
    adam.step()
    saved = adam.state_dict()
    saved["state"][1]["exp_avg_sq"] = torch.zeros(3)
    with pytest.raises(
        ValueError, match=r"exp_avg_sq of parameter 1 has shape \(3,\), expected \(64, 33\)"
    ):
        a.load_state_dict(saved)
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
