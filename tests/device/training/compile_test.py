# SPDX-License-Identifier: Apache-2.0
"""torch.compile on the device gives what it gives on the inner device, and what eager code does to memory."""

from __future__ import annotations

import threading

import pytest
from slow_stream import sleep

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.anyplatform, pytest.mark.drawn(2, group="compiled for the device")]


def at(device: str, *size: int):
    """Random numbers of the CPU's generator on the device."""
    return torch.randn(*size).to(device)


def with_gradients(function, *inputs):
    """Results and gradients."""
    inputs = [each.detach().requires_grad_() for each in inputs]
    result = function(*inputs)
    result.square().sum().backward()
    return [result, *(each.grad for each in inputs)]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_results_and_gradients(same, inductor, backend):
    def run(device):
        function = torch.compile(
            lambda x, w, b: torch.nn.functional.gelu(x @ w + b), backend=backend, fullgraph=True
        )
        return with_gradients(function, at(device, 8, 16), at(device, 16, 4), at(device, 4))

    same(run)


def test_one_graph_serves_all_sizes(same, inductor):
    from torch._dynamo.utils import counters

    def run(device):
        torch._dynamo.reset()
        counters.clear()
        function = torch.compile(lambda x: (x * 2).cumsum(0).sum(-1), dynamic=True)
        results = [function(at(device, rows, 5)) for rows in (3, 7, 11)]
        assert counters["stats"]["unique_graphs"] == 1
        return results

    same(run)


def test_a_break_of_the_graph(same, inductor):
    def run(device):
        def function(x):
            y = x * 2
            return (y + 1 if y.sum() > 0 else y - 1).cos()

        compiled, x = torch.compile(function), at(device, 5).abs()
        return compiled(x), compiled(-x)

    same(run)


def test_writes_reach_inputs_and_views_share_their_memory(same, inductor):
    def run(device):
        def function(x, y):
            x.add_(y)
            y[0].mul_(2)
            return x[1:], x.view(-1)

        x, y = at(device, 4, 4), at(device, 4, 4)
        before = x._version
        results = torch.compile(function)(x, y)
        assert x._version > before
        x.add_(1)  # the results are views
        return x, y, *results

    same(run)


def test_a_changed_tensor_is_noticed_in_the_backward_pass(inductor):
    x, w = torch.randn(4, device="anyop", requires_grad=True), torch.randn(4, device="anyop")
    result = torch.compile(lambda x, w: (x * w).sum())(x, w)
    w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()


def test_a_conjugated_view_is_read_and_not_written(same, inductor):
    def run(device):
        x = at(device, 4, 2)
        return torch.compile(lambda z: torch.view_as_real(z * 2))(torch.view_as_complex(x).conj())

    same(run)
    x = torch.randn(4, dtype=torch.complex64).to("anyop")
    with pytest.raises(Exception, match="cannot write into a conjugated"):
        torch.compile(lambda z: z.mul_(2))(x.conj())


@pytest.mark.parametrize("places", [("anyop:0", "cpu"), ("cpu", "anyop:0"), ("anyop:0", "anyop:1")])
def test_copies_share_no_memory(inductor, places):
    if "anyop:1" in places and torch.anyop.device_count() < 2:
        pytest.skip("there is one device")
    source = torch.ones(4, device=places[0])
    copy = torch.compile(lambda x: x.to(places[1]))(source)
    assert str(copy.device) == places[1]
    source.add_(1)
    assert copy.tolist() == [1.0] * 4


def test_numbers_of_the_cpu_and_constants(same, inductor):
    def run(device):
        scalar, table = torch.tensor(3.5), torch.tensor([1.0, 2.0])
        function = torch.compile(
            lambda x: x * scalar + table.to(x.device) + torch.arange(2, device=x.device)
        )
        return function(at(device, 3, 2))

    same(run)


def test_autocast(same, inductor):
    def run(device):
        w = at(device, 16, 16)

        @torch.compile
        def function(x):
            with torch.autocast(torch.device(device).type, dtype=torch.bfloat16):
                return (x @ w).relu()

        result = function(at(device, 4, 16))
        assert result.dtype == torch.bfloat16
        return result

    same(run)


