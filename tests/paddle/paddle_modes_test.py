# SPDX-License-Identifier: Apache-2.0
"""Paddle's modes: AMP, static programs, unknown sizes, threads, libraries loaded later; and what is refused in them."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import numpy as np
import pytest

paddle = pytest.importorskip("paddle", reason="PaddlePaddle is not installed")

import anyop  # noqa: E402
import anyop.paddle  # noqa: E402
from anyop.adapter.check import Check  # noqa: E402
from anyop.adapter.operators import Operator  # noqa: E402
from anyop.paddle.framework import FRAMEWORK  # noqa: E402

Spec = paddle.static.InputSpec


# ---- AMP ----


@contextmanager
def auto_cast(level, dtype):
    """What paddle.amp.auto_cast sets where it has an effect: with eager tensors on the CPU Paddle lets it have none."""
    tracer = paddle.base.framework._dygraph_tracer()
    before = tracer._amp_level, tracer._amp_dtype
    tracer._amp_level, tracer._amp_dtype = getattr(paddle.base.core.AmpLevel, level), dtype
    try:
        yield
    finally:
        tracer._amp_level, tracer._amp_dtype = before


@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_amp(level, dtype):
    """Products in the lower dtype, sums in float32, everything else as it comes; the same numbers as casts by hand."""
    x, weight = paddle.randn([4, 64]), paddle.randn([16, 64])
    with auto_cast(level, dtype):
        product = anyop.linear(x, weight)
        normed = anyop.rms_norm(x.astype(dtype), paddle.ones([64], dtype))
        same = anyop.relu(x)
    assert FRAMEWORK.dtype_name(product) == dtype
    assert normed.dtype == paddle.float32 and same.dtype == paddle.float32
    by_hand = anyop.linear(x.astype(dtype), weight.astype(dtype))
    assert (product == by_hand).all()
    assert (normed == anyop.rms_norm(x.astype(dtype).astype("float32"), paddle.ones([64]))).all()


def test_amp_leaves_float64_and_integers():
    with auto_cast("O1", "bfloat16"):
        assert anyop.softmax(paddle.ones([2, 3], "float64")).dtype == paddle.float64
        assert anyop.add(paddle.ones([3], "int64"), paddle.ones([3], "int64")).dtype == paddle.int64


def test_amp_with_gradients():
    """The cast is part of what is differentiated: gradients have the parameters' dtype."""
    x, weight = paddle.randn([4, 64]), paddle.randn([16, 64])
    x.stop_gradient = weight.stop_gradient = False
    with auto_cast("O1", "bfloat16"):
        found = anyop.linear(x, weight)
        assert anyop.linear(x, weight).dtype == paddle.bfloat16  # the state is as it was
    found.astype("float32").sum().backward()
    assert x.grad.dtype == paddle.float32 and weight.grad.dtype == paddle.float32
    expected = weight.detach().sum(0).expand([4, 64])
    assert float((x.grad - expected).abs().max()) < 0.2


def test_amp_in_a_graph():
    weight = paddle.randn([16, 64])

    def program(x):
        with paddle.amp.auto_cast(dtype="bfloat16"):
            return anyop.linear(x, weight)

    x = paddle.randn([4, 64])
    found = paddle.jit.to_static(program, full_graph=True)(x)
    assert found.dtype == paddle.bfloat16
    assert (found == anyop.linear(x.astype("bfloat16"), weight.astype("bfloat16"))).all()


# ---- graphs ----


def test_one_graph_for_every_batch():
    weight = paddle.randn([64])

    def program(x):
        return anyop.gelu(anyop.rms_norm(x, weight))

    graph = paddle.jit.to_static(program, full_graph=True, input_spec=[Spec([None, 64])])
    for batch in (1, 7, 0):
        x = paddle.randn([batch, 64])
        assert (graph(x) == program(x)).all()


@pytest.mark.parametrize("full_graph", [True, False])
def test_views_reach_a_graph(full_graph):
    weight = paddle.randn([4])

    def program(x):
        return anyop.rms_norm(x.contiguous(), weight)

    x = paddle.randn([4, 6]).t()
    found = paddle.jit.to_static(program, full_graph=full_graph)(x)
    assert (found == anyop.rms_norm(x.contiguous(), weight)).all()


def test_attributes_of_one_value_do_not_meet():
    """hash(-1) == hash(-2), 0.0 == -0.0 and 1 == True: a node is one of all its attributes."""
    x = paddle.randn([3, 5])

    def program(x):
        return [anyop.softmax(x, dim) for dim in (-1, -2)] + [
            anyop.rms_norm(x, paddle.ones([5]), eps) for eps in (1.0, 1e-6, 0.0)
        ]

    for found, expected in zip(paddle.jit.to_static(program, full_graph=True)(x), program(x)):
        assert (found == expected).all()


def test_a_static_program_trains():
    """paddle.static: a program of its own, an optimizer, an executor."""
    paddle.enable_static()
    try:
        main, startup = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(main, startup):
            x = paddle.static.data("x", [None, 8], "float32")
            weight = paddle.create_parameter([4, 8], "float32")
            loss = anyop.gelu(anyop.linear(x, weight)).sum()
            paddle.optimizer.SGD(0.01).minimize(loss)
        executor = paddle.static.Executor()
        executor.run(startup)
        feed = {"x": np.ones((3, 8), np.float32)}
        found = [float(executor.run(main, feed=feed, fetch_list=[loss])[0]) for _ in range(4)]
    finally:
        paddle.disable_static()
    assert found[0] > found[1] > found[2] > found[3]


