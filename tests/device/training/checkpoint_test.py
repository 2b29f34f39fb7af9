# SPDX-License-Identifier: Apache-2.0
"""Activation checkpointing: the second forward has the first one's random numbers, autocast and device."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.anyplatform, pytest.mark.usefixtures("platform")]
from torch.utils.checkpoint import checkpoint, checkpoint_sequential  # noqa: E402


def block():
    layers = torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.ReLU(), torch.nn.Linear(8, 8)
    return torch.nn.Sequential(*layers)


def gradients(model, run, device="anyop"):
    torch.manual_seed(3)
    x = torch.randn(6, 8).to(device).requires_grad_()
    found = run(model, x)
    found.square().sum().backward()
    torch.rand(3, device=device)
    return [
        found.detach(),
        x.grad,
        *(p.grad for p in model.parameters()),
        torch.rand(2, device=device),
    ]


WAYS = {
    "reentrant": lambda m, x: checkpoint(m, x, use_reentrant=True),
    "not reentrant": lambda m, x: checkpoint(m, x, use_reentrant=False),
    "sequential": lambda m, x: checkpoint_sequential(m, 2, x, use_reentrant=False),
    "nested": lambda m, x: checkpoint(
        lambda y: checkpoint(m, y, use_reentrant=False), x, use_reentrant=False
    ),
}


@pytest.mark.parametrize("place", ["anyop:0", "anyop:1"])
@pytest.mark.parametrize("way", WAYS)
def test_gradients_are_those_without(way, place):
    if place == "anyop:1" and torch.anyop.device_count() < 2:
        pytest.skip("there is one device")
    model = block().to(place)
    other = copy.deepcopy(model)
    expected = gradients(model, lambda m, x: m(x), place)
    found = gradients(other, WAYS[way], place)
    assert all(torch.equal(a, b) and a.device == b.device for a, b in zip(expected, found))


@pytest.mark.parametrize("reentrant", [False, True])
def test_autocast_is_taken_up_again(reentrant):
    def run(use):
        torch.manual_seed(0)
        model, seen = block().to("anyop"), []
        model[0].register_forward_hook(lambda m, i, o: seen.append(o.dtype))
        x = torch.randn(4, 8, device="anyop", requires_grad=True)
        with torch.autocast("anyop", dtype=torch.bfloat16):
            found = checkpoint(model, x, use_reentrant=reentrant) if use else model(x)
        found.float().sum().backward()
        return x.grad, set(seen), len(seen)

    plain, kept = run(False), run(True)
    assert torch.equal(plain[0], kept[0]) and kept[1] == {torch.bfloat16}
    assert (plain[2], kept[2]) == (1, 2), "the forward ran twice"


def test_memory_is_saved():
    def peak(use):
        model = torch.nn.Sequential(*[torch.nn.Tanh() for _ in range(12)])
        x = torch.randn(256, 1024, device="anyop", requires_grad=True)
        torch.anyop.reset_peak_memory_stats()
        found = checkpoint_sequential(model, 4, x, use_reentrant=False) if use else model(x)
        found.sum().backward()
        return torch.anyop.max_memory_allocated() - torch.anyop.memory_allocated()

    plain = peak(False)
    assert peak(True) < 0.8 * plain