@pytest.mark.parametrize("gradients", [False, True])
def test_attention_takes_the_inner_device_s_kernel(same, inductor, gradients):
    def run(device):
        torch._dynamo.reset()
        graphs = []

        def keep(graph, inputs):
            graphs.extend(str(n.target) for n in graph.graph.nodes if "attention" in str(n.target))
            return graph.forward

        from functorch.compile import make_boxed_func
        from torch._dynamo.backends.common import aot_autograd

        backend = aot_autograd(fw_compiler=lambda g, i: make_boxed_func(keep(g, i)))
        qkv = [at(device, 2, 2, 8, 16).requires_grad_(gradients) for _ in range(3)]
        attend = torch.nn.functional.scaled_dot_product_attention
        result = torch.compile(lambda *t: attend(*t, is_causal=True), backend=backend)(*qkv)
        if gradients:
            result.sum().backward()
        assert graphs
        return [graphs, result, *(t.grad for t in qkv if gradients)]

    same(run)


def test_attention_under_inductor(same, inductor):
    def run(device):
        mask = torch.ones(8, 8, dtype=torch.bool).tril().to(device)
        attend = torch.nn.functional.scaled_dot_product_attention
        function = torch.compile(lambda q, k, v: attend(q, k, v, attn_mask=mask), dynamic=True)
        return with_gradients(function, *(at(device, 2, 2, 8, 16) for _ in range(3)))

    same(run, near=True)


def test_branches(same, inductor):
    def run(device):
        def function(x):
            ones = torch.ones(4, device=x.device)
            return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - ones, (x,))

        compiled, x = torch.compile(function), at(device, 4).abs()
        return compiled(x), compiled(-x)

    same(run)


def test_every_device_gives_results_of_its_own(inductor):
    if torch.anyop.device_count() < 2:
        pytest.skip("there is one device")
    function = torch.compile(lambda x: x * 2 + torch.ones(4, device=x.device))
    for device in ("anyop:0", "anyop:1"):
        found = function(torch.ones(4, device=device))
        assert str(found.device) == device
        assert found.tolist() == [3.0] * 4


def test_threads(inductor):
    function, x = torch.compile(lambda x: (x @ x).sin()), torch.randn(8, 8, device="anyop")
    expected, wrong = function(x).cpu(), []

    def call():
        wrong.extend(i for i in range(100) if not torch.equal(function(x).cpu(), expected))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_it_waits_for_the_stream(inductor):
    function, x = torch.compile(lambda x: x * 2), torch.zeros(4, device="anyop")
    function(x)
    sleep(200)
    x.copy_(torch.ones(4).pin_memory(), non_blocking=True)
    assert function(x).tolist() == [2.0] * 4


def test_what_the_stream_has_still_to_read_outlives_its_tensor(inductor):
    function, x = torch.compile(lambda x: x * 2), torch.ones(4, device="anyop")
    result, copy = function(x), torch.zeros(4, device="anyop")
    sleep(200)
    copy.copy_(result, non_blocking=True)
    del result
    others = [function(x + 1) for _ in range(8)]
    assert copy.tolist() == [2.0] * 4
    assert len(others) == 8


@pytest.mark.host
def test_cuda_graphs_are_skipped_and_inductor_says_so(inductor):
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    x = torch.randn(8, 8, device="anyop")
    found = torch.compile(lambda x: (x @ x).relu(), mode="reduce-overhead")(x)
    assert torch.equal(found.cpu(), (x @ x).relu().cpu())
    assert counters["inductor"]["cudagraph_skips"] > 0


def test_packages_are_refused(inductor):
    program = torch.export.export(
        torch.nn.Linear(4, 4).to("anyop"), (torch.ones(2, 4, device="anyop"),)
    )
    with pytest.raises(Exception, match="AOTInductor makes no packages for anyop"):
        torch._inductor.aoti_compile_and_package(program)


def test_nothing_is_imported_before_it_is_used(program):
    found = program(
        "import sys\nprint([m for m in sys.modules if m.startswith(('torch._dynamo', 'torch._inductor'))])"
    )
    assert found.strip() == "[]"
