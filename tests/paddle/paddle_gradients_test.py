# SPDX-License-Identifier: Apache-2.0
"""Gradients by Paddle's autograd: those of the backward operators, eager and in graphs, and never lost silently."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy is an ml_dtypes array")
paddle = pytest.importorskip("paddle", reason="PaddlePaddle is not installed")

import anyop  # noqa: E402
from anyop.testing.paddle_cases import to_array, to_paddle  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[1] / "operators"))
from gradients_test import DIFFERENTIABLE, differentiated  # noqa: E402 (their gradients are checked there)


def tensors_of(case, wanted):
    """The arguments in Paddle; those in wanted are differentiated."""
    found = {}
    for name, value in case.arguments.items():
        if isinstance(value, np.ndarray):
            value = to_paddle(value).clone()  # in Paddle's own memory: see paddle_operators_test.py
            value.stop_gradient = name not in wanted
        found[name] = value
    return found


def loss_of(case, results):
    results = results if isinstance(results, (list, tuple)) else [results]
    seeds = [case.cotangents.get(name) for name in case.results]
    pairs = [(r, to_paddle(seed).clone()) for r, seed in zip(results, seeds) if seed is not None]
    return sum((r * seed).sum() for r, seed in pairs)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_are_those_of_the_operator(name):
    """All at once, each input alone, and by paddle.grad with respect to each of several."""
    case = differentiated(name)
    function = case.subject.function
    inputs = list(case.gradients)
    compared = 0
    for wanted in [inputs, *([one] for one in inputs)]:
        given = tensors_of(case, wanted)
        loss_of(case, function(**given)).backward()
        for one in inputs:
            if one not in wanted:
                assert given[one].grad is None
                continue
            assert to_array(given[one].grad).tobytes() == case.gradients[one].tobytes()
            compared += 1
    for one in inputs:
        given = tensors_of(case, inputs)
        (found,) = paddle.grad(loss_of(case, function(**given)), [given[one]])
        assert to_array(found).tobytes() == case.gradients[one].tobytes()
    assert compared == len(inputs) * 2


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_in_a_static_graph(name):
    case = differentiated(name)
    inputs = list(case.gradients)
    given = tensors_of(case, inputs)
    names = [n for n, value in given.items() if isinstance(value, paddle.Tensor)]
    others = {n: value for n, value in given.items() if n not in names}

    def program(values):
        return case.subject.function(**dict(zip(names, values)), **others)

    graph = paddle.jit.to_static(program, full_graph=True)
    loss_of(case, graph([given[n] for n in names])).backward()
    for one in inputs:
        found, expected = to_array(given[one].grad), case.gradients[one]
        assert found.tobytes() == expected.tobytes(), one


def parameter(*shape):
    value = paddle.randn(shape)
    value.stop_gradient = False
    return value


def test_integer_results_have_none():
    values, indices = anyop.topk(parameter(3, 5), 2)
    assert not values.stop_gradient and indices.stop_gradient


def test_what_is_not_recorded():
    x, weight = parameter(4, 8), paddle.ones([8])
    with paddle.no_grad():
        assert anyop.rms_norm(x, weight).stop_gradient
        anyop.rms_norm(x, weight, out=paddle.empty([4, 8]))
    assert anyop.rms_norm(x.detach(), weight).stop_gradient
    assert not anyop.rms_norm(x, weight).stop_gradient


def test_out_with_a_gradient_is_refused():
    x, weight = parameter(4, 8), paddle.ones([8])
    with pytest.raises(RuntimeError, match=r"rms_norm: with results given .*no_grad"):
        anyop.rms_norm(x, weight, out=paddle.empty([4, 8]))
    with pytest.raises(RuntimeError, match=r"rms_norm: with results given"):
        anyop.rms_norm(x.detach(), weight, out=parameter(4, 8))


def test_an_input_without_gradient_is_refused():
    q, k, v = (parameter(1, 2, 4, 8) for _ in range(3))
    mask = parameter(4, 4)
    with pytest.raises(NotImplementedError, match=r"attention.*: mask wants a gradient"):
        anyop.attention(q, k, v, mask)
    anyop.attention(q, k, v, mask.detach()).sum().backward()
    assert q.grad is not None


def test_the_operator_that_was_called_is_named():
    """attention runs as attention_with_lse where a gradient is recorded; the error comes from there."""
    q, ends = parameter(1, 2, 3, 4), paddle.to_tensor(np.array([0, 9], np.int32))
    with pytest.raises(ValueError, match=r"^attention: softcap is nan"):
        anyop.attention(q, q, q, softcap=float("nan"))
    with pytest.raises(ValueError, match=r"^attention: k has shape"):
        anyop.attention(q, q[:, :, :, :2], q)
    with pytest.raises(IndexError, match=r"^attention_varlen: cu_seqlens_q\[1\] is 9"):
        anyop.attention_varlen(q[0], q[0], q[0], ends, ends)


def test_out_raises_the_version():
    x, y = paddle.ones([3]), paddle.ones([3])
    before = y.inplace_version
    anyop.relu(x, out=y)
    assert y.inplace_version == before + 1


def test_a_saved_tensor_that_was_written_is_noticed():
    """By Paddle's own operators and by out=; PyLayer does not look."""
    for write in (lambda t: t.add_(paddle.ones([])), lambda t: anyop.relu(t.clone(), out=t)):
        x, weight = parameter(4, 8), parameter(8)
        y = anyop.rms_norm(x, weight)
        write(weight.detach())
        with pytest.raises(OSError, match=r"rms_norm: a tensor saved for its gradient has been"):
            y.sum().backward()


