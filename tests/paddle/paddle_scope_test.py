# SPDX-License-Identifier: Apache-2.0
"""anyop.use in Paddle: eager calls, gradients and static graphs run in the scope of their call or trace."""

from __future__ import annotations

import threading
from collections import Counter

import numpy as np
import pytest

paddle = pytest.importorskip("paddle", reason="PaddlePaddle is not installed")

import anyop  # noqa: E402
from anyop import _scope  # noqa: E402
from paddle.static import InputSpec  # noqa: E402

calls: Counter = Counter()
W = paddle.linspace(0.5, 2, 16)


def spy(x, weight, eps):
    calls["rms_norm"] += 1
    return np.full_like(x, 7)


def spy_backward(grad_out, x, weight, eps, *, grad_x=None, grad_weight=None):
    calls["rms_norm_backward"] += 1
    for place in (grad_x, grad_weight):
        if place is not None:
            place[...] = 3


@pytest.fixture(autouse=True)
def spies():
    anyop.register("rms_norm", "spy", spy)
    anyop.register("rms_norm_backward", "spy", spy_backward)
    calls.clear()
    yield
    anyop.unregister("rms_norm", "spy")
    anyop.unregister("rms_norm_backward", "spy")
    assert not _scope.active and _scope.current.get() is None


def data(wants_gradient=False):
    x = paddle.to_tensor(np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32))
    x.stop_gradient = not wants_gradient
    return x


def is_spied(tensor):
    """All of the spy's, or nothing."""
    found = np.unique(np.asarray(tensor)).tolist()
    assert found in ([7.0], [3.0]) or len(found) > 4, found
    return len(found) == 1


def norm(x):
    return anyop.rms_norm(x, W)


def norm_in_a_block(x):
    with anyop.use("spy"):
        inside = anyop.rms_norm(x, W)
    return inside, anyop.rms_norm(x, W)


def test_eager_calls():
    x, out = data(), paddle.empty([4, 16])
    for _ in range(2):
        assert not is_spied(norm(x))
        with anyop.use("spy"):
            assert is_spied(norm(x)) and is_spied(anyop.rms_norm(x, W, out=out))
        assert [is_spied(found) for found in norm_in_a_block(x)] == [True, False]


@pytest.mark.parametrize("how", ["backward", "grad"])
def test_gradients_run_in_the_scope_of_their_forward_call(how):
    """Also when they are computed behind the block, or inside another one."""

    def gradient(result, x):
        if how == "grad":
            return paddle.grad(result.sum(), [x])[0]
        x.clear_grad()
        result.sum().backward()
        return x.grad

    x = data(wants_gradient=True)
    plain = norm(x)
    with anyop.use("spy"):
        result = norm(x)
        assert is_spied(result) and not is_spied(gradient(plain, x))
    assert is_spied(gradient(result, x))
    assert not is_spied(gradient(norm(x), x))
    with anyop.use("spy"):
        result = norm(x)
    with anyop.use("cpu"):
        assert is_spied(gradient(result, x))


@pytest.mark.parametrize("full_graph", [True, False], ids=["graph", "SOT"])
@pytest.mark.parametrize("wants_gradient", [False, True], ids=["", "gradient"])
def test_to_static(full_graph, wants_gradient):
    """Called before, inside and behind a block, and with a gradient behind it."""
    graph, x = paddle.jit.to_static(norm, full_graph=full_graph), data(wants_gradient)
    for _ in range(2):
        results = [graph(x)]
        with anyop.use("spy"):
            results.append(graph(x))
        for result, expected in zip(results, (False, True)):
            assert is_spied(result) == expected
            if wants_gradient:
                x.clear_grad()
                result.sum().backward()
                assert is_spied(x.grad) == expected
    assert calls["rms_norm"] == 2 and calls["rms_norm_backward"] == 2 * wants_gradient


@pytest.mark.parametrize("full_graph", [True, False], ids=["graph", "SOT"])
def test_a_block_inside_a_graph(full_graph):
    graph = paddle.jit.to_static(norm_in_a_block, full_graph=full_graph)
    for _ in range(2):
        assert [is_spied(found) for found in graph(data())] == [True, False]


def test_a_graph_keeps_the_scope_it_was_made_in():
    """The program itself, whose executor is no part of any scope."""
    with anyop.use("spy"):
        graph = paddle.jit.to_static(norm, full_graph=True, input_spec=[InputSpec([None, 16])])
        inside = graph.concrete_program.main_program
    assert inside is not graph.concrete_program.main_program


def test_static_programs():
    """The forward call inside a block, the gradient made behind it, the executor in another one."""
    paddle.enable_static()
    try:
        main, startup = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(main, startup):
            x = paddle.static.data("x", [4, 16], "float32")
            x.stop_gradient = False
            weight = paddle.create_parameter([16], "float32")
            with anyop.use("spy"):
                spied = anyop.rms_norm(x, weight)
            plain = anyop.rms_norm(x, weight)
            grads = [paddle.static.gradients(out.sum(), x)[0] for out in (spied, plain)]
        executor = paddle.static.Executor()
        executor.run(startup)
        feed = {"x": np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)}
        with anyop.use("spy", ops="topk"):
            found = executor.run(main, feed=feed, fetch_list=[spied, plain, *grads])
    finally:
        paddle.disable_static()
    assert [is_spied(each) for each in found] == [True, False, True, False]


def test_threads_have_their_own():
    graph, wrong = paddle.jit.to_static(norm, full_graph=True), []
    graph(data())
    ready = threading.Barrier(4)

    def work(number):
        x = data(wants_gradient=True)
        ready.wait(20)
        for _ in range(20):
            if number % 2:
                with anyop.use("spy"):
                    result = norm(x)
            else:
                result = norm(x)
            x.clear_grad()
            result.sum().backward()
            if [is_spied(result), is_spied(x.grad)] != [bool(number % 2)] * 2:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong and not any(thread.is_alive() for thread in threads)
