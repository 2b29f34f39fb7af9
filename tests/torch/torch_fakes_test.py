# SPDX-License-Identifier: Apache-2.0
"""Fake kernels and meta tensors: results like the real ones, refusals in the same words, symbolic sizes kept."""

from __future__ import annotations

import random
from pathlib import Path

import anyop.torch
import pytest
import torch
from anyop import testing
from anyop.testing.torch_cases import torch_call, torch_calls
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

# What returns nothing is for the test beside it, and for third_party_test.py.
SUBJECTS = {
    s.name: s for s in testing.find_subjects(Path(__file__).parents[2] / "ops") if s.results
}
ALL = tuple(what for what in testing.CASE_CLASSES if what not in ("large", "view"))  # views: layout
subjects = pytest.mark.parametrize("subject", SUBJECTS.values(), ids=SUBJECTS)


def packet(subject):
    return getattr(getattr(torch.ops, subject.metadata["namespace"]), subject.metadata["name"])


@subjects
def test_fake_results_are_like_real_ones(subject):
    """Shape, dtype, strides and device of good cases of all classes, and in every dtype; of meta tensors too."""
    count = 0
    calls = list(torch_calls(subject, ALL))
    calls = calls[:: 1 + len(calls) // 150]
    for at, choice in enumerate(testing.dtype_choices(subject.metadata)[1:]):
        if not choice.is_uniform and at % 7:
            continue
        calls.append(torch_call(subject, testing.good_cases(subject, choice)[0]))
    for label, args, kwargs in calls:
        real = tree_leaves(packet(subject)(*args, **kwargs))
        with FakeTensorMode() as mode:
            fakes = tree_map_only(torch.Tensor, mode.from_tensor, (args, kwargs))
            found = tree_leaves(packet(subject)(*fakes[0], **fakes[1]))
        metas = tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), (args, kwargs))
        meta = tree_leaves(packet(subject)(*metas[0], **metas[1]))
        assert len(found) == len(meta) == len(real), label
        for a, m, b in zip(found, meta, real):
            assert (a.dtype, a.shape, a.stride(), a.device) == (
                b.dtype,
                b.shape,
                b.stride(),
                b.device,
            ), label
            assert (m.dtype, m.shape, m.stride()) == (b.dtype, b.shape, b.stride()), label
            assert m.device.type == "meta", label
        count += 1
    assert count >= (20 if subject.metadata["symbols"]["element_groups"] else 25)


@subjects
def test_fakes_refuse_what_the_function_refuses(subject):
    """Random changes of good shapes and dtypes: the fake and the real operator agree, and say the same."""
    generator, refused, accepted = random.Random(subject.name), 0, 0
    calls = list(
        torch_calls(subject, ("base", "size", "group", "broadcast", "attribute", "expand"))
    )
    for _ in range(60):
        label, args, kwargs = generator.choice(calls)
        leaves, form = tree_flatten(args)
        places = [at for at, value in enumerate(leaves) if isinstance(value, torch.Tensor)]
        at = generator.choice(places)
        leaves[at] = changed(leaves[at], generator)
        args = tree_unflatten(leaves, form)
        answers = []
        for device in ("cpu", "meta"):
            moved = tree_map_only(torch.Tensor, lambda t, d=device: t.to(d), (args, kwargs))
            try:
                packet(subject)(*moved[0], **moved[1])
                answers.append(None)
            except (ValueError, TypeError) as error:
                answers.append((type(error), str(error).split("\n")[0]))
        if answers[0] and "index" in answers[0][1].replace(subject.name, ""):
            continue  # what depends on values no fake can know
        assert answers[0] == answers[1], (label, tuple(leaves[at].shape), leaves[at].dtype)
        refused += answers[0] is not None
        accepted += answers[0] is None
    assert refused >= 3 and accepted + refused >= 30, (refused, accepted)


def changed(tensor, generator):
    """Another size, one dimension more or less, or another dtype."""
    way, shape = generator.randrange(4), list(tensor.shape)
    if way == 0:
        return tensor.to(
            generator.choice((torch.float32, torch.float64, torch.int64, torch.complex64))
        )
    if way == 1:
        shape.insert(generator.randrange(len(shape) + 1), generator.choice((0, 1, 2)))
    elif way == 2 and shape:
        del shape[generator.randrange(len(shape))]
    elif shape:
        shape[generator.randrange(len(shape))] += generator.choice((1, 2))
    return tensor.new_zeros(shape)


