# SPDX-License-Identifier: Apache-2.0
"""Operators over lists on CUDA: thousands of tensors of mixed dtypes, PyTorch's optimizer, graphs, no waits."""

from __future__ import annotations

import sys
from pathlib import Path

import anyop
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "operators"))
from multi_tensor_test import STEPS, arguments
from multi_tensor_test import shapes as few_shapes
from on_cuda import DEVICE, behind_a_spin, same_bits, torch

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
SHAPES = [(), (1,), (3, 5), (0, 4), (4096,), (4097,), (130, 70), (2, 3, 4, 5), (300_001,)]


def drawn(count: int, dtypes=DTYPES, seed: int = 0) -> list[torch.Tensor]:
    """Tensors whose shapes and dtypes take turns; some of them begin between vectors."""
    generator = torch.Generator(DEVICE).manual_seed(seed)
    found = []
    for k in range(count):
        shape = SHAPES[k % len(SHAPES)]
        numel = torch.Size(shape).numel()
        memory = torch.randn(numel + 1, generator=generator, device=DEVICE)
        memory = memory.to(dtypes[k % len(dtypes)])
        found.append((memory[1:] if k % 5 == 0 else memory[:numel].clone()).view(shape))
    return found


def cpu(tensors):
    return [t.cpu() for t in tensors]


def state(count: int, dtypes=DTYPES):
    """p, g, m, v of adam."""
    lists = [drawn(count, dtypes, seed) for seed in range(2)]
    lists += [drawn(count, [torch.float32], seed) for seed in (2, 3)]
    return [*lists[:3], [t.abs() for t in lists[3]]]


def copies(lists):
    return [[t.clone() for t in tensors] for tensors in lists]


@pytest.mark.parametrize("count", [3, 100, 2500])
def test_results_are_those_of_the_cpu(count):
    x, out = drawn(count), drawn(count, DTYPES[::-1], 1)
    here, there = cpu(x), cpu(out)
    found = torch.zeros(1, device=DEVICE)
    anyop.multi_tensor_scale(x, out, 0.5, found)
    anyop.multi_tensor_scale(here, there, 0.5)
    for a, b in zip(out, there):
        assert same_bits(a.cpu(), b)  # one rounding of an exact product
    total, each = anyop.multi_tensor_l2norm(x)
    expected = torch.stack([t.double().norm() for t in x])
    torch.testing.assert_close(each.double(), expected, rtol=2e-6, atol=0)
    torch.testing.assert_close(total.double(), expected.norm(), rtol=2e-6, atol=0)
    assert found.item() == 0
    x[-1].view(-1)[-1:] = float("nan")
    x[-2].view(-1)[-1:] = float("inf")
    anyop.multi_tensor_check_finite(x, found)
    assert found.item() == (1 if any(t.numel() for t in x[-2:]) else 0)
    lists = state(count)
    plain = [cpu(tensors) for tensors in lists]
    for step in (1, 2, 3):
        anyop.multi_tensor_adam(*lists, 0.01, step, weight_decay=0.1)
        anyop.multi_tensor_adam(*plain, 0.01, step, weight_decay=0.1)
    for tensors, others in zip(lists, plain):
        for a, b in zip(tensors, others):
            rtol = 2e-5 if a.dtype == torch.float32 else 2 * torch.finfo(a.dtype).eps
            torch.testing.assert_close(a.cpu(), b, rtol=rtol, atol=2e-5)


def on(device: str, given: dict) -> dict:
    def moved(a: np.ndarray) -> torch.Tensor:
        made = torch.empty(a.shape, dtype=getattr(torch, a.dtype.name), device=device)
        return made.copy_(torch.from_numpy(a.astype(np.float32)))

    return {
        key: [moved(a) for a in value] if isinstance(value, list)
        else moved(value) if isinstance(value, np.ndarray) else value
        for key, value in given.items()
    }  # fmt: skip


def flat(given: dict) -> list[torch.Tensor]:
    lists = [v if isinstance(v, list) else [v] for v in given.values() if not isinstance(v, float)]
    return [t for tensors in lists for t in tensors]


def step_arguments(name: str, device: str, without=("inv_scale", "found_inf")) -> dict:
    """2,500 tensors, some of them empty, whose dtypes differ."""
    given = arguments(name, few_shapes(30) + [(k % 7,) for k in range(2470)], without=without)
    given["lr"] = np.full(1, 0.01, np.float32)
    if name == "multi_tensor_lamb_stage1":
        del given["lr"]
    return on(device, given)


