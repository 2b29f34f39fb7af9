# SPDX-License-Identifier: Apache-2.0
"""Gradients: right for every operator that states [backward], the same by both entries, never lost silently."""

from __future__ import annotations

from pathlib import Path

import anyop.torch
import pytest
import torch
from anyop import testing
from anyop.testing.torch_cases import torch_calls

SUBJECTS = {s.name: s for s in testing.find_subjects(Path(__file__).parents[2] / "ops")}
DIFFERENTIABLE = {name: s for name, s in SUBJECTS.items() if s.metadata["backward"]}
BACKWARDS = {s.metadata["backward"]["name"] for s in DIFFERENTIABLE.values()}
CASES = ("base", "absent", "attribute", "broadcast", "expand", "empty", "one element")


def over(subjects):
    return pytest.mark.parametrize("subject", subjects.values(), ids=subjects)


def packet(subject):
    return getattr(getattr(torch.ops, subject.metadata["namespace"]), subject.metadata["name"])


def wanted(subject):
    """Names of the inputs that have gradients."""
    results = anyop.metadata(subject.metadata["backward"]["name"])["results"]
    return {param["name"].removeprefix("grad_") for param in results}


def float_calls(subject, dtype, what=CASES):
    """Good calls with all floating tensors of one dtype; relu and the like are kept off their kinks."""
    choices = testing.dtype_choices(subject.metadata)
    names = [p["name"] for p in subject.tensors if p["name"] in wanted(subject)]
    asked = [p["name"] for p in subject.attributes if p["kind"] == "ScalarType"]
    choice = next(
        (c for c in choices if all(c.names[name] == dtype for name in (*names, *asked))), None
    )
    if choice is None:
        return
    for label, args, kwargs in torch_calls(subject, what, choice):
        at = [i for i, p in enumerate(subject.inputs[: len(args)]) if p["name"] in names]
        leaves = [i for i in at if args[i] is not None]
        args = tuple(
            (value + 0.1 * value.sign()).requires_grad_() if i in leaves else value
            for i, value in enumerate(args)
        )
        yield label, args, kwargs, leaves


def floating(results):
    results = results if isinstance(results, tuple) else (results,)
    return [r for r in results if r is not None and r.requires_grad]


