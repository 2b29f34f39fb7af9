# SPDX-License-Identifier: Apache-2.0
"""Kernels run on the caller's current stream and never wait: side streams, threads, CUDA graphs."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import anyop
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.cuda.is_available():
    pytest.skip("there is no CUDA device that torch can use", allow_module_level=True)

SPIN_CYCLES = 200_000_000  # 0.1 s and more


def with_torch_ops():
    pytest.importorskip("anyop.torch", reason="anyop.torch is not there")
    return torch.ops.anyop


@pytest.fixture(params=["anyop", "torch.ops"])
def ops(request):
    return anyop if request.param == "anyop" else with_torch_ops()


def operands(rows=256, D=512):
    x = torch.randn(rows, D, device="cuda")
    grad = torch.randn(rows, D, device="cuda")
    return x, grad, torch.randn(D, device="cuda")


def expected_of(x, grad, weight):
    X = x.double().requires_grad_()
    W = weight.double().requires_grad_()
    out = X * (X.square().mean(1, keepdim=True) + 1e-6).rsqrt() * W
    gradients = torch.autograd.grad(out, (X, W), grad.double())
    return (x.double() * 2, out.detach(), *gradients)


def compute(ops, x, grad, weight):
    with torch.no_grad():
        return (ops.add(x, x), ops.rms_norm(x, weight), *ops.rms_norm_backward(grad, x, weight))


def check(found, expected):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


def test_a_side_stream_is_used_and_not_waited_for(ops):
    """The inputs are written on a stream behind a spin; another stream, or waiting, would show."""
    x, grad, weight = operands()
    compute(ops, x, grad, weight)
    late = [torch.zeros_like(t) for t in (x, grad, weight)]
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        begin = time.perf_counter()
        torch.cuda._sleep(SPIN_CYCLES)
        for to, value in zip(late, (x, grad, weight)):
            to.copy_(value)
        found = compute(ops, *late)
        called_s = time.perf_counter() - begin
        assert not stream.query(), "the spin was too short to show anything"
    stream.synchronize()
    spun_s = time.perf_counter() - begin
    check(found, expected_of(x, grad, weight))
    assert called_s < spun_s / 2


def test_threads_have_streams_of_their_own(ops):
    x, grad, weight = operands()
    expected, failures = expected_of(x, grad, weight), []
    torch.cuda.synchronize()

    def run():
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(50):
                    found = compute(ops, x, grad, weight)
                torch.cuda.current_stream().synchronize()
                check(found, expected)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def test_a_graph_is_captured_and_replayed(ops):
    x, grad, weight = operands()
    compute(ops, x, grad, weight)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = compute(ops, x, grad, weight)
    for seed in range(3):
        generator = torch.Generator("cuda").manual_seed(seed)
        for tensor in (x, grad, weight):
            tensor.copy_(torch.randn(tensor.shape, generator=generator, device="cuda"))
        graph.replay()
        torch.cuda.synchronize()
        check(found, expected_of(x, grad, weight))


def test_two_graphs_share_nothing(ops):
    """Scratch memory belongs to its graph: replays on two streams at once stay right."""
    sets = [operands(2048, 1024) for _ in range(2)]
    graphs, results = [], []
    for values in sets:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results.append(compute(ops, *values))
        graphs.append(graph)
    expected = [expected_of(*values) for values in sets]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in sets]
    for _ in range(20):
        for graph, stream in zip(graphs, streams):
            with torch.cuda.stream(stream):
                graph.replay()
    torch.cuda.synchronize()
    for found, right in zip(results, expected):
        check(found, right)


FIRST_CALL = """
import anyop, torch
x = torch.randn(64, 512, device="cuda"); w = torch.randn(512, device="cuda")
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    found = anyop.rms_norm_backward(x, x, w)
graph.replay()
torch.cuda.synchronize()
again = anyop.rms_norm_backward(x, x, w)
assert all(torch.equal(a, b) for a, b in zip(found, again))
print("same")
"""


def test_the_first_call_of_a_process_may_be_captured():
    """Loading kernels and making the pool of scratch memory must not disturb a capture."""
    run = subprocess.run([sys.executable, "-c", FIRST_CALL], capture_output=True, text=True)
    assert run.stdout.strip() == "same", run.stderr