@pytest.mark.parametrize("without", [{"inv_scale", "found_inf"}, {"master", "copy", "found_inf"}])
@pytest.mark.parametrize("name", STEPS)
def test_steps_are_those_of_the_cpu(name, without):
    here, there = step_arguments(name, "cpu", without), step_arguments(name, DEVICE, without)
    getattr(anyop, name)(**here)
    getattr(anyop, name)(**there)
    for a, b in zip(flat(there), flat(here)):
        rtol = 2e-5 if a.dtype == torch.float32 else 2 * torch.finfo(a.dtype).eps
        torch.testing.assert_close(a.cpu(), b, rtol=rtol, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
@pytest.mark.parametrize("name", STEPS)
def test_a_graph_of_each_step_takes_new_numbers_and_flags(name, dtype):
    given, eager = (step_arguments(name, DEVICE) for _ in range(2))
    found = torch.zeros(1, dtype=dtype, device=DEVICE)
    getattr(anyop, name)(**step_arguments(name, DEVICE), found_inf=found)  # first uses
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        getattr(anyop, name)(**given, found_inf=found)
    for number in range(3):
        for key in {"lr", "step"} & set(given):
            given[key].add_(number), eager[key].add_(number)
        found.fill_(number == 1)
        before = [t.clone() for t in flat(given)]
        graph.replay()
        getattr(anyop, name)(**eager, found_inf=found)
        assert all(same_bits(a, b) for a, b in zip(flat(given), flat(eager)))
        kept = all(same_bits(a, b) for a, b in zip(flat(given), before))
        assert kept == (number == 1)


@pytest.mark.parametrize("norm_type", [2, 0])
@pytest.mark.parametrize("max_norm", [0.5, 1e6])
def test_clipping_and_averages_are_those_of_the_cpu(norm_type, max_norm):
    there, means = drawn(2500), drawn(2500, [torch.float32], 1)
    here, others = cpu(there), cpu(means)
    for number in (0, 3):
        anyop.multi_tensor_average(there, means, number)
        anyop.multi_tensor_average(here, others, number)
    found = anyop.multi_tensor_clip_grad_norm(there, max_norm, norm_type=norm_type)
    total = anyop.multi_tensor_clip_grad_norm(here, max_norm, norm_type=norm_type)
    torch.testing.assert_close(found.cpu(), total, rtol=2e-6, atol=0)
    for a, b in zip([*there, *means], [*here, *others]):
        rtol = 1e-5 if a.dtype == torch.float32 else 2 * torch.finfo(a.dtype).eps
        torch.testing.assert_close(a.cpu(), b, rtol=rtol, atol=1e-6)


def test_scales_are_those_of_the_cpu():
    there = [
        torch.full((3,), 8.0),
        torch.zeros(3, dtype=torch.int32),
        torch.tensor([1, 2, 3]).int(),
    ]
    here, there = there, [t.to(DEVICE, copy=True) for t in there]
    for one in (0, 0, 1, 0, 1, 1, 1, 0, 0):
        found = torch.full((1,), float(one))
        anyop.update_scale_hysteresis(*here, found, growth_interval=2, hysteresis=2)
        anyop.update_scale_hysteresis(*there, found.to(DEVICE), growth_interval=2, hysteresis=2)
        assert all(torch.equal(a.cpu(), b) for a, b in zip(there, here))


def test_adamw_is_that_of_torch():
    ours, grads, m, v = (drawn(200, [torch.float32], seed) for seed in range(4))
    theirs = [torch.nn.Parameter(p.clone()) for p in ours]
    for moments in (m, v):
        for t in moments:
            t.zero_()
    optimizer = torch.optim.AdamW(theirs, lr=1e-2, fused=True)
    for step in range(1, 11):
        for p, g in zip(theirs, grads):
            p.grad = g.clone()
        optimizer.step()
        anyop.multi_tensor_adam(ours, grads, m, v, 1e-2, step, weight_decay=0.01)
    for p, q in zip(ours, theirs):
        torch.testing.assert_close(p, q.data, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("dtypes", [[torch.float32], DTYPES], ids=["float32", "mixed"])
def test_a_graph_takes_new_rates_gradients_and_flags(dtypes):
    lists = state(700, dtypes)
    lr, step, inv_scale = (torch.ones((), device=DEVICE) for _ in range(3))
    found = torch.zeros(1, device=DEVICE)
    total = torch.empty((), device=DEVICE)

    def run(p, g, m, v, total):
        anyop.multi_tensor_check_finite(g, found)
        anyop.multi_tensor_adam(p, g, m, v, lr, step, found_inf=found, inv_scale=inv_scale)
        anyop.multi_tensor_l2norm(p, total=total, each=False)

    eager, eager_total = copies(lists), torch.empty_like(total)
    run(*copies(lists), torch.empty_like(total))  # first uses
    graph = torch.cuda.CUDAGraph()
    start = copies(lists)
    with torch.cuda.graph(graph):
        run(*lists, total)
    for tensors, others in zip(lists, start):
        for a, b in zip(tensors, others):
            a.copy_(b)
    for number in range(1, 5):
        lr.fill_(0.1 / number), step.fill_(number), inv_scale.fill_(2.0**-number), found.zero_()
        for g, h in zip(lists[1], eager[1]):
            g.mul_(1.5), h.mul_(1.5)
        if number == 3:
            lists[1][4][:1], eager[1][4][:1] = float("inf"), float("inf")
        graph.replay()
        assert found.item() == (number == 3)
        found.zero_()
        run(*eager, eager_total)
        assert found.item() == (number == 3)
        if number == 3:
            lists[1][4][:1], eager[1][4][:1] = 1, 1
        for tensors, others in zip(lists, eager):
            assert all(same_bits(a, b) for a, b in zip(tensors, others))
        assert same_bits(total.view(1), eager_total.view(1))


def test_nothing_waits():
    lists = state(600)
    outs = copies(lists)
    expected, rate, step = copies(lists), torch.full((), 0.1, device=DEVICE), 1
    anyop.multi_tensor_adam(*expected, rate, step)

    def clear():
        for tensors, others in zip(outs, lists):
            for a, b in zip(tensors, others):
                a.copy_(b)

    def call(stream):
        anyop.multi_tensor_adam(*outs, rate, step)  # a number too: it is filled on the device

    for _ in behind_a_spin(clear, call):
        for tensors, others in zip(outs, expected):
            assert all(same_bits(a, b) for a, b in zip(tensors, others))


def test_the_same_bits_twice():
    x = drawn(900)
    first = anyop.multi_tensor_l2norm(x)
    for _ in range(10):
        assert all(
            same_bits(a.view(-1), b.view(-1)) for a, b in zip(anyop.multi_tensor_l2norm(x), first)
        )


def test_mixed_devices_are_refused():
    x = drawn(3)
    with pytest.raises(ValueError, match=r"x is on device cpu:0, expected cuda:0.*\[element 1\]"):
        anyop.multi_tensor_scale([x[0], x[1].cpu(), x[2]], x, 1.0)