def test_a_gradient_of_a_gradient_is_an_error():
    x, weight = parameter(4, 8), parameter(8)
    (grad,) = paddle.grad(anyop.rms_norm(x, weight).sum(), [x], create_graph=True)
    with pytest.raises(OSError, match=r"rms_norm_backward: has no gradient, .*once, not twice"):
        grad.sum().backward()


def test_a_second_pass():
    """paddle.grad keeps the graph. In a backward pass Paddle 3.3 frees the PyLayer, and would crash in a second."""
    x, weight = parameter(4, 8), parameter(8)
    loss = anyop.rms_norm(x, weight).sum()
    first = paddle.grad(loss, [x], retain_graph=True)[0]
    assert (paddle.grad(loss, [x], retain_graph=True)[0] == first).all()
    loss.backward(retain_graph=True)
    assert (x.grad == first).all()
    with pytest.raises(OSError, match=r"rms_norm: this Paddle frees a PyLayer in the first"):
        loss.backward()
    result = anyop.rms_norm(x, weight)
    result.backward(paddle.ones([4, 8]))
    with pytest.raises(OSError, match=r"rms_norm: this Paddle frees a PyLayer in the first"):
        result.backward(paddle.ones([4, 8]))


def test_saved_tensor_hooks_and_recomputation():
    from paddle.distributed.fleet.utils import recompute

    x, weight = parameter(4, 8), parameter(8)
    anyop.rms_norm(x, weight).sum().backward()
    expected = x.grad.clone()
    weight._bump_inplace_version()  # as an optimizer does; a hook's tensor has a version of its own
    x.clear_grad()
    with paddle.autograd.saved_tensors_hooks(lambda t: t.numpy(), paddle.to_tensor):
        loss = anyop.rms_norm(x, weight).sum()
    loss.backward()
    assert (x.grad == expected).all()
    x.clear_grad()
    # Paddle refuses functions that have keyword-only arguments.
    recompute(lambda x, weight: anyop.rms_norm(x, weight), x, weight).sum().backward()
    assert (x.grad == expected).all()


def test_a_graph_says_so_when_a_gradient_is_asked_for():
    def program(x, weight):
        return anyop.rms_norm_backward(x, x, weight)[0]

    graph = paddle.jit.to_static(program, full_graph=True)
    x, weight = paddle.randn([4, 8]), paddle.ones([8])
    assert graph(x, weight).shape == [4, 8]  # without a gradient it runs
    x.stop_gradient = False
    with pytest.raises(NotImplementedError, match="rms_norm_backward: has no gradient"):
        graph(x, weight)


class Net(paddle.nn.Layer):
    """layer_norm and gelu between two products, by anyop or by Paddle."""

    def __init__(self, ours):
        super().__init__()
        self.ours = ours
        self.w1, self.w2 = self.create_parameter([32, 16]), self.create_parameter([4, 32])
        self.scale = self.create_parameter([32])
        self.shift = self.create_parameter([32], is_bias=True)

    def forward(self, x):
        if self.ours:
            hidden = anyop.layer_norm(anyop.linear(x, self.w1), self.scale, self.shift)
            return anyop.linear(anyop.gelu(hidden), self.w2)
        functional = paddle.nn.functional
        hidden = functional.layer_norm(x @ self.w1.t(), [32], self.scale, self.shift)
        return functional.gelu(hidden) @ self.w2.t()


def losses(net, model, steps=50):
    generator = np.random.default_rng(0)
    x = paddle.to_tensor(generator.standard_normal((16, 16)).astype("float32"))
    target = paddle.to_tensor(generator.standard_normal((16, 4)).astype("float32"))
    optimizer = paddle.optimizer.SGD(0.05, parameters=net.parameters())
    found = []
    for _ in range(steps):
        loss = ((model(x) - target) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        found.append(float(loss))
    return found


@pytest.mark.parametrize("mode", ["eager", "full graph", "SOT"])
def test_training_equals_paddles(mode):
    theirs = Net(ours=False)
    start = {name: value.clone() for name, value in theirs.state_dict().items()}
    expected = losses(theirs, theirs)
    ours = Net(ours=True)
    ours.set_state_dict(start)
    model = ours
    if mode != "eager":
        model = paddle.jit.to_static(ours, full_graph=mode == "full graph")
    found = losses(ours, model)
    assert np.allclose(found, expected, atol=1e-4) and found[-1] < 0.9 * found[0]