def test_symbolic_sizes_stay_symbolic():
    """No guard but those that equal letters need; the result's sizes are expressions of the arguments'."""
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)

    def fake(name, *shape):
        dims = [DimDynamic.DYNAMIC] * len(shape)
        context = StatelessSymbolicContext(dynamic_sizes=dims)
        source = ConstantSource(name)
        return mode.from_tensor(torch.empty(shape), source=source, symbolic_context=context)

    x, w, odd = fake("x", 5, 7, 12), fake("w", 30, 12), fake("odd", 30, 13)
    with mode:
        half = torch.ops.anyop.silu_and_mul(x).shape
        y = torch.ops.anyop.linear(x, w).shape
    assert all(isinstance(size, torch.SymInt) for size in half)
    assert half[-1].node.expr.free_symbols == x.shape[-1].node.expr.free_symbols
    assert [size.node.expr for size in y] == [s.node.expr for s in (*x.shape[:2], w.shape[0])]
    guarded = {symbol for guard in env.guards for symbol in guard.expr.free_symbols}
    assert guarded and not guarded & {s.node.expr for s in (*x.shape[:2], w.shape[0])}, env.guards
    with mode, pytest.raises(ValueError, match="linear: weight has shape"):
        torch.ops.anyop.linear(x, odd)


def test_a_fake_tensor_among_others_is_named():
    mode, x, weight = FakeTensorMode(), torch.ones(2, 4), torch.ones(4)
    fake, fake_weight = mode.from_tensor(x), mode.from_tensor(weight)
    emptied, no_weight = torch.ones(2, 4), torch.ones(4)
    for tensor in (emptied, no_weight):
        tensor.untyped_storage().resize_(0)  # torch cannot even print it
    for arguments, names in (
        ((x, fake_weight), "weight is a FakeTensor and x is none, expected both alike"),
        ((fake, weight), "x is a FakeTensor and weight is none, expected both alike"),
        ((x, weight, fake), "out is a FakeTensor and x is none, expected both alike"),
        ((fake, no_weight), "x is a FakeTensor and weight is none, expected both alike"),
        ((fake, FakeTensorMode().from_tensor(weight)), "x and weight are FakeTensors of different"),
    ):
        with pytest.raises(TypeError, match=f"^rms_norm: {names}"):
            anyop.rms_norm(*arguments[:2], out=(*arguments, None)[2])
    for call in (
        lambda: anyop.rms_norm(x, weight),
        lambda: anyop.rms_norm(emptied, weight),
        lambda: anyop.rms_norm(x, no_weight),
        lambda: anyop.add(x, 1.0),
        lambda: anyop.add(emptied, 1.0),
        lambda: anyop.rms_norm(x.requires_grad_(), weight),
    ):
        with mode, pytest.raises(TypeError, match=r"^(rms_norm|add): .*FakeTensorMode.from_tensor"):
            call()
        assert (x.requires_grad_() * 2).requires_grad, "what torch cannot print ends its autograd"
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert anyop.rms_norm(emptied, weight).shape == (2, 4)


def test_what_is_refused_beside_a_fake_mode_is_not_written():
    """torch.add(x, y, out=x) writes x, then raises: its kernel runs before the mode sees the result."""
    x, y, out = torch.ones(2, 3), torch.ones(3), torch.zeros(2, 3)
    for given in (x, out):
        with FakeTensorMode(), pytest.raises(TypeError, match=r"^add: x is no FakeTensor"):
            anyop.add(x, y, out=given)
    assert torch.equal(x, torch.ones(2, 3)) and torch.equal(out, torch.zeros(2, 3))


def test_more_dimensions_than_the_core_takes_are_refused():
    for x in (
        torch.empty((1,) * 33, device="meta"),
        FakeTensorMode().from_tensor(torch.ones((1,) * 33)),
    ):
        with pytest.raises(ValueError, match=r"^relu: x has 33 dimensions, expected at most 32"):
            anyop.relu(x)