def wrong_shape(x):
    return anyop.rms_norm(x, paddle.ones([63]))


def wrong_dtype(x):
    return anyop.rms_norm(x.astype("int64"), paddle.ones([64]))


def computed_attribute(x):
    return anyop.topk(x, x.shape[0])


def given_result(x):
    return anyop.relu(x, out=x)


def unwanted_result(x):
    return anyop.relu(x, out=False)


def broken_condition(x):
    return anyop.topk(x, 65)


REFUSED = {
    wrong_shape: (ValueError, r"rms_norm: weight has shape \(63\), expected \(D\) with D=64"),
    wrong_dtype: (TypeError, "rms_norm: x has dtype int64, expected"),
    computed_attribute: (TypeError, "topk: k is a value of a static graph, expected int"),
    given_result: (NotImplementedError, "relu: out cannot be given in a static graph"),
    unwanted_result: (TypeError, "relu: out is a bool, expected a tensor"),
    broken_condition: (ValueError, "topk: expected k <= D with D=64, k=65"),
}


@pytest.mark.parametrize("program", REFUSED)
def test_what_a_graph_refuses(program):
    error, match = REFUSED[program]
    graph = paddle.jit.to_static(program, full_graph=True, input_spec=[Spec([None, 64])])
    with pytest.raises(error, match=match):
        _ = graph.concrete_program


def test_a_size_that_the_gradient_needs():
    def program(indices, table):
        return anyop.embedding(indices, table)

    specs = [Spec([None], "int64"), Spec([None, 4], stop_gradient=False)]
    graph = paddle.jit.to_static(program, full_graph=True, input_spec=specs)
    table = paddle.ones([5, 4])
    table.stop_gradient = False
    with pytest.raises(NotImplementedError, match="embedding: the gradient needs the size"):
        graph(paddle.zeros([2], "int64"), table)


class Value:
    """As a value of a graph looks."""

    def __init__(self, *shape):
        self.shape, self.dtype = list(shape), paddle.float32


def shapes(name, *values):
    operator = Operator(name, FRAMEWORK)
    check = Check(operator, [*values, *operator.defaults[len(values) : operator.count]])
    found = check.result(operator.results[0])[0]
    return [size if isinstance(size, int) else -1 for size in found]


def test_unknown_sizes():
    """They fit everything, stay unknown until a known one is met, and known ones still have to fit."""
    assert shapes("rms_norm", Value(-1, 64), Value(64)) == [-1, 64]
    assert shapes("rms_norm", Value(-1, -1), Value(64)) == [-1, 64]
    assert shapes("rms_norm", Value(-1, -1), Value(-1)) == [-1, -1]
    assert shapes("add", Value(-1, 3), Value(1)) == [-1, 3]
    assert shapes("add", Value(-1, 3), Value(7, 1)) == [7, 3]
    assert shapes("silu_and_mul", Value(-1, 6)) == [-1, 3]
    assert shapes("silu_and_mul", Value(2, -1)) == [2, -1]
    with pytest.raises(ValueError, match=r"layer_norm: bias has shape \(63\)"):
        shapes("layer_norm", Value(-1, -1), Value(64), Value(63))
    with pytest.raises(ValueError, match="cannot be broadcast"):
        shapes("add", Value(-1, 3), Value(7, 2))


# ---- threads ----


def test_threads_have_their_own_modes():
    """no_grad and auto_cast in one thread say nothing of another."""
    x, weight = paddle.randn([4, 64]), paddle.randn([16, 64])
    weight.stop_gradient = False
    ready, done, found = threading.Barrier(2), threading.Barrier(2), {}

    def other():
        with paddle.no_grad(), auto_cast("O1", "bfloat16"):
            ready.wait(20)
            found["inside"] = [anyop.linear(x, weight) for _ in range(50)]
            done.wait(20)

    thread = threading.Thread(target=other)
    thread.start()
    ready.wait(20)
    outside = [anyop.linear(x, weight) for _ in range(50)]
    done.wait(20)
    thread.join(20)
    assert all(r.dtype == paddle.bfloat16 and r.stop_gradient for r in found["inside"])
    assert all(r.dtype == paddle.float32 and not r.stop_gradient for r in outside)


def test_a_new_thread_explains_before_it_calls():
    """Paddle gives a thread its tracer at the thread's first call, and a call is what an explanation is not."""
    x, found = paddle.randn([3, 4]), []
    thread = threading.Thread(target=lambda: found.append(anyop.explain("relu", x)))
    thread.start()
    thread.join(60)
    assert [each.chosen for each in found] == ["cpu"]


def test_threads_train_side_by_side():
    x = paddle.randn([8, 32])
    expected = anyop.gelu(x)
    wrong = []

    def work():
        own = x.clone()
        own.stop_gradient = False
        for _ in range(100):
            own.clear_grad()
            result = anyop.gelu(own)
            result.sum().backward()
            if not ((result == expected).all() and own.grad is not None):
                wrong.append(result)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong and not any(thread.is_alive() for thread in threads)
