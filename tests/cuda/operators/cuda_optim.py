# SPDX-License-Identifier: Apache-2.0
"""anyop.torch.optim on CUDA: torch's own optimizers and Apex's formulas, GradScaler, state dicts, graphs, no waits."""

from __future__ import annotations

import copy

import pytest
from anyop.torch import apex
from anyop.torch.optim import FusedAdam, FusedAdamW
from on_cuda import DEVICE, behind_a_spin, same_bits, torch
from optimizer_pairs import NAMES, PAIRS, made_of

SHAPES = [(), (1,), (3, 5), (4096,), (4097,), (130, 70), (2, 3, 4, 5), (300_001,)]
CLOSE = {"rtol": 2e-5, "atol": 2e-6}


def make(count=40, dtype=torch.float32, device=DEVICE):
    generator = torch.Generator().manual_seed(0)
    every = [torch.randn(SHAPES[k % len(SHAPES)], generator=generator) for k in range(count)]
    return [torch.nn.Parameter(p.to(device, dtype)) for p in every]


def give(*lists, seed, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    for row in zip(*lists):
        drawn = torch.randn(row[0].shape, generator=generator) * scale
        for p in row:
            p.grad = drawn.to(p.device, p.dtype)


def close(ours, theirs, **bounds):
    for p, q in zip(ours, theirs):
        torch.testing.assert_close(p.detach().cpu(), q.detach().cpu(), **(bounds or CLOSE))


@NAMES
def test_steps_are_those_of_torch(name):
    ours, theirs = make(), make()
    a, b = made_of(name, ours, theirs, weight_decay=0.1)
    for group in a.param_groups:
        group["lr"] = torch.tensor(1e-2)  # a tensor of the CPU
    for seed in range(10):
        give(ours, theirs, seed=seed)
        ours[seed].grad = theirs[seed].grad = None  # steps of parameters differ
        a.step(), b.step()
    close(ours, theirs)
    assert {int(a.state[p]["step"]) for p in ours} == {9, 10}


def test_masters():
    ours, theirs = make(dtype=torch.bfloat16), make(dtype=torch.bfloat16)
    theirs = [torch.nn.Parameter(p.detach().float()) for p in theirs]
    a = FusedAdamW(ours, lr=1e-4, master_weights=True)
    b = torch.optim.AdamW(theirs, lr=1e-4)
    for seed in range(5):
        give(ours, seed=seed)
        for p, q in zip(ours, theirs):
            q.grad = p.grad.float()
        a.step(), b.step()
    close([a.state[p]["master_param"] for p in ours], theirs)
    assert all(torch.equal(p, a.state[p]["master_param"].bfloat16()) for p in ours)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("device", ["cpu", DEVICE])
def test_state_dicts_go_both_ways(fused, device):
    """Also from another device, and with steps of torch's that lie on the CPU."""
    expected, ours, theirs = make(), make(device=device), make()
    plain = torch.optim.Adam(expected, lr=1e-2)
    first, second = FusedAdam(ours, lr=1e-2), torch.optim.Adam(theirs, lr=0.5, fused=fused)
    last = FusedAdam(theirs, lr=0.5)
    for seed in range(9):
        give(expected, ours, theirs, seed=seed)
        plain.step()
        (first, second, last)[seed // 3].step()
        if seed == 2:
            with torch.no_grad():
                for p, q in zip(ours, theirs):
                    q.copy_(p)
            saved = copy.deepcopy(first.state_dict())
            saved["param_groups"][0]["fused"] = fused
            second.load_state_dict(saved)
        if seed == 5:
            last.load_state_dict(copy.deepcopy(second.state_dict()))
    close(theirs, expected)
    assert len({last.state[p]["step"].data_ptr() for p in theirs}) == 1


@pytest.mark.parametrize("kind", [FusedAdamW, apex.optimizers.FusedAdam])
@pytest.mark.filterwarnings("ignore:GradScaler is going to stop:FutureWarning")
def test_grad_scaler(kind):
    options = {"capturable": True} if kind is not FusedAdamW else {"weight_decay": 0.0}
    ours, theirs = make(), make()
    a, b = kind(ours, lr=1e-2, **options), torch.optim.AdamW(theirs, lr=1e-2, weight_decay=0.0)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=256.0)
    scaler.scale(torch.ones((), device=DEVICE))
    for seed in range(4):
        give(ours, seed=seed, scale=scaler.get_scale())
        give(theirs, seed=seed)
        if seed == 1:
            ours[7].grad[-1] = float("inf")
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            scaler.step(a)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        scaler.update()
        if seed != 1:
            b.step()
    assert scaler.get_scale() == 128
    close(ours, theirs)


def apex_adam(p, lr):
    return apex.optimizers.FusedAdam(p, lr=lr, capturable=True)


APEX = [apex_adam, apex.optimizers.FusedMixedPrecisionLamb]


@pytest.mark.parametrize("kind", [*PAIRS, *APEX], ids=lambda kind: getattr(kind, "__name__", kind))
def test_a_graph_takes_new_rates_and_gradients(kind):
    ours, eager = make(700), make(700)
    rates = [torch.tensor(1e-2, device=DEVICE) for _ in range(2)]
    a, b = (
        made_of(kind, p, lr=rate)[0] if kind in PAIRS else kind(p, lr=rate)
        for p, rate in zip((ours, eager), rates)
    )
    rates = [x.param_groups[0]["lr"] for x in (a, b)]
    give(ours, eager, seed=0)
    a.step(), b.step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        a.step()
    for number in range(1, 5):
        for rate in rates:
            rate.fill_(1e-2 / number)
        for p, q in zip(ours, eager):
            p.grad.mul_(-1.5), q.grad.mul_(-1.5)
        graph.replay()
        b.step()
        assert all(map(same_bits, ours, eager))
    assert float(a.state[ours[0]]["step"]) == 5


def test_a_graph_keeps_a_rate_that_is_a_number():
    """A step outside, with another number, changes neither it nor the memory that a replay reads."""
    ours, eager = make(10), make(10)
    a, b = (FusedAdamW(p, lr=1e-2, capturable=True) for p in (ours, eager))
    give(ours, eager, seed=0)
    a.step(), b.step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        a.step()
    for number in range(1, 4):
        for x in (a, b):
            x.param_groups[0]["lr"] = 0.1 * number
            x.step()
        junk = [torch.full((), 7.0, device=DEVICE) for _ in range(20)]
        graph.replay()
        b.param_groups[0]["lr"] = 1e-2
        b.step()
        assert all(map(same_bits, ours, eager))
        del junk


@NAMES
def test_nothing_waits(name):
    """Neither the first step, which makes states, nor the next, with a number and new gradients."""
    plain = make(600)
    (expected,) = made_of(name, plain)
    give(plain, seed=0)
    expected.step(), expected.step()
    made: list = []

    def clear():
        made[:] = make(600)
        give(made, seed=0)

    def call(stream):
        (optimizer,) = made_of(name, made)
        optimizer.step(), optimizer.step()

    clear(), call(None)  # the allocator has blocks of these sizes then
    for _ in behind_a_spin(clear, call):
        assert all(map(same_bits, made, plain))
