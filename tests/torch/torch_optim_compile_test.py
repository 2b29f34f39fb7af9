# SPDX-License-Identifier: Apache-2.0
"""anyop.torch.optim in torch.compile: one program for every rate, between plain steps too."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from anyop.torch.optim import FusedAdam, FusedAdamW  # noqa: E402
from optimizer_pairs import NAMES, give, made_of, make  # noqa: E402


@pytest.mark.drawn(2)
@NAMES
def test_torch_compile_makes_one_graph_for_every_rate(name):
    """Beside that of the first step, which makes the states."""
    torch._dynamo.reset()  # all optimizers share a step, of which torch keeps 8 programs
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    ours, plain = make(), make()
    rates = [torch.tensor(1e-2) for _ in range(2)]
    a, b = (made_of(name, p, lr=rate)[0] for p, rate in zip((ours, plain), rates))
    compiled = torch.compile(a.step, backend=backend, fullgraph=True)
    for seed in range(10):
        give(ours, plain, seed=seed)
        for rate in rates:
            rate.fill_(1e-2 / (seed + 1))
        compiled(), b.step()
        assert all(map(torch.equal, ours, plain))
    assert len(graphs) == 2


@pytest.mark.parametrize("first", [0, 1])
def test_programs_and_plain_steps_take_turns(first):
    """A rate that is a number, and changes outside the program."""
    torch._dynamo.reset()
    ours, plain = make(), make()
    a, b = (FusedAdamW(p, lr=1e-2) for p in (ours, plain))
    compiled = torch.compile(a.step, backend="eager", fullgraph=True)
    for seed in range(first, 6 + first):
        give(ours, plain, seed=seed)
        for x in (a, b):
            x.param_groups[0]["lr"] = 1e-2 if seed % 2 == 0 else 0.1 * seed
        compiled() if seed % 2 == 0 else a.step()
        b.step()
        assert all(map(torch.equal, ours, plain))


@pytest.mark.drawn(2)
@NAMES
def test_groups_are_held(name, monkeypatch):
    """One program for both from the second step on; without torch.compile nothing is made anew after the first."""
    torch._dynamo.reset()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    def groups(p):
        return [{"params": p[:2]}, {"params": p[2:], "lr": torch.tensor(3e-2), "weight_decay": 0.2}]

    ours, plain = make(), make()
    a, b = (made_of(name, groups(p), lr=torch.tensor(1e-2))[0] for p in (ours, plain))
    compiled = torch.compile(a.step, backend=backend, fullgraph=True)
    # A program lays gradients as their parameters lie before NovoGrad takes norms: another order of sums.
    same = torch.allclose if name == "NovoGrad" else torch.equal
    for seed in range(4):
        give(ours, plain, seed=seed)
        compiled(), b.step()
        assert all(map(same, ours, plain))
        monkeypatch.setattr(b, "_hold", None)
    assert len(graphs) == 2


def test_two_compiled_optimizers_whose_attributes_differ():
    """torch makes a symbol of such a float."""
    torch._dynamo.reset()
    for eps in (1e-8, 1e-3, 1e-2):
        ours, plain = make(), make()
        a, b = FusedAdam(ours, eps=eps), FusedAdam(plain, eps=eps)
        compiled = torch.compile(a.step, backend="eager", fullgraph=True)
        for seed in range(2):
            give(ours, plain, seed=seed)
            compiled(), b.step()
        assert all(map(torch.equal, ours, plain))