@over(DIFFERENTIABLE)
def test_gradients_are_right(subject):
    """Against differences in float64; every input alone, so that needs_input_grad is honoured."""
    checked = 0
    calls = list(float_calls(subject, "float64"))
    for label, args, kwargs, leaves in calls[:: 1 + len(calls) // 25]:
        if sum(args[at].numel() for at in leaves) > 400:
            continue

        def run(*values, args=args, kwargs=kwargs, leaves=leaves):
            full = list(args)
            for at, value in zip(leaves, values):
                full[at] = value
            return tuple(floating(packet(subject)(*full, **kwargs))) or torch.zeros(())

        values = [args[at].detach().requires_grad_() for at in leaves]
        assert torch.autograd.gradcheck(run, values, atol=1e-6, rtol=1e-6, eps=1e-7), label
        checked += 1
    assert checked >= 2 or not calls


@over(DIFFERENTIABLE)
def test_both_entries_give_the_same_gradients(subject):
    """anyop.<op> and torch.ops, bit for bit; all wanted, and each one alone."""
    compared = 0
    for label, args, kwargs, leaves in float_calls(subject, "float32"):
        for chosen in [leaves, *([at] for at in leaves if len(leaves) > 1)]:
            found = []
            for op in (subject.function, packet(subject)):
                copies = list(args)
                for at in leaves:
                    copies[at] = args[at].detach().clone().requires_grad_(at in chosen)
                results = floating(op(*copies, **kwargs))
                assert results, label
                total = sum(
                    (r * torch.arange(1.0, r.numel() + 1).view_as(r)).sum() for r in results
                )
                total.backward()
                assert all((copies[at].grad is not None) == (at in chosen) for at in leaves), label
                found.append([copies[at].grad for at in chosen])
            for a, b in zip(*found):
                torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
                compared += 1
    assert compared >= 3


@pytest.mark.parametrize("ops", [anyop, torch.ops.anyop], ids=["anyop", "torch.ops"])
def test_a_gradient_that_cannot_be_recorded_is_refused(ops):
    """Of an input that the backward does not differentiate; operators without any: torch_import_test.py."""
    x, mask = torch.randn(2, 3, 4), torch.ones(2, 3, requires_grad=True)
    with pytest.raises(NotImplementedError, match=r"^masked_mean: mask requires a gradient"):
        ops.masked_mean(x, mask)
    with torch.no_grad():
        assert not ops.masked_mean(x, mask).requires_grad
    found = ops.masked_mean(x.requires_grad_(), mask.detach())
    found.sum().backward()
    torch.testing.assert_close(x.grad, torch.full_like(x, 1 / 3))


def rms_norm_arguments():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(4, 8, generator=generator, requires_grad=True)
    return x, torch.randn(8, generator=generator, requires_grad=True)


entries = pytest.mark.parametrize(
    "op", [anyop.rms_norm, torch.ops.anyop.rms_norm], ids=["anyop", "torch.ops"]
)


def torch_rms_norm(x, w):
    return torch.nn.functional.rms_norm(x, w.shape, w, 1e-6)


@entries
def test_only_what_is_wanted_is_computed(op):
    """The backward operator makes no gradient that nobody asked for."""
    x, w = rms_norm_arguments()
    seen = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            found = function(*args, **(kwargs or {}))
            if function is torch.ops.anyop.rms_norm_backward.default:
                seen.append([part is not None for part in found])
            return found

    for a, b in ((x, w), (x, w.detach()), (x.detach(), w)):
        y = op(a, b)
        with Watch():
            y.sum().backward()
    assert seen == [[True, True], [True, False], [False, True]]


@entries
def test_gradients_of_views_and_broadcast_gradients(op):
    x, w = rms_norm_arguments()
    for f in (
        lambda y: y.sum(),
        lambda y: y.t().contiguous().square().sum(),
        lambda y: y[::2, 1:].sum(),
    ):
        found = torch.autograd.grad(f(op(x, w)), (x, w))
        expected = torch.autograd.grad(f(torch_rms_norm(x, w)), (x, w))
        for a, b in zip(found, expected):
            torch.testing.assert_close(a, b)


@entries
def test_twice_differentiated_is_an_error_only_when_it_is_done(op):
    x, w = rms_norm_arguments()
    (once,) = torch.autograd.grad(op(x, w).sum(), x, create_graph=True)
    (expected,) = torch.autograd.grad(torch_rms_norm(x, w).sum(), x)
    torch.testing.assert_close(once.detach(), expected)
    with pytest.raises(NotImplementedError, match="rms_norm_backward: has no gradient"):
        once.sum().backward()


@entries
def test_what_torch_says_of_changed_tensors(op):
    """A saved tensor that changed, a leaf that is written, out= with a gradient: torch's own errors."""
    x, w = rms_norm_arguments()
    inner = x * 1
    y = op(inner, w)
    inner.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    saved = w.detach().clone()
    y = op(x, saved)
    torch.ops.anyop.rms_norm(torch.ones(1, 8), torch.ones(8), out=saved.view(1, 8))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    for a, b, out in (
        (x, w, torch.empty(4, 8)),
        (x.detach(), w.detach(), torch.empty(4, 8).requires_grad_()),
    ):
        with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
            op(a, b, out=out)
    place = torch.empty(4, 8)
    with torch.no_grad():
        op(x, w, out=place)
        assert torch.equal(place, op(x, w)) and not place.requires_grad


@entries
def test_hooks_and_retained_graphs(op):
    x, w = rms_norm_arguments()
    packed = []
    hooks = torch.autograd.graph.saved_tensors_hooks(
        lambda t: packed.append(t) or t.clone(), lambda t: t
    )
    with hooks:
        y = op(x, w)
    assert len(packed) == 2
    y.sum().backward(retain_graph=True)
    first = x.grad.clone()
    y.sum().backward()
    torch.testing.assert_close(x.grad, 2 * first)
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()


def test_every_form_of_call_records_a_gradient():
    x, w = rms_norm_arguments()
    expected = torch.autograd.grad(anyop.rms_norm(x, w, 1e-5).sum(), (x, w))
    for y in (
        anyop.rms_norm(x, w, eps=1e-5),
        anyop.rms_norm(x=x, weight=w, eps=1e-5),
        anyop.rms_norm(x, eps=1e-5, weight=w, out=None),
        torch.ops.anyop.rms_norm.default(x, weight=w, eps=1e-5),
    ):
        assert y.requires_grad and not y.is_leaf
        for a, b in zip(torch.autograd.grad(y.sum(), (x, w)), expected):
            assert torch.equal(a, b)


def test_forward_mode_without_a_formula_is_refused():
    x = torch.randn(5, 8)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        for op in (anyop.silu_and_mul, torch.ops.anyop.silu_and_mul):
            with pytest.raises(NotImplementedError, match=r"silu_and_mul: .*forward mode .* x "):
                op(dual)


def test_integers_have_no_gradient():
    """An operator whose results are integers records none, as in torch."""
    x = torch.randn(3, 5, requires_grad=True)
    for y in (torch.ops.anyop.topk(x.detach(), 2)[1], anyop.topk(x.detach(), 2)[1]):
        assert not y.requires_grad


@pytest.mark.parametrize("name", ["add", "mul"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.bool])
def test_integers_beside_what_requires_a_gradient(name, dtype):
    y = torch.tensor([[1], [0]], dtype=dtype)
    found = []
    for function in (getattr(anyop, name), getattr(torch.ops.anyop, name), getattr(torch, name)):
        x = torch.arange(6.0).reshape(2, 3).requires_grad_()
        results = function(x, y), function(y, x)
        sum(result.square().sum() for result in results).backward()
        found.append(x.grad)
    assert torch.equal(found[0], found[2]) and torch.equal(found[1], found[2])


@pytest.mark.parametrize("ops", [anyop, torch.ops.anyop])
def test_the_operator_that_was_called_is_named(ops):
    """attention runs as attention_with_lse where a gradient is recorded; the error comes from there."""
    q = torch.ones(1, 2, 3, 4, requires_grad=True)
    with pytest.raises(ValueError, match=r"^attention: softcap is nan"):
        ops.attention(q, q, q, softcap=float("nan"))
    with pytest.raises(ValueError, match=r"^attention: k has shape"):
        ops.attention(q, q[..., :2], q)
    ends = torch.tensor([0, 9], dtype=torch.int32)
    with pytest.raises(IndexError, match=r"^attention_varlen: cu_seqlens_q\[1\] is 9"):
        ops.attention_varlen(q[0], q[0], q[0], ends, ends)
