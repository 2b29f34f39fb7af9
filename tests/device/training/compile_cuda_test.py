# SPDX-License-Identifier: Apache-2.0
"""torch.compile on CUDA memory: Triton code, templates, CUDA graphs and streams, on tensors of the device."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("inductor")]


def at(device: str, *size: int, dtype=None):
    return torch.randn(*size).to(device, dtype)


def code_of(function, *args) -> str:
    """What inductor writes for a call."""
    from torch._inductor.utils import run_and_get_code

    return "\n".join(run_and_get_code(function, *args)[1])


def test_the_code_is_triton_s_and_the_same_as_for_cuda(platform):
    def function(x, w):
        return torch.nn.functional.gelu(x @ w).softmax(-1)

    codes = []
    for device in ("cuda", "anyop"):
        torch._dynamo.reset()
        x, w = at(device, 64, 128), at(device, 128, 64)
        codes.append(code_of(torch.compile(function), x, w))
    kernels = [[line for line in code.split("\n") if "tl." in line] for code in codes]
    assert kernels[0]
    assert kernels[0] == kernels[1]


def test_training_gives_the_same_bits(same):
    def run(device):
        torch._dynamo.reset()
        layers = torch.nn.Sequential(
            torch.nn.Linear(64, 128),
            torch.nn.GELU(),
            torch.nn.Dropout(0.1),
            torch.nn.Linear(128, 8),
        ).to(device)
        optimizer = torch.optim.AdamW(layers.parameters(), lr=1e-2)
        step, x, losses = torch.compile(layers), at(device, 32, 64), []
        torch.manual_seed(1)
        for _ in range(3):
            loss = step(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        return losses

    same(run)


def test_attention(same):
    def run(device):
        torch._dynamo.reset()
        qkv = [at(device, 2, 4, 64, 64, dtype=torch.bfloat16).requires_grad_() for _ in range(3)]
        attend = torch.nn.functional.scaled_dot_product_attention
        result = torch.compile(lambda *t: attend(*t, is_causal=True))(*qkv)
        result.float().sum().backward()
        return result, *(t.grad for t in qkv)

    same(run, near=True)


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_modes_with_cuda_graphs(same, mode):
    """Results and gradients outlive the next call of the graph only as copies, as torch's documentation says."""

    def run(device):
        torch._dynamo.reset()
        w = at(device, 64, 64).requires_grad_()
        function, results = torch.compile(lambda x: (x @ w).relu(), mode=mode), []
        for _ in range(5):
            torch.compiler.cudagraph_mark_step_begin()
            result = function(at(device, 64, 64))
            result.sum().backward()
            results += [result.detach().clone(), w.grad.clone()]
            w.grad = None
        return results

    same(run, near=True)


def test_cuda_graphs_are_recorded(platform):
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    function, x = torch.compile(lambda x: x.sin() + 1, mode="reduce-overhead"), at("anyop", 64)
    with torch.no_grad():
        for _ in range(4):
            found = function(x).clone()
    assert counters["inductor"]["cudagraph_skips"] == 0
    torch.testing.assert_close(found, x.sin() + 1)


def test_code_runs_on_the_current_stream(platform):
    x = torch.zeros(1 << 20, device="anyop")
    function = torch.compile(lambda x: x * 2)
    function(x)
    torch.anyop.synchronize()
    side = torch.anyop.Stream()
    with torch.anyop.stream(side):
        torch.cuda._sleep(200_000_000)  # cycles
        x.fill_(1)
        found = function(x)
    side.synchronize()
    assert found.sum().item() == 2 << 20


def test_record_stream_of_a_result(platform):
    function, x = torch.compile(lambda x: x * 2), torch.ones(1 << 20, device="anyop")
    function(x)
    side, found = torch.anyop.Stream(), function(x)
    side.wait_stream(torch.anyop.current_stream())
    with torch.anyop.stream(side):
        torch.cuda._sleep(200_000_000)
        total = found.sum()
    found.record_stream(side)
    del found
    others = [torch.zeros(1 << 20, device="anyop") for _ in range(8)]
    side.synchronize()
    assert total.item() == 2 << 20
    assert len(others) == 8


def test_a_kernel_of_the_user_s_in_triton(platform):
    import triton
    import triton.language as tl

    @triton.jit
    def double(x, y, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + at, tl.load(x + at, at < n) * 2, at < n)

    def function(x):
        y = torch.empty_like(x)
        double[(triton.cdiv(x.numel(), 128),)](x, y, x.numel(), BLOCK=128)
        return y + 1

    x = at("anyop", 1000)
    torch.testing.assert_close(torch.compile(function, fullgraph=True)(x), x * 2 + 1)
