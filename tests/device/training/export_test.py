# SPDX-License-Identifier: Apache-2.0
"""torch.export, make_fx, fake tensors and torch.func on the device."""

from __future__ import annotations

import io

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.anyplatform


@pytest.mark.parametrize("strict", [True, False])
def test_an_exported_program_runs_on_the_device_before_and_after_saving(same, strict):
    def run(device):
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.2)).to(device).eval()
        rows = torch.export.Dim("rows", min=2)
        example = torch.randn(3, 4).to(device)
        exported = torch.export.export(
            model, (example,), strict=strict, dynamic_shapes=({0: rows},)
        )
        file = io.BytesIO()
        torch.export.save(exported, file)
        file.seek(0)
        loaded = torch.export.load(file)
        x = torch.randn(5, 4).to(device)
        expected = model(x)
        for program in (exported, loaded, loaded.run_decompositions()):
            assert torch.equal(program.module()(x), expected)
        return expected

    same(run)


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx_keeps_the_device(platform, mode):
    from torch.fx.experimental.proxy_tensor import make_fx

    def function(x):
        return torch.ones(3, device="anyop") + x.sin()

    x = torch.randn(3, device="anyop")
    graph = make_fx(function, tracing_mode=mode)(x)
    assert "device(type='anyop'" in graph.code
    assert torch.equal(graph(x), function(x))


def test_fake_tensors_take_no_memory_and_call_nothing(platform):
    from anyop.torch import device
    from torch._subclasses.fake_tensor import FakeTensorMode

    operators = ("mm", "add.Tensor", "normal_")
    device.count_calls(True)
    before = [device.calls(op) for op in operators], torch.anyop.memory_stats()
    with FakeTensorMode():
        x = torch.randn(1 << 20, 1 << 14, device="anyop")
        product = x.t() @ x + 1
        assert (str(product.device), product.shape) == ("anyop:0", (1 << 14, 1 << 14))
        assert product.to("cpu").to("anyop").device.type == "anyop"
        model = torch.nn.Linear(4, 4, device="anyop")
        assert model(torch.empty(3, 4, device="anyop")).device.type == "anyop"
    after = [device.calls(op) for op in operators], torch.anyop.memory_stats()
    device.count_calls(False)
    assert after == before


def test_attention_of_fake_tensors(platform):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        qkv = [torch.empty(1, 2, 8, 16, device="anyop", requires_grad=True) for _ in range(3)]
        result = torch.nn.functional.scaled_dot_product_attention(*qkv)
    assert (result.device.type, result.shape) == ("anyop", (1, 2, 8, 16))


def test_torch_func(same):
    def run(device):
        model = torch.nn.Linear(3, 2).to(device)
        parameters, x = dict(model.named_parameters()), torch.randn(5, 3).to(device)

        def loss(parameters, x):
            return torch.func.functional_call(model, parameters, (x,)).square().sum()

        gradients = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
        value, tangent = torch.func.jvp(torch.sin, (x,), (x,))
        hessian = torch.func.hessian(lambda x: (x**3).sum())(x[0])
        return *gradients.values(), value, tangent, hessian, torch.func.jacrev(torch.tanh)(x[0])

    same(run)


def test_compiled_torch_func(same, inductor):
    def run(device):
        x = torch.randn(5, 3).to(device)
        per_row = torch.func.vmap(torch.func.grad(lambda row: (row.sin() ** 2).sum()))
        return torch.compile(per_row, fullgraph=True)(x)

    same(run)
